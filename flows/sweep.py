"""sweep: many experiments, and their mean and spread over seeds.

    grid    {"train.lr": [2e-4, 4e-4], "train.entropy_bonus": [0, 0.01]}    every combination
    listed  [{"train.steps": 200}, {"train.steps": 400}]                    as they are
    seeds   [2026, 1, 2]                                                    every one of them under every seed

On one machine the members run one after another; `cluster` hands them to Ray. Each starts from the commit
that is checked out. A member that fails is reported and stops no other; started again under the same name,
a sweep runs only what is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.states import Completed, Failed, State

from flows import plan
from flows.form import check_changes
from flows.members import SWEEPS, collect, in_turn, ray_runner, read_results, shared_cache, side_by_side
from flows.plan import Member, Result
from flows.shown import REPORTS, artifact_key, report_url
from flows.workspace import check_name, git, head, sole_run
from tuneloop.artifacts import write_csv, write_text
from tuneloop.errors import UserError


@flow(name="sweep", retries=0, persist_result=False)
def sweep(
    name: str,
    grid: dict[str, list[Any]] = {},  # noqa: B006
    listed: list[dict[str, Any]] = [],  # noqa: B006
    seeds: list[int] = [],  # noqa: B006
    cluster: str | None = None,
) -> State:
    """Run the members that are missing, then show the table over all of them.

    name: experiments are called NAME-MEMBER. cluster: nothing, one after another; local:2, two Ray workers on this
    machine; or the address of a Ray cluster.
    """
    home = Path.cwd()
    try:
        check_name(name)
        members = plan.expand(grid, listed, seeds)
        for member in members:
            check_changes(home, member.changes)
        commit = head(home)
        _warn_of_uncommitted(home)
        (home / SWEEPS / name).mkdir(parents=True, exist_ok=True)
        with sole_run(home / SWEEPS / name, f"sweep {name}"):
            _run_missing(home, name, members, commit, cluster)
            return _show(home, name, members, commit)
    except UserError as error:
        return Failed(message=str(error))


def _run_missing(home: Path, name: str, members: list[Member], commit: str, cluster: str | None) -> None:
    collect(home, name, commit)
    missing = _missing(home, name, members, commit)
    get_run_logger().info("%d members, %d of them missing", len(members), len(missing))
    if not missing:
        return
    cache = shared_cache(home)
    if cluster is not None:
        run = side_by_side.with_options(task_runner=ray_runner(cluster))
        run(str(home), name, {member.name: member.changes for member in missing}, commit, cache)
        return
    shown = create_progress_artifact(
        0.0, key=artifact_key(f"progress-sweep-{name}"), description=f"0 of {len(missing)}"
    )
    for done, member in enumerate(in_turn(home, name, missing, commit, cache), 1):
        update_progress_artifact(
            shown,
            100.0 * done / len(missing),
            description=f"{done} of {len(missing)}, last {member.name}",  # type: ignore[arg-type]
        )


def _missing(home: Path, name: str, members: list[Member], commit: str) -> list[Member]:
    results = read_results(home, name)
    return [m for m in members if m.name not in results or not results[m.name].answers(m, commit)]


def _current(home: Path, name: str, members: list[Member], commit: str) -> dict[str, Result]:
    """Results on this commit, of these members."""
    results, wanted = read_results(home, name), {m.name: m.changes for m in members}
    return {n: r for n, r in results.items() if r.commit == commit and wanted.get(n) == r.changes}


def _show(home: Path, name: str, members: list[Member], commit: str) -> State:
    """Table, CSV files and text; Failed if any member did not finish."""
    results = _current(home, name, members, commit)
    rows, each = plan.table(members, results), plan.member_rows(members, results)
    shown = plan.shown_rows(rows)
    folder = home / REPORTS / "sweeps" / name
    write_csv(folder / "table.csv", rows)
    write_csv(folder / "members.csv", each)
    failed = {
        m.name: results[m.name].reason or "" for m in members if m.name in results and not results[m.name].metrics
    }
    failed |= {m.name: "did not run" for m in members if m.name not in results}
    lines = [
        f"# Sweep {name}\n",
        f"{len(members)} experiments on commit {commit[:10]}; mean ± sample standard deviation over seeds.\n",
        plan.markdown(shown),
        *(f"- **{member}** failed: {reason}" for member, reason in failed.items()),
    ]
    where = report_url(home, f"sweeps/{name}")
    write_text(folder / "table.md", "\n".join(lines) + "\n")
    create_table_artifact(
        shown, key=artifact_key(f"sweep-{name}"), description=f"Sweep {name}, mean ± spread over seeds"
    )
    links = f"\n[table.csv]({where}/table.csv) · [members.csv]({where}/members.csv) · [table.md]({where}/table.md)\n"
    create_markdown_artifact(
        "\n".join([*lines, links]), key=artifact_key(f"sweep-{name}-text"), description=f"Sweep {name}"
    )
    if failed:
        said = "; ".join(f"{member}: {reason}" for member, reason in failed.items())
        return Failed(message=f"{len(failed)} of {len(members)} members failed ({said}); the table has the others")
    return Completed(message=f"{len(members)} members")


def _warn_of_uncommitted(home: Path) -> None:
    changed = git(home, "status", "--porcelain", "--untracked-files=no").splitlines()
    files = [line[3:] for line in changed if not line[3:].startswith(("data/", "dvc.lock"))]
    if files:
        get_run_logger().warning("not committed, so not in this sweep: %s", ", ".join(files))
