"""Nothing is fetched while the pipeline runs. (The train stage without a network: test_train_killed.py.)"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def python(folder: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import socket; socket.socket().connect(('127.0.0.1', 9))",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9')",
    ],
)
def test_the_guard_of_the_other_tests_catches_whoever_connects(
    tmp_path: Path, cut_off: dict[str, str], code: str
) -> None:
    done = python(tmp_path, cut_off, "-c", code)
    assert done.returncode != 0
    assert "the network was asked for" in done.stderr


def test_records_and_base_policy_are_made_without_a_network(workspace: Path, cut_off: dict[str, str]) -> None:
    shutil.rmtree(workspace / "data")
    for stage in ("boards", "policy"):
        done = python(workspace, cut_off, "-m", f"stages.{stage}")
        assert done.returncode == 0, done.stderr
        assert f"[{stage}] ended after" in done.stdout
    assert (workspace / "data/policy/model/model.safetensors").stat().st_size > 10_000
