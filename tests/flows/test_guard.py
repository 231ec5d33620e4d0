"""One command under its guard: nothing of it outlives its starter, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from served import wait_until

from flows.guard import PATIENCE
from flows.pipeline import GUARD

STUBBORN = """
import os, signal, subprocess, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
left_group = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(os.getpid(), left_group.pid, flush=True)
time.sleep(600)
"""
"""Ignores every signal that can be ignored, and has a child that left its group."""

STARTER = """
import subprocess, sys
guard = subprocess.Popen([sys.executable, "-I", *sys.argv[1:]], stdin=subprocess.PIPE, start_new_session=True)
print(guard.pid, flush=True)
guard.wait()
"""
LIMIT = 15.0


def guarded(*command: str, **options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", str(GUARD), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def test_what_is_sent_takes_less_than_the_fifteen_seconds_that_are_allowed() -> None:
    assert sum(seconds for _, seconds in PATIENCE) < LIMIT
    assert PATIENCE[-1][0] == signal.SIGKILL


@pytest.mark.parametrize(("does", "status"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_the_guard_ends_as_its_command_does(does: str, status: int) -> None:
    process = guarded(sys.executable, "-c", f"print('said', flush=True); {does}")
    assert process.stdout.read() == "said\n"
    assert process.wait(timeout=30) == status


def test_a_starter_that_is_killed_takes_even_a_stubborn_command_with_it(tmp_path: Path) -> None:
    (tmp_path / "after.py").write_text("open('afterwards', 'w')")
    words = [str(GUARD), "--afterwards", str(tmp_path / "after.py"), sys.executable, "-c", STUBBORN]
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, *words], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as starter:
        guard, *pids = [int(pid) for _ in range(2) for pid in starter.stdout.readline().split()]
        # As Ray does when a worker ends: its children first.
        os.kill(guard, signal.SIGKILL)
        os.kill(starter.pid, signal.SIGKILL)
    assert wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), LIMIT) > 0
    wait_until((tmp_path / "afterwards").exists, 5)


def test_an_orphan_of_a_command_that_ended_well_is_ended_too(tmp_path: Path) -> None:
    (tmp_path / "after.py").write_text("open('afterwards', 'w')")
    leaves = "import subprocess, sys; print(subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL).pid)"
    process = guarded("--afterwards", str(tmp_path / "after.py"), sys.executable, "-c", leaves, cwd=str(tmp_path))
    orphan = int(process.stdout.read())
    assert process.wait(timeout=30) == 0
    assert not psutil.pid_exists(orphan)
    assert not (tmp_path / "afterwards").exists(), "that is for commands that were cut short"
