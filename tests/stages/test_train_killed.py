"""The train stage as a process that is killed again and again, and the same run left in peace."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

FORKER = """
import os, runpy, sys
import tuneloop.training.trainer, tuneloop.policies.policy, transformers.models.qwen3.modeling_qwen3

for folder in sys.stdin:
    child = os.fork()
    if child == 0:
        os.chdir(folder.rstrip())
        log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1), os.dup2(log, 2)
        try:
            runpy.run_module("stages.train", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(end.code or 0)
        finally:
            os._exit(99)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Starts `stages.train` as `python -m` would, in a process of its own in the folder that a line of standard input
names, with the libraries already imported: that takes seconds, and dozens of processes are to be killed."""

STEPS = 24
KILLS = 24
OPTIONS = {
    "train.kl_coefficient": 0.1,
    "train.old_logprobs": "trainer",
    "train.engine_ratio_cap": 2.0,
    "train.overlong": "mask",
}
"""What training has that is off by default and looks at more than the present weights."""
RESULTS = ("policy/model.safetensors", "history.csv", "evaluations.csv", "replies.jsonl", "metrics.json")


@pytest.fixture
def twins(
    workspace: Path, write_params: Callable[..., None], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Two workspaces with the same base policy, records and parameters."""
    write_params(workspace, {"train.steps": STEPS, "train.evaluate_every": 5, "train.keep_replies_every": 7})
    other = tmp_path_factory.mktemp("left_in_peace")
    shutil.copytree(workspace, other, dirs_exist_ok=True)
    return workspace, other


class Forker:
    """One process at a time that runs the real stage; its output goes to log.txt in its folder."""

    def __init__(self, process: subprocess.Popen[str]):
        self.process = process

    def start(self, folder: Path) -> int:
        """The id of a stage that begins in `folder`."""
        self.process.stdin.write(f"{folder}\n")
        return int(self.process.stdout.readline())

    def ended(self) -> int:
        """How the stage ended, once it has: its exit status, or minus the signal."""
        return int(self.process.stdout.readline())

    def run(self, folder: Path) -> str:
        """Run the stage to its end; what it said."""
        before = len(log(folder))
        self.start(folder)
        assert self.ended() == 0, log(folder)
        return log(folder)[before:]

    def started(self, folder: Path) -> int:
        """The id of a stage in `folder`, running, once it has saved two states more."""
        before = states(folder, "step-*.pt")
        child = self.start(folder)
        wait_until(lambda: len(states(folder, "step-*.pt") - before) >= 2, child)
        return child


@pytest.fixture(scope="module")
def forker(environment: dict[str, str]) -> Iterator[Forker]:
    with subprocess.Popen(
        [sys.executable, "-c", FORKER],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as process:
        yield Forker(process)
        process.stdin.close()


def log(folder: Path) -> str:
    path = folder / "log.txt"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def train(folder: Path, environment: dict[str, str]) -> str:
    """Run the real stage in a process that begins with nothing imported; its output."""
    done = subprocess.run(
        [sys.executable, "-m", "stages.train"], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def states(folder: Path, pattern: str) -> set[str]:
    return {path.name for path in (folder / ".state" / "train").glob(f"*/{pattern}")}


def wait_until(happened: Callable[[], object], child: int) -> None:
    """Return as soon as `happened()`; fail if the process `child` ends first."""
    deadline = time.monotonic() + 120
    while not happened():
        os.kill(child, 0)
        assert time.monotonic() < deadline
        time.sleep(0.0005)


def kill_moments(chance: Random) -> list[tuple[str, float]]:
    """In turn: at the start, a moment after a state was saved, and while one is being written."""
    kinds = (("start", 0.5), ("step", 0.12), ("write", 0.0))
    return [(kinds[n % 3][0], chance.uniform(0, kinds[n % 3][1])) for n in range(KILLS)]


@pytest.mark.slow
def test_a_run_killed_at_many_moments_ends_in_the_bytes_of_a_run_left_in_peace(
    twins: tuple[Path, Path], forker: Forker, environment: dict[str, str], cut_off: dict[str, str]
) -> None:
    killed, in_peace = twins
    # This run has no network either: a policy is loaded, trained and saved without one.
    train(in_peace, cut_off)

    halves = 0
    for kind, delay in kill_moments(Random(11)):
        before, left_over = states(killed, "step-*.pt"), states(killed, ".step-*.tmp")
        child = forker.start(killed)
        if kind == "step":
            wait_until(lambda before=before: states(killed, "step-*.pt") - before, child)
        elif kind == "write":
            wait_until(lambda left_over=left_over: states(killed, ".step-*.tmp") - left_over, child)
        time.sleep(delay)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        assert forker.ended() == -signal.SIGKILL, log(killed)
        halves += bool(states(killed, ".step-*.tmp") - left_over)

    assert halves, "else no state was cut in the middle of being written"
    resumed = [int(step) for step in re.findall(r"continuing after step (\d+) of", log(killed))]
    assert resumed == sorted(resumed), "what was saved is never lost"
    assert len(set(resumed)) >= KILLS // 3, "else too little was done between the kills"
    assert resumed[-1] < STEPS
    assert not (killed / "data" / "train").exists(), "nothing is written before the end"

    assert "continuing after step" in train(killed, environment)
    for name in RESULTS:
        one, other = (folder / "data" / "train" / name for folder in twins)
        assert one.read_bytes() == other.read_bytes(), name
    assert not states(killed, ".step-*.tmp"), "what the killed processes left is cleared away"
    assert (killed / "data/train/policy/model.safetensors").read_bytes() != (
        killed / "data/policy/model/model.safetensors"
    ).read_bytes(), "else nothing was trained"


@pytest.mark.slow
def test_a_truncated_state_and_a_full_disk_are_said_plainly_and_cost_at_most_one_interval(
    twins: tuple[Path, Path], forker: Forker, write_params: Callable[..., None]
) -> None:
    harmed, in_peace = twins
    for folder in twins:
        write_params(folder, {"train.steps": STEPS} | OPTIONS)
    forker.run(in_peace)

    os.kill(forker.started(harmed), signal.SIGKILL)
    assert forker.ended() == -signal.SIGKILL
    *_, older, newest = sorted((harmed / ".state" / "train").glob("*/step-*.pt"))
    size = newest.stat().st_size
    newest.write_bytes(newest.read_bytes()[:1000])

    before = len(log(harmed))
    child = forker.started(harmed)
    # From here on, no file may grow beyond a size that no state fits in, and the log does: a write of a state fails
    # like one on a full disk.
    assert len(log(harmed)) < 25_000 and size > 100_000
    resource.prlimit(child, resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
    status, said = forker.ended(), log(harmed)[before:]
    assert status == 2, said
    assert f"{newest.relative_to(harmed)}: is damaged and passed over" in said
    assert f"continuing after step {step_of(older)} of {STEPS}" in said
    failed = re.search(
        r"\[train\] error: \S+/step-(\d+)-\w+\.pt: the training state of step .*run the same command", said
    )
    assert failed and "(File too large)" in said and "Traceback" not in said

    last = max(map(step_of, (harmed / ".state" / "train").glob("*/step-*.pt")))
    assert last == int(failed[1]) - 1, "a state is saved every step, so one step is lost"
    assert f"continuing after step {last} of {STEPS}" in forker.run(harmed)
    for name in RESULTS:
        assert (harmed / "data/train" / name).read_bytes() == (in_peace / "data/train" / name).read_bytes(), name


def step_of(state: Path) -> int:
    return int(state.name.split("-")[1])
