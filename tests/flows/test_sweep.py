"""Sweeps and comparisons of real DVC experiments, of a pipeline that takes a second (toy.py).

Rewards are worked out by hand: a board is won if its number, 0 to 11, is below 3 + 1000·lr + (seed odd).
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import stdev
from typing import Any

import psutil
import pytest
from prefect import Flow, State
from served import Served, processes, wait_until

from flows.compare import compare
from flows.plan import expand
from flows.sweep import sweep
from tuneloop.errors import UserError

pytestmark = pytest.mark.slow

GRID = {"train.lr": [0.001, 0.004]}
SEEDS = [1, 2]
REPORTS = Path(".state/flows/reports")

Run = Callable[..., State]


@pytest.fixture(scope="module")
def run(toys: Path, served: Served) -> Run:
    """`run(sweep, name="lrs", …)`: the flow in the toy workspace, watched by the shared server; how it ended."""

    def ended(flow: Flow[..., State], **parameters: Any) -> State:
        with served.watching(toys):
            return flow(**parameters, return_state=True)

    return ended


@pytest.fixture(scope="module")
def first(run: Run, break_member: Callable[[str], None]) -> State:
    """A sweep of two learning rates and two seeds, one of which fails."""
    break_member("0.004 2")
    return run(sweep, name="lrs", grid=GRID, seeds=SEEDS)


@pytest.fixture(scope="module")
def again(first: State, run: Run, break_member: Callable[[str], None]) -> State:
    """The same once more, with nothing broken."""
    break_member("")
    return run(sweep, name="lrs", grid=GRID, seeds=SEEDS)


def table(toys: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((toys / REPORTS / name).read_text().splitlines()))


def won(lr: float, seed: int) -> float:
    """The share of boards, by the rule in this module's docstring."""
    return (3 + round(1000 * lr) + seed % 2) / 12


def test_a_failed_member_is_reported_and_stops_no_other(served: Served, first: State) -> None:
    assert first.name == "Failed"
    assert first.message.startswith("1 of 4 members failed (lr0.004-seed2: [train] error: this one is broken)")
    states = {name: task.state_name for name, task in served.tasks(first.state_details.flow_run_id).items()}
    assert states == {
        "lr0.001-seed1": "Completed",
        "lr0.001-seed2": "Completed",
        "lr0.004-seed1": "Completed",
        "lr0.004-seed2": "Failed",
    }


def test_a_restarted_sweep_runs_only_what_is_missing(served: Served, again: State, run: Run) -> None:
    assert again.name == "Completed", again.message
    assert list(served.tasks(again.state_details.flow_run_id)) == ["lr0.004-seed2"]
    third = run(sweep, name="lrs", grid=GRID, seeds=SEEDS)
    assert third.name == "Completed"
    assert served.tasks(third.state_details.flow_run_id) == {}


def test_the_table_has_mean_and_spread_over_seeds(toys: Path, served: Served, again: State) -> None:
    rows = table(toys, "sweeps/lrs/table.csv")
    assert [(row["train.lr"], row["seeds"], row["missing"]) for row in rows] == [
        ("0.001", "2", "0"),
        ("0.004", "2", "0"),
    ]
    for row in rows:
        expected = [won(float(row["train.lr"]), seed) for seed in SEEDS]
        assert float(row["reward after mean"]) == pytest.approx(sum(expected) / 2)
        assert float(row["reward after spread"]) == pytest.approx(stdev(expected))
    shown = json.loads(served.artifacts(again.state_details.flow_run_id)["sweep-lrs"].data)
    # Seed 1 wins 8 of 12 boards, seed 2 wins 7: mean 0.625, deviation 1/12/√2 = 0.059.
    assert shown[1]["reward after"] == "+0.625 ± 0.059"
    assert "| 0.004 | 2 | +0.000 ± 0.000 | +0.625 ± 0.059 |" in (toys / REPORTS / "sweeps/lrs/table.md").read_text()


def test_members_are_experiments_of_the_project_and_the_workspace_is_untouched(
    toys: Path, again: State, variables: Mapping[str, str]
) -> None:
    words = [sys.executable, "-m", "dvc", "exp", "list", "--name-only"]
    listed = subprocess.run(words, cwd=toys, env=variables, capture_output=True, text=True)
    assert {f"lrs-lr{lr}-seed{seed}" for lr in GRID["train.lr"] for seed in SEEDS} <= set(listed.stdout.split())
    status = subprocess.run(["git", "status", "--porcelain"], cwd=toys, capture_output=True, text=True)
    assert status.stdout == ""
    assert not list((toys / ".state/sweeps/lrs").glob("*/lr*/dvc.yaml")), "clones of finished members are removed"


