"""The one place that runs DVC: a process in a group of its own, read line by line.

Whatever ends the reader (an exception, a cancelled flow run, SIGTERM, even SIGKILL) ends DVC and the
stage under it: `guard.py` holds the group, and `tidy.py` then removes what must not be left. The resume
state of the training, which is no out, stays.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flows import tidy

GUARD = Path(__file__).with_name("guard.py")
GUARD_SECONDS = 12.0
"""Longer than the guard takes to end a group that ignores every signal but SIGKILL."""

How = Literal["run", "cached", "unchanged"]

_STARTS: dict[How, re.Pattern[str]] = {
    "run": re.compile(r"Running stage '(.+)':"),
    "cached": re.compile(r"Stage '(.+)' is cached - skipping run, checking out outputs"),
    "unchanged": re.compile(r"Stage '(.+)' didn't change, skipping"),
}
_ERROR = re.compile(r"\[\w+\] error: |ERROR: ")
_EXPERIMENT = re.compile(r"Ran experiment\(s\): (\S+)")
_STEP = re.compile(r"\[(?P<label>\w+)\] (?P<done>\d+)/(?P<total>\d+)(?P<numbers>(?: \w+=\S+)*) left=(?P<left>\d+)s")


@dataclass(frozen=True)
class Step:
    """One line of a stage's progress; `numbers` as the stage names them, `left` in seconds."""

    done: int
    total: int
    numbers: Mapping[str, float]
    left: int


@dataclass(frozen=True)
class Stage:
    """A stage as DVC begins it: it runs, is fetched from the run cache, or has not changed."""

    name: str
    how: How


def read_step(line: str) -> Step | None:
    """The numbers in a line of `tuneloop.progress`; None for any other line."""
    found = _STEP.fullmatch(line)
    if found is None:
        return None
    numbers = dict(word.split("=") for word in found["numbers"].split())
    return Step(int(found["done"]), int(found["total"]), {k: float(v) for k, v in numbers.items()}, int(found["left"]))


def read_stage(line: str) -> Stage | None:
    """The stage that a line of DVC's begins; None for any other line."""
    for how, pattern in _STARTS.items():
        if found := pattern.fullmatch(line):
            return Stage(found[1], how)
    return None


class Output:
    """What a running DVC says, cut into stages. `status` is the exit status, None until DVC has ended; `notes` is
    what people should know of how it was left, known after the block of `running`."""

    def __init__(self, process: subprocess.Popen[str], workspace: Path):
        self._process, self._workspace = process, workspace
        self._next: Stage | None = None
        self._text = iter(process.stdout or ())
        self.status: int | None = None
        self.errors: list[str] = []
        self.experiment: str | None = None
        self.notes: list[str] = []

    def lines(self) -> Iterator[str]:
        """Lines up to the next stage's first or the end of DVC."""
        for text in self._text:
            line = text.rstrip()
            if stage := read_stage(line):
                tidy.note_stage(self._workspace, stage.name if stage.how == "run" else None)
                self._next = stage
                return
            if _ERROR.match(line):
                self.errors.append(line)
            if found := _EXPERIMENT.match(line):
                self.experiment = found[1]
            if line:
                yield line
        self.status = self._process.wait()
        tidy.note_stage(self._workspace, None)
        self._next = None

    def stages(self) -> Iterator[Stage]:
        """The stages in DVC's order. Read all `lines()` of one before asking for the next."""
        while self._next is not None:
            stage, self._next = self._next, None
            yield stage

    @property
    def failed(self) -> bool:
        """DVC has ended and not well."""
        return self.status not in (None, 0)

    @property
    def reason(self) -> str:
        """Why it failed, in the words of the stage or of DVC."""
        said = [line for line in self.errors if line.startswith("[")] or self.errors
        return " ".join(said) or f"dvc ended with status {self.status}"


@contextmanager
def running(
    words: Sequence[str], workspace: Path, held: int, expected: Mapping[str, Any] | None = None
) -> Iterator[Output]:
    """`dvc WORDS` in `workspace` as an Output; the end of the block is the end of DVC.

    `held` is the descriptor of the workspace's lock, which stays locked until DVC is gone. `expected` is what
    an experiment writes into params.yaml, which is put back as it was; None if it writes nothing.
    """
    tidy.tidy(workspace)  # after a run that ended with the machine
    tidy.begin(workspace, expected)
    guard = subprocess.Popen(
        [sys.executable, "-I", str(GUARD), "--afterwards", tidy.__file__, sys.executable, "-m", "dvc", *words],
        cwd=workspace,
        env=variables(workspace),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        pass_fds=(held,),
    )
    assert guard.stdin is not None and guard.stdout is not None
    output = Output(guard, workspace)
    try:
        yield output
    finally:
        # Ends DVC if it still runs; then the guard tidies up, for this process may be killed at any moment.
        guard.stdin.close()
        with guard.stdout as last_words:
            while os.read(last_words.fileno(), 1 << 16):
                pass
        guard.wait(timeout=GUARD_SECONDS)
        output.notes = tidy.tidy(workspace)


def variables(workspace: Path) -> dict[str, str]:
    """The environment of DVC and its stages: this Python first, quiet, unbuffered, nothing reports home."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    # Ray limits the threads of its workers; how many a stage uses is a param, and its result depends on it.
    dropped = ("PREFECT_", "RAY_", *(["OMP_NUM_THREADS"] if "RAY_RAYLET_PID" in os.environ else []))
    own = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return own | {
        "PATH": path,
        "PYTHONUNBUFFERED": "1",
        "DO_NOT_TRACK": "1",
        "DVC_NO_ANALYTICS": "1",
        "DVC_SITE_CACHE_DIR": os.environ.get("DVC_SITE_CACHE_DIR", str(workspace / ".dvc/tmp/site")),
        "GX_ANALYTICS_ENABLED": "false",
        "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "1"),
    }
