"""`task.mode: game` through the stages: what baseline, train, retest, check_rewards and compare make of whole games."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from tuneloop.artifacts import read_json, read_jsonl

pytestmark = pytest.mark.slow

GAME = {
    "task.mode": "game",
    "train.steps": 2,
    "train.boards_per_step": 8,
    "train.keep_replies_every": 1,
    "evaluate.samples": 1,
    "evaluate.games": 1,
}


def test_whole_games_go_through_the_pipeline_from_baseline_to_report(
    workspace: Path, write_params: Callable[..., None], monkeypatch: pytest.MonkeyPatch
):
    write_params(workspace, GAME)
    monkeypatch.chdir(workspace)
    for name in ("baseline", "train", "retest", "check_rewards", "compare"):
        assert import_module(f"stages.{name}").main() == 0, name
    assert read_json(workspace / "data/checks/rewards.json")["success"]
    trained = read_jsonl(workspace / "data/train/replies.jsonl")
    assert {len(row["turns"]) for row in trained} > {1}
    # Held-out boards are asked as in move mode: single replies, with the outcomes of moves.
    retest = read_jsonl(workspace / "data/retest/replies.jsonl")
    assert all("turns" not in row for row in retest) and {row["outcome"] for row in retest} & {
        "legal",
        "optimal",
        "win",
    }
    assert "Training" in (workspace / "data/compare/report.html").read_text(encoding="utf-8")
