"""The table of algorithms: runs that differ in their seed alone are one line, and its numbers are theirs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from tuneloop.errors import UserError


def interval(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.1, "high": value + 0.1}


def change(before: float, after: float) -> dict[str, Any]:
    return {"before": interval(before), "after": interval(after), "difference": interval(after - before)}


@pytest.fixture
def finished(tmp_path: Path, write_params: Callable[..., None]) -> Callable[..., None]:
    """`finished("name", changes, reward)`: a run's folder with what the table reads of it."""

    def make(name: str, changes: Mapping[str, Any], reward: float) -> None:
        folder = tmp_path / name / "data/compare"
        folder.mkdir(parents=True)
        write_params(tmp_path / name, changes)
        sampled = {"reward": change(-0.4, reward), "legal": change(0.5, 1.0), "optimal": change(0.2, 0.75)}
        numbers = {"sampled": sampled, "lengths": {"sampled": {"after": {"all": 15.0}}}}
        (folder / "metrics.json").write_text(json.dumps(numbers))

    return make


def test_seeds_of_one_setting_are_one_line_with_their_mean_and_spread(
    finished: Callable, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(root))
    from bench.algorithms_table import runs, table

    finished("c", {"train.algorithm": "dpo", "train.dpo_beta": 0.25, "seed": 2}, 0.6)
    finished("a", {"train.algorithm": "dpo", "train.dpo_beta": 0.25, "seed": 1}, 0.5)
    finished("b", {"train.algorithm": "gspo", "seed": 1}, 0.9)
    _, _, first, second = table(list(runs([tmp_path])))
    assert first.startswith("| tictactoe | gspo | 0.001 | 1 | −0.400 | **+0.900** | +1.300 [+1.200, +1.400] |")
    after = f"**+0.550 ± {stdev([0.5, 0.6]):.3f}**"
    assert second.startswith(f"| tictactoe | dpo, β 0.25 | 0.001 | 1, 2 | −0.400 ± 0.000 | {after} |")
    assert "+0.900 [+0.800, +1.000]; +1.000 [+0.900, +1.100]" in second
    # The tiny parameters: 4 steps of 4 boards with 4 replies.
    assert second.endswith("| legal 100.0 %, optimal 75.0 % | 64 | 15.0 |")


def test_a_folder_without_a_run_is_refused(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(root))
    from bench.algorithms_table import runs

    with pytest.raises(UserError, match=r"no compare/metrics\.json under"):
        list(runs([tmp_path]))
