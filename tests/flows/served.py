"""A workspace with everything that `make ui` runs, and what tests want to know of it."""

from __future__ import annotations

import json
import os
import pty
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import ArtifactFilter, FlowRunFilter, LogFilter
from prefect.client.schemas.objects import FlowRun, TaskRun
from prefect.settings import PREFECT_API_URL, temporary_settings

SOURCES = (".dvc/config", ".dvc/.gitignore", ".dvcignore", ".gitignore", "dvc.yaml", "prefect.yaml", "pyproject.toml")
FOLDERS = ("stages", "tuneloop", "flows", "agent", "examples")
STEPS = 60
"""Of training: enough that a run can be stopped in the middle."""
COMPUTES = ("-m dvc ", "stages.", "prefect.engine")
"""In the command line of every process that a flow run consists of."""


@dataclass(frozen=True)
class Served:
    """A workspace with everything that `make ui` runs, and a client of its server."""

    workspace: Path
    port: int
    client: SyncPrefectClient
    ui: subprocess.Popen[bytes]
    terminal: int
    variables: Mapping[str, str]

    def start(self, deployment: str, **parameters: Any) -> UUID:
        """Trigger a deployment, as the UI does."""
        found = self.client.read_deployment_by_name(f"{deployment}/{deployment}")
        return self.client.create_flow_run_from_deployment(found.id, parameters=parameters).id

    @contextmanager
    def watching(self, folder: Path | None = None) -> Iterator[None]:
        """In this process: flows called here run in `folder`, the workspace if not said, and are seen by the server."""
        variables = {name: value for name, value in self.variables.items() if os.environ.get(name) != value}
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder or self.workspace)
            for name, value in variables.items():
                patch.setenv(name, value)
            with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{self.port}/api"}):
                yield

    def ended(self, run: UUID, seconds: float = 180) -> FlowRun:
        """The run once it has ended."""
        wait_until(lambda: self.client.read_flow_run(run).state.is_final(), seconds, lambda: self.log("worker"))
        return self.client.read_flow_run(run)

    def tasks(self, run: UUID) -> dict[str, TaskRun]:
        """The tasks of a run that has ended, by name, in the order of their start.

        Their last states reach the server as events, some of them a moment after the run's own.
        """
        of_run = FlowRunFilter(id={"any_": [run]})

        def still_on_the_way() -> bool:
            tasks = self.client.read_task_runs(flow_run_filter=of_run)
            return any(task.state_name in (None, "Pending", "Running") for task in tasks)

        wait_until(lambda: not still_on_the_way(), 30, lambda: self.log("server"))
        found = self.client.read_task_runs(flow_run_filter=of_run)
        return {task.name: task for task in sorted(found, key=lambda task: task.start_time or task.created)}

    def messages(self, run: UUID) -> list[str]:
        """What the run has logged, as the UI shows it."""
        lines, page = [], 200
        while found := self.client.read_logs(LogFilter(flow_run_id={"any_": [run]}), limit=page, offset=len(lines)):
            lines += found
        return [line.message for line in sorted(lines, key=lambda line: line.timestamp)]

    def artifacts(self, run: UUID) -> dict[str, Any]:
        """What the run left, by key."""
        found = self.client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id={"any_": [run]}))
        return {artifact.key: artifact for artifact in found}

    def pids(self, *words: str, besides: str | None = None) -> set[int]:
        """The processes in the workspace with one of the words, and not `besides`, in their command line."""
        return {
            pid
            for pid, line in processes(self.workspace).items()
            if any(word in line for word in words) and not (besides and besides in line)
        }

    def computing(self) -> set[int]:
        """The processes of flow runs in the workspace."""
        return self.pids(*COMPUTES)

    def log(self, name: str) -> str:
        return (self.workspace / f".state/prefect/{name}.log").read_text(encoding="utf-8", errors="replace")


