"""`make ui`, from its start to its end. The last file of this folder: its last test ends the shared server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
from served import Served, nothing_left, processes, wait_until

pytestmark = pytest.mark.slow

LIMIT = 15.0


def test_a_port_in_use_is_one_clear_line(served: Served) -> None:
    words = [sys.executable, "-m", "flows.ui", "--port", str(served.port)]
    done = subprocess.run(words, cwd=served.workspace, env=dict(served.variables), capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout.startswith(f"[ui] error: port {served.port} cannot be used")
    assert "make ui PORT=" in done.stdout
    assert done.stderr == ""


def test_only_this_machine_is_served_and_state_stays_in_the_project(served: Served) -> None:
    host = socket.gethostbyname(socket.gethostname())
    if not host.startswith("127."):
        with pytest.raises(OSError):
            socket.create_connection((host, served.port), timeout=2)
    assert (served.workspace / ".state/prefect/prefect.db").exists()
    ignored = ["git", "status", "--porcelain", "--untracked-files=all", ".state"]
    done = subprocess.run(ignored, cwd=served.workspace, capture_output=True, text=True)
    assert done.stdout == ""


def test_closing_the_terminal_ends_everything(served: Served) -> None:
    served.start("loop", overrides={"train": {"lr": 3e-3}}, experiment="closed")
    wait_until(lambda: served.pids("-m stages.train"), 120, lambda: served.log("worker"))
    os.close(served.terminal)
    assert wait_until(lambda: not served.computing(), 60) < LIMIT
    served.ui.wait(timeout=30)
    assert processes(served.workspace) == {}
    nothing_left(served)