def test_a_comparison_pairs_experiments_board_by_board(toys: Path, served: Served, again: State, run: Run) -> None:
    names = ["lrs-lr0.001-seed2", "lrs-lr0.004-seed2", "lrs-lr0.001-seed1"]
    done = run(compare, revisions=names, name="two")
    assert done.name == "Completed", done.message
    chosen, other, third = table(toys, "comparisons/two/table.csv")
    assert [row["experiment"] for row in (chosen, other, third)] == names
    assert (other["train.lr"], other["seed"], third["seed"]) == ("0.004", "2", "1")
    assert "train.steps" not in other, "only what differs is shown"
    assert chosen["difference value"] == ""
    # Won boards 7 of 12 against 4 of 12, and 5 of 12 against 4 of 12.
    assert float(other["difference value"]) == pytest.approx(3 / 12)
    assert float(other["difference low"]) < 3 / 12 < float(other["difference high"])
    assert float(third["difference value"]) == pytest.approx(1 / 12)
    assert float(other["reward value"]) == pytest.approx(won(0.004, 2))
    artifacts = served.artifacts(done.state_details.flow_run_id)
    assert json.loads(artifacts["compare-two"].data)[1]["reward against lrs-lr0.001-seed2"].startswith("+0.250 [")
    page = (toys / REPORTS / "comparisons/two/index.html").read_text()
    assert "lrs-lr0.004-seed2" in page
    assert "http" not in page.replace("http-equiv", ""), "the page needs nothing else"


def test_what_cannot_be_compared_is_said_in_words(run: Run, again: State) -> None:
    done = run(compare, revisions=["lrs-lr0.001-seed1", "lrs-lr0.002-seed1"])
    assert done.name == "Failed"
    assert "'lrs-lr0.002-seed1' is neither an experiment nor a git revision" in done.message
    done = run(compare, revisions=["lrs-lr0.001-seed1", "HEAD"])
    assert "HEAD: has no data/compare/metrics.json" in done.message


def test_two_ray_workers_run_two_members_at_a_time_and_a_failed_one_stops_no_other(
    toys: Path, served: Served, again: State, run: Run, break_member: Callable[[str], None]
) -> None:
    pytest.importorskip("prefect_ray")
    break_member("0.004 4")
    done = run(sweep, name="ray", grid=GRID, seeds=[3, 4], cluster="local:2")
    break_member("")
    assert done.name == "Failed"
    assert done.message.startswith("1 of 4 members failed (lr0.004-seed4: [train] error: this one is broken)")
    rows = table(toys, "sweeps/ray/table.csv")
    assert [(row["seeds"], row["missing"]) for row in rows] == [("2", "0"), ("1", "1")]
    means = [float(row["reward after mean"]) for row in rows]
    assert means == pytest.approx([(won(0.001, 3) + won(0.001, 4)) / 2, won(0.004, 3)])
    runs = served.client.read_flow_runs()
    (members,) = [run.id for run in runs if served.client.read_flow(run.flow_id).name == "sweep-members"]
    spans = sorted((task.start_time, task.end_time) for task in served.tasks(members).values())
    assert len(spans) == 4
    assert any(later[0] < earlier[1] for earlier, later in pairwise(spans)), "two at a time"
    wait_until(lambda: not [p for p in psutil.Process().children(recursive=True) if "ray" in p.name()], 20)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"grid": {"train.lrr": [1e-3]}}, "train.lrr: there is no such key; the nearest is train.lr"),
        ({"listed": [{"train.steps": 0}]}, "train.steps: Input should be greater than or equal to 1"),
        ({"cluster": "local:none", "seeds": [8]}, "say how many workers, as in local:2"),
    ],
)
def test_a_wrong_sweep_is_refused_before_anything_runs(run: Run, parameters: dict[str, Any], said: str) -> None:
    done = run(sweep, name="wrong", **parameters)
    assert done.name == "Failed"
    assert said in done.message


def test_members_are_the_grid_times_the_list_times_the_seeds_and_never_the_same() -> None:
    members = expand({"train.lr": [1, 2]}, [{"train": {"steps": 5}}, {"train.steps": 6}], [7, 8])
    assert len(members) == 8
    assert members[0].changes == {"train.lr": 1, "train.steps": 5, "seed": 7}
    assert len({member.name for member in members}) == 8
    assert [member.name for member in expand({}, [], [])] == ["as-it-is"]
    odd = expand({"policy.source": ["a/b", "a_b"]}, [], [])
    assert len({member.name for member in odd}) == 2
    with pytest.raises(UserError, match="is given twice"):
        expand({"seed": [1]}, [], [2])
    with pytest.raises(UserError, match="needs a list of values"):
        expand({"train.lr": []}, [], [])


def test_nothing_of_the_sweeps_is_left_running(toys: Path, again: State) -> None:
    assert processes(toys) == {}
