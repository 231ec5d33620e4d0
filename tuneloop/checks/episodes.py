"""The reward table of a training on whole episodes (`task.mode: game`): every row is an episode with all its turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tuneloop.checks.replies import TRAINING_COLUMNS, Rows, Setting, training_tables
from tuneloop.checks.verdict import Table
from tuneloop.errors import UserError
from tuneloop.tasks.contract import Episodes
from tuneloop.toolcalls.contract import Reasoning

COLUMNS = TRAINING_COLUMNS | {"turns": (list,)}
TURN = {"text": str, "call": str | None, "result": str | None, "reward": float | None, "length": int}


def episode_tables(
    name: str, rows: Rows, setting: Setting, group_size: int, steps: int, episodes: Episodes, reward_at: str
) -> list[Table]:
    """As `training_tables`, outcome and reward held against the task's `episode_oracle`. Raises UserError for a task
    whose checks have none."""
    oracle = getattr(setting.checks, "episode_oracle", None)
    if oracle is None:
        raise UserError(
            f"task.mode: the checks of {setting.task.name} have no episode_oracle; see tuneloop/checks/contract.py"
        )

    def of_row(shown: str, row: Mapping[str, Any], reasoning: Reasoning | None, dialect: str) -> tuple[Any, Any]:
        if not _documented(row.get("turns")):
            return "turns not as documented", None
        return oracle(shown, row["turns"], reasoning, dialect, reward_at)

    task = setting.task
    of_episodes = replace(
        setting,
        task=SimpleNamespace(
            outcomes=episodes.outcomes, show=task.show, stratum=task.stratum, split_key=task.split_key
        ),
        checks=SimpleNamespace(oracle_of_row=of_row, REWARDS=setting.checks.EPISODE_REWARDS[reward_at]),
        most_turns=episodes.most_turns,
    )
    return training_tables(name, rows, of_episodes, group_size, steps, COLUMNS)


def _documented(turns: Any) -> bool:
    return (
        isinstance(turns, list)
        and bool(turns)
        and all(isinstance(turn, dict) and list(turn) == list(TURN) for turn in turns)
        and all(isinstance(turn[key], kind) for turn in turns for key, kind in TURN.items())
    )
