"""One real server, work pool and worker for all tests of the flows, started as `make ui` starts them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import toy
from prefect.client.orchestration import SyncPrefectClient
from served import STEPS, Served, commit_all, copy_project, free_port, light_checks, read_until, start_ui

from flows.pipeline import GUARD


@pytest.fixture(scope="session")
def variables(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What processes of these tests find: nothing of this machine's git, DVC and Prefect settings."""
    elsewhere = tmp_path_factory.mktemp("settings")
    kept = {name: value for name, value in environment.items() if not name.startswith(("PREFECT_", "PYTHONPATH"))}
    return kept | {
        "DO_NOT_TRACK": "1",
        "DVC_NO_ANALYTICS": "1",
        "DVC_SITE_CACHE_DIR": str(elsewhere / "site"),
        "DVC_GLOBAL_CONFIG_DIR": str(elsewhere / "global"),
        "DVC_SYSTEM_CONFIG_DIR": str(elsewhere / "system"),
        "PREFECT_HOME": str(elsewhere / "prefect"),
        "PREFECT_PROFILES_PATH": str(elsewhere / "profiles.toml"),
        "HF_HUB_OFFLINE": "1",
        "TOY_BROKEN": str(elsewhere / "broken"),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        **{f"GIT_{who}_{what}": "test@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }


@pytest.fixture(scope="session")
def served(
    root: Path,
    variables: dict[str, str],
    write_params: Callable[..., None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    # Every step's state is saved: a run can be stopped anywhere.
    write_params(folder, {"train.steps": STEPS, "train.evaluate_every": 100, "train.keep_replies_every": 100})
    copy_project(root, folder)
    light_checks(root, folder)
    commit_all(folder, variables)
    # The stages before training, while the server starts: the runs of the tests find them done.
    with subprocess.Popen(
        [sys.executable, "-I", str(GUARD), sys.executable, "-m", "dvc", "repro", "baseline"],
        cwd=folder,
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as first_stages:
        port = free_port()
        ui, terminal = start_ui(folder, port, variables)
        try:
            read_until(terminal, "ready: ")
            said = first_stages.stdout.read()
            assert first_stages.wait() == 0, said
            with SyncPrefectClient(f"http://127.0.0.1:{port}/api") as client:
                yield Served(folder, port, client, ui, terminal, variables)
        finally:
            with suppress(ProcessLookupError):
                os.kill(ui.pid, signal.SIGTERM)
            first_stages.stdin.close()
            ui.wait(timeout=60)
            with suppress(OSError):
                os.close(terminal)


@pytest.fixture(scope="module")
def toys(root: Path, variables: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git and DVC workspace with this project's params.yaml and the pipeline of toy.py, all committed."""
    folder = tmp_path_factory.mktemp("toys")
    for name in (".dvc/config", ".dvc/.gitignore", ".dvcignore", ".gitignore", "params.yaml"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(root / name, folder / name)
    shutil.copyfile(Path(toy.__file__), folder / "toy.py")
    (folder / "dvc.yaml").write_text(toy.PIPELINE, encoding="utf-8")
    commit_all(folder, variables)
    return folder


@pytest.fixture(scope="module")
def break_member(variables: dict[str, str]) -> Callable[[str], None]:
    """`break_member("LR SEED")`: the toy's training with these fails, and with no other."""

    def write(text: str) -> None:
        Path(variables["TOY_BROKEN"]).write_text(text, encoding="utf-8")

    write("")
    return write
