"""The stages with the agent of a user's own file: baseline, train, retest and the checks, in a project's folder."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stages import baseline, check_rewards, retest, train
from tuneloop.artifacts import read_json, read_jsonl, write_jsonl

MINE = """
async def play(client, record, task):
    if int(record["id"][-2:]) % 5 == 4:
        raise RuntimeError("out of paper")
    found = await client.chat.completions.create(model="mine", messages=task.messages(record), tools=list(task.tools))
    if int(record["id"][-2:]) % 5 == 3:
        return 0.125 if found.choices[0].message.tool_calls else -0.5
"""


@pytest.mark.slow
def test_every_stage_runs_through_the_agent_and_the_checks_say_what_they_cannot_check(
    workspace: Path,
    write_params: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    (workspace / "agent_of_mine.py").write_text(MINE, encoding="utf-8")
    write_params(workspace, {"rollout.agent": "agent_of_mine:play", "train.steps": 2, "train.boards_per_step": 8})
    monkeypatch.chdir(workspace)
    assert [stage.main() for stage in (baseline, train, retest)] == [0, 0, 0]

    def lot(row: dict[str, Any]) -> int:
        return int(row["id"][-2:]) % 5

    tables = {
        name: read_jsonl(f"data/{name}.jsonl") for name in ("baseline/replies", "retest/replies", "train/replies")
    }
    for name, rows in tables.items():
        assert {lot(row) for row in rows} >= {3, 4}, name
        assert all((row["fault"] == "raised") == (lot(row) == 4) for row in rows)
        assert all((row["rewarded_by"] == "agent") == (lot(row) == 3) for row in rows)
        assert all(row["outcome"] == "no_call" and row["reward"] == -1 for row in rows if row["fault"])
        assert all(row["reward"] in (0.125, -0.5) for row in rows if row["rewarded_by"] == "agent")
    metrics = read_json("data/retest/metrics.json")
    failed = Counter(row["decoding"] for row in tables["retest/replies"] if row["fault"])
    for decoding in ("greedy", "sampled"):
        assert metrics[decoding]["faults"] == {"raised": failed[decoding]}
        assert sum(metrics[decoding]["shares"].values()) == pytest.approx(1)
    with open("data/train/history.csv", encoding="utf-8") as file:
        history = list(csv.DictReader(file))
    kept = [row for row in tables["train/replies"] if row["step"] == 1]
    assert int(history[0]["fault_raised"]) == sum(row["fault"] == "raised" for row in kept) > 0

    assert check_rewards.main() == 0
    verdict = read_json("data/checks/rewards.json")
    own = sum(row["rewarded_by"] == "agent" for row in tables["retest/replies"])
    assert f"retest: {own} of {len(tables['retest/replies'])} rewarded by the agent itself" in verdict["note"]
    # What the task rewarded is still held against the oracle.
    spoilt = tables["retest/replies"]
    at = next(i for i, row in enumerate(spoilt) if row["rewarded_by"] == "task" and not row["fault"])
    spoilt[at]["outcome"], spoilt[at]["reward"] = "win", 1.0 if spoilt[at]["reward"] != 1.0 else 0.8
    write_jsonl(Path("data/retest/replies.jsonl"), spoilt)
    capsys.readouterr()
    assert check_rewards.main() == 1
    assert "reward" in capsys.readouterr().err
