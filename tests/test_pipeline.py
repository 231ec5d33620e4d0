"""The pipeline as people run it: `dvc repro` in a repository of its own, with tiny numbers.

Eight stages of Python with large libraries take about a minute, so all claims share two runs: one left
in peace, and one in another clone that is killed during training and started again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tuneloop.artifacts import read_jsonl, write_jsonl

pytestmark = pytest.mark.slow

SOURCES = (".dvc/config", ".dvc/.gitignore", ".dvcignore", ".gitignore", "dvc.yaml", "pyproject.toml")
FOLDERS = ("stages", "tuneloop", "agent", "examples")
STAGES = ["boards", "check_boards", "policy", "baseline", "train", "retest", "check_rewards", "compare"]
QUOTES_TIMES = ("timings.json", "timings.csv", "report.html")

Command = Callable[..., subprocess.CompletedProcess[str]]
Clone = Callable[..., Path]


@dataclass(frozen=True)
class Runs:
    """Two clones after their runs, and what the runs said."""

    first: Path
    log: str
    log_of_second_repro: str
    killed: Path
    log_until_killed: str
    log_after: str


@pytest.fixture(scope="module")
def variables(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """As the Makefile sets them, with DVC's and git's own files outside this machine's."""
    elsewhere = tmp_path_factory.mktemp("settings")
    return {name: value for name, value in environment.items() if name != "PYTHONPATH"} | {
        "DO_NOT_TRACK": "1",
        "DVC_NO_ANALYTICS": "1",
        "DVC_SITE_CACHE_DIR": str(elsewhere / "site"),
        "DVC_GLOBAL_CONFIG_DIR": str(elsewhere / "global"),
        "DVC_SYSTEM_CONFIG_DIR": str(elsewhere / "system"),
        "GX_ANALYTICS_ENABLED": "false",
        "HF_HUB_OFFLINE": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        **{f"GIT_{who}_{what}": "test@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }


@pytest.fixture(scope="module")
def run(variables: dict[str, str]) -> Command:
    """`run(folder, "dvc", "repro")`: the finished process; a status other than `status` fails the test."""

    def command(folder: Path, *words: str, status: int | None = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, timeout=300)
        assert status is None or done.returncode == status, done.stdout + done.stderr
        return done

    return command


@pytest.fixture(scope="module")
def clone(
    root: Path, tmp_path_factory: pytest.TempPathFactory, write_params: Callable[..., None], run: Command
) -> Clone:
    """A new git repository with this project's code as it is now and tiny parameters, all committed."""

    def make(changes: Mapping[str, Any] = {}) -> Path:
        folder = tmp_path_factory.mktemp("clone")
        for name in SOURCES:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(root / name, folder / name)
        for name in FOLDERS:
            shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        write_params(folder, changes)
        run(folder, "git", "init", "--quiet")
        commit(run, folder)
        return folder

    return make


def commit(run: Command, folder: Path) -> None:
    run(folder, "git", "add", "--all")
    run(folder, "git", "commit", "--quiet", "--message", "as it is")


@pytest.fixture(scope="module")
def runs(clone: Clone, run: Command, variables: dict[str, str]) -> Runs:
    first, killed = clone(), clone()

    def repro(folder: Path, log: str) -> subprocess.Popen[bytes]:
        with open(folder.parent / f"{folder.name}-{log}.txt", "wb") as file:
            return subprocess.Popen(
                ["dvc", "repro"], cwd=folder, env=variables, stdout=file, stderr=file, start_new_session=True
            )

    def said(folder: Path, log: str) -> str:
        return (folder.parent / f"{folder.name}-{log}.txt").read_text(encoding="utf-8")

    # Both at once: a stage spends most of its time on one core, importing.
    in_peace, to_kill = repro(first, "whole"), repro(killed, "killed")
    try:
        while not list(killed.glob(".state/train/*/step-*.pt")):
            assert to_kill.poll() is None, said(killed, "killed")
            time.sleep(0.005)
        os.killpg(to_kill.pid, signal.SIGKILL)
        to_kill.wait()
        again = repro(killed, "again")
        assert again.wait(timeout=300) == 0, said(killed, "again")
        assert in_peace.wait(timeout=300) == 0, said(first, "whole")
    finally:
        for process in (in_peace, to_kill):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    second = run(first, "dvc", "repro").stdout
    commit(run, first)
    return Runs(first, said(first, "whole"), second, killed, said(killed, "killed"), said(killed, "again"))


def started(log: str) -> list[str]:
    return re.findall(r"Running stage '(\w+)'", log)


def outs(folder: Path) -> dict[str, str]:
    """The hash of every out in dvc.lock."""
    lock = YAML(typ="safe").load((folder / "dvc.lock").read_text(encoding="utf-8"))
    return {out["path"]: out["md5"] for stage in lock["stages"].values() for out in stage["outs"]}


def test_one_command_runs_all_stages_and_ends_in_a_verdict(runs: Runs) -> None:
    assert sorted(started(runs.log)) == sorted(STAGES)
    place = {stage: number for number, stage in enumerate(started(runs.log))}
    for before, after in (
        ("boards", "check_boards"),
        ("check_boards", "policy"),
        ("policy", "baseline"),
        ("policy", "train"),
        ("train", "retest"),
        ("retest", "check_rewards"),
        ("check_rewards", "compare"),
    ):
        assert place[before] < place[after]
    summary = (runs.first / "data/compare/summary.txt").read_text(encoding="utf-8")
    assert re.search(r"\b(improved|no change shown|worse)\b", summary, re.IGNORECASE)
    assert json.loads((runs.first / "data/checks/rewards.json").read_text())["success"] is True
    assert "Traceback" not in runs.log
    assert "Warning" not in runs.log


def test_a_second_repro_runs_nothing(runs: Runs) -> None:
    assert re.findall(r"Stage '(\w+)' didn't change, skipping", runs.log_of_second_repro) == started(runs.log)
    assert started(runs.log_of_second_repro) == []


def test_a_run_killed_in_training_and_started_again_ends_in_the_same_bytes_as_another_clone(runs: Runs) -> None:
    assert started(runs.log_until_killed)[-1] == "train"
    assert "[train] ended" not in runs.log_until_killed
    assert "continuing after step" in runs.log_after
    assert not {"boards", "check_boards", "policy"} & set(started(runs.log_after)), "what was done is not done again"
    one, other = outs(runs.first), outs(runs.killed)
    assert one.keys() == other.keys()
    results = [path for path in one if not path.endswith(QUOTES_TIMES)]
    assert {path: one[path] for path in results} == {path: other[path] for path in results}
    assert len(results) > 20
    assert one["data/train/policy"] != one["data/policy/model"], "else nothing was trained"


def test_a_git_clone_with_the_cache_has_every_out_and_nothing_to_run(runs: Runs, run: Command, tmp_path: Path) -> None:
    run(tmp_path, "git", "clone", "--quiet", str(runs.first), "copy")
    copy = tmp_path / "copy"
    shutil.copytree(runs.first / ".dvc/cache/files", copy / ".dvc/cache/files")
    run(copy, "dvc", "checkout")
    assert run(copy, "dvc", "status").stdout == "Data and pipelines are up to date.\n"


def test_an_experiment_is_one_command_and_can_be_compared(runs: Runs, run: Command) -> None:
    before = outs(runs.first)
    log = run(runs.first, "dvc", "exp", "run", "-S", "train.steps=2", "-S", "seed=7").stdout
    assert started(log) == [stage for stage in started(runs.log) if "boards" not in stage], "the boards are the same"
    assert outs(runs.first)["data/train/policy"] != before["data/train/policy"]

    table = json.loads(run(runs.first, "dvc", "exp", "show", "--json").stdout)
    head = table[1]
    found = head["experiments"][0]["revs"][0]["data"]
    params = found["params"]["params.yaml"]["data"]
    assert (params["train"]["steps"], params["seed"]) == (2, 7)
    assert found["metrics"]["data/train/metrics.json"]["data"]["steps"] == 2

    metrics = run(runs.first, "dvc", "metrics", "diff", "--json")
    diff = json.loads(metrics.stdout)
    assert diff["data/train/metrics.json"]["steps"] == {"old": 4, "new": 2, "diff": -2}
    assert any("reward" in key for key in diff["data/compare/metrics.json"])
    assert "failed to load" not in metrics.stderr

    plots = run(runs.first, "dvc", "plots", "diff", "HEAD", "--out", "dvc_plots")
    page = (runs.first / "dvc_plots/index.html").read_text(encoding="utf-8")
    for drawn in ("data/train/history.csv", "data/train/evaluations.csv", "data/compare/plots"):
        assert drawn in page
    assert "failed to load" not in plots.stderr
    assert "dvc_plots" not in run(runs.first, "git", "status", "--porcelain").stdout


def test_a_wrong_key_is_one_clear_line_and_a_spoiled_board_stops_all_later_stages(
    clone: Clone, run: Command, write_params: Callable[..., None]
) -> None:
    folder = clone({"train.stepz": 4})
    refused = run(folder, "dvc", "repro", status=None)
    assert refused.returncode != 0
    said = [line for line in refused.stderr.splitlines() if line.startswith("[")]
    assert said == ["[boards] error: params.yaml: train.stepz: there is no such key; the nearest is train.steps"]
    assert "Traceback" not in refused.stdout + refused.stderr
    assert not list(folder.glob("data/boards/*.jsonl"))

    write_params(folder)
    run(folder, "dvc", "repro", "boards")
    spoiled = read_jsonl(folder / "data/boards/train.jsonl")[5]["id"]
    for name in ("boards", "train"):
        path = folder / f"data/boards/{name}.jsonl"
        records = read_jsonl(path)
        for record in records:
            if record["id"] == spoiled:
                record["board"] = [["X", "X", "X"], ["O", "O", "."], ["O", ".", "."]]
        path.unlink()
        write_jsonl(path, records)
    run(folder, "dvc", "commit", "--force", "boards")

    stopped = run(folder, "dvc", "repro", status=None)
    assert stopped.returncode != 0
    assert started(stopped.stdout) == ["check_boards"]
    assert re.search(rf"boards: nobody_has_won: .*\[{spoiled}\]", stopped.stderr)
    assert "Traceback" not in stopped.stdout + stopped.stderr
    assert not (folder / "data/policy").exists()
    verdict = json.loads((folder / "data/checks/boards.json").read_text())
    assert verdict["success"] is False
    assert started(run(folder, "dvc", "repro", status=None).stdout) == ["check_boards"], "a failed check never counts"
