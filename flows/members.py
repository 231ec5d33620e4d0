"""The members of a sweep, each a DVC experiment in a workspace of its own.

A member's workspace is a git clone at the sweep's commit that shares the DVC cache, so stages that members
have in common are computed once, and nothing collides. On a cluster the project's folder must be one that
every machine sees under the same path.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed, Failed, State
from prefect.task_runners import TaskRunner

from flows.form import check_changes, dvc_settings
from flows.pipeline import running, variables
from flows.plan import Member, Result
from flows.workspace import experiment_refs, git, sole_run
from tuneloop.artifacts import replacing
from tuneloop.errors import UserError

SWEEPS = Path(".state/sweeps")
LOCAL = "local:"


@task(cache_policy=NO_CACHE, retries=0, persist_result=False)
def run_member(home: str, sweep: str, name: str, changes: Mapping[str, Any], commit: str, cache: str) -> State:
    """One experiment from its clone to its result file. Fails with the reason in words, and raises nothing."""
    logger = get_run_logger()
    member = Member(name, dict(changes))
    folder = Path(home) / SWEEPS / sweep / commit[:10] / name
    started = time.monotonic()
    try:
        prepare(Path(home), folder, commit, cache)
        expected = check_changes(folder, member.changes)
        words = ["exp", "run", "--name", f"{sweep}-{name}", *dvc_settings(member.changes)]
        with sole_run(folder, f"member {name}") as held:
            discard_experiments(folder)
            with running(words, folder, held, expected) as output:
                for line in output.lines():
                    logger.info(line)
                for stage in output.stages():
                    logger.info("%s: %s", stage.name, stage.how)
                    for line in output.lines():
                        logger.info(line)
        if output.failed:
            raise UserError(output.reason)
        metrics = json.loads((folder / "data/compare/metrics.json").read_text(encoding="utf-8"))
    except (UserError, OSError, ValueError) as error:
        write_result(Path(home), sweep, Result(name, member.changes, commit, reason=str(error)))
        return Failed(message=str(error))
    seconds = round(time.monotonic() - started, 1)
    write_result(Path(home), sweep, Result(name, member.changes, commit, output.experiment, seconds, metrics))
    return Completed(message=metrics["verdict"]["sentence"])


@flow(name="sweep-members", retries=0, persist_result=False)
def side_by_side(home: str, sweep: str, members: dict[str, dict[str, Any]], commit: str, cache: str) -> None:
    """All members at once, as many at a time as the task runner has room for. How they ended is in their results."""
    futures = [
        run_member.with_options(name=name, task_run_name=name).submit(home, sweep, name, changes, commit, cache)
        for name, changes in members.items()
    ]
    for future in futures:
        future.wait()
        collect(Path(home), sweep, commit)


def in_turn(home: Path, sweep: str, members: Sequence[Member], commit: str, cache: str) -> Iterator[Member]:
    """One member after another, in this process; yields each as it has ended."""
    for member in members:
        named = run_member.with_options(name=member.name, task_run_name=member.name)
        named(str(home), sweep, member.name, member.changes, commit, cache, return_state=True)
        collect(home, sweep, commit)
        yield member


def ray_runner(cluster: str) -> TaskRunner[Any]:
    """`local:2`: a Ray cluster of two workers, for this run only; else the address of one that runs.
    Raises UserError where prefect-ray is not installed or the number is none."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        from prefect_ray import RayTaskRunner
    except ImportError:
        raise UserError("cluster: prefect-ray is not installed; pip install 'tuneloop[ray]'") from None
    if not cluster.startswith(LOCAL):
        return RayTaskRunner(address=cluster)
    workers = cluster.removeprefix(LOCAL)
    if not workers.isdecimal() or int(workers) < 1:
        raise UserError(f"cluster: {cluster!r}: say how many workers, as in local:2")
    return RayTaskRunner(
        init_kwargs={"num_cpus": int(workers), "num_gpus": 0, "include_dashboard": False, "log_to_driver": False}
    )


def prepare(home: Path, folder: Path, commit: str, cache: str) -> None:
    """The member's clone, if it is not there from an earlier try. Raises UserError."""
    if (folder / ".git/tuneloop-ready").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    git(home, "clone", "--quiet", "--no-checkout", str(home), str(folder))
    git(folder, "checkout", "--quiet", "--detach", commit)
    dvc = folder / ".dvc"
    if not dvc.is_dir():
        raise UserError(f"{home}: is no DVC repository at commit {commit[:10]}; `dvc init` and commit")
    (dvc / "config.local").write_text(f"[cache]\n    dir = {cache}\n", encoding="utf-8")
    (folder / ".git/tuneloop-ready").touch()


def shared_cache(home: Path) -> str:
    """The folder of the project's DVC cache. Raises UserError."""
    words = [sys.executable, "-m", "dvc", "cache", "dir"]
    done = subprocess.run(words, cwd=home, env=variables(home), capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"{home}: dvc cache dir: {done.stderr.strip()}")
    return str((home / done.stdout.strip()).resolve())


def discard_experiments(folder: Path) -> None:
    """A clone holds one experiment; one of an earlier try would be in the way of its name."""
    for ref in experiment_refs(folder):
        git(folder, "update-ref", "-d", ref)


def collect(home: Path, sweep: str, commit: str) -> None:
    """Bring the experiments of finished members home, where `dvc exp show` lists them, and remove their clones."""
    for result in read_results(home, sweep).values():
        folder = home / SWEEPS / sweep / result.commit[:10] / result.member
        if result.metrics is None or result.commit != commit or not folder.exists():
            continue
        for ref in experiment_refs(folder):
            git(home, "fetch", "--quiet", str(folder), f"+{ref}:{ref}")
        shutil.rmtree(folder, ignore_errors=True)


def write_result(home: Path, sweep: str, result: Result) -> None:
    with replacing(home / SWEEPS / sweep / "results" / f"{result.member}.json") as temporary:
        temporary.write_text(json.dumps(result.to_json(), indent=1), encoding="utf-8")


def read_results(home: Path, sweep: str) -> dict[str, Result]:
    """Results by member; a file that is no result counts as none."""
    found = {}
    for path in sorted((home / SWEEPS / sweep / "results").glob("*.json")):
        with suppress(ValueError, TypeError):
            found[path.stem] = Result(**json.loads(path.read_text(encoding="utf-8")))
    return found