def processes(folder: Path) -> dict[int, str]:
    """The command lines of all processes that work in `folder`, by id; those that have ended do not count."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if Path(process.cwd()).is_relative_to(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = " ".join(process.cmdline())
    return found


def wait_until(happened: Callable[[], object], seconds: float, said: Callable[[], str] = str) -> float:
    """Seconds until `happened()`; fails with what `said()` after `seconds`."""
    started = time.monotonic()
    while not happened():
        assert time.monotonic() - started < seconds, f"not within {seconds} s\n{said()}"
        time.sleep(0.1)
    return time.monotonic() - started


def free_port() -> int:
    """A port that is free, and so is the next."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            with suppress(OSError, OverflowError):
                other.bind(("127.0.0.1", one.getsockname()[1] + 1))
                return one.getsockname()[1]


def copy_project(root: Path, folder: Path) -> None:
    """The project's code as it is now."""
    for name in SOURCES:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(root / name, folder / name)
    for name in FOLDERS:
        shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))


def light_checks(root: Path, folder: Path) -> None:
    """Checks that pass at once: half of a tiny pipeline's time is Great Expectations', and tests/stages has that."""
    shutil.copytree(root / "data/checks", folder / "checked")
    pipeline = (folder / "dvc.yaml").read_text(encoding="utf-8")
    for name in ("boards", "rewards"):
        real, light = f"python -m stages.check_{name}", f"cp checked/{name}.json data/checks/{name}.json"
        assert real in pipeline
        pipeline = pipeline.replace(real, light)
    (folder / "data/checks").mkdir(parents=True)
    (folder / "dvc.yaml").write_text(pipeline, encoding="utf-8")


def commit_all(folder: Path, variables: Mapping[str, str]) -> None:
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "as it is"]):
        subprocess.run(["git", *words], cwd=folder, env=variables, check=True)


def start_ui(folder: Path, port: int, variables: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """`python -m flows.ui` in a terminal of its own; the process and the terminal's other end."""
    ours, theirs = pty.openpty()

    def own_terminal() -> None:
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [sys.executable, "-m", "flows.ui", "--port", str(port)],
        cwd=folder,
        env=variables,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=own_terminal,
    )
    os.close(theirs)
    return process, ours


def read_until(terminal: int, text: str) -> str:
    """What the terminal shows up to `text`; fails if the program ends before."""
    shown = ""
    while text not in shown:
        try:
            shown += os.read(terminal, 4096).decode(errors="replace")
        except OSError:
            pytest.fail(f"{text!r} did not come:\n{shown}")
    return shown


def resume_states(folder: Path) -> set[str]:
    return {path.name for path in folder.glob(".state/train/*/step-*.pt")}


def wait_for_training(served: Served, run: UUID) -> None:
    """Until the run has trained at least one step more than what was saved."""
    before = resume_states(served.workspace)

    def training() -> bool:
        state = served.client.read_flow_run(run).state
        assert not state.is_final(), f"{state}\n{served.log('worker')}"
        return bool(resume_states(served.workspace) - before)

    wait_until(training, 120, lambda: served.log("worker"))


def nothing_left(served: Served) -> None:
    """After a run was stopped: no process, no lock, no half-written out, params.yaml as committed."""
    assert served.computing() == set()
    rwlock = json.loads((served.workspace / ".dvc/tmp/rwlock").read_text())
    assert not any(rwlock.values())
    assert not list(served.workspace.glob("data/train/*"))
    assert not list(served.workspace.glob("data/**/.*.tmp"))
    assert not (served.workspace / ".state/flows/running.json").exists()
    changed = subprocess.run(
        ["git", "diff", "--name-only", "params.yaml"], cwd=served.workspace, capture_output=True, text=True
    )
    assert changed.stdout == ""
    # DVC itself finds the workspace free.
    status = [sys.executable, "-m", "dvc", "status"]
    done = subprocess.run(status, cwd=served.workspace, env=dict(served.variables), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
