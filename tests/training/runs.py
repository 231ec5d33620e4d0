"""Running a trainer in a test, and comparing where two runs ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tuneloop.tasks import load_task
from tuneloop.training.state import StateFolder
from tuneloop.training.trainer import Trainer

TASK = load_task("tictactoe")

Start = Callable[..., Trainer]


def steps(trainer: Trainer, count: int | None = None) -> list[dict[str, Any]]:
    run = trainer.run()
    return list(run) if count is None else [next(run) for _ in range(count)]


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.asker.policy.model.state_dict().items()}


def same(one: Any, other: Any) -> bool:
    """Equal bit for bit, tensors and floats included."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def assert_two_and_two_steps_equal_four(start: Callable[[], Trainer], folder: Path) -> Trainer:
    """Four steps in one go, and two, a saved state and two more, end in the same bits. The whole run."""
    whole = start()
    steps(whole)

    first = start()
    steps(first, 2)
    StateFolder(folder, "key").save(2, first.state())
    second = start()
    second.restore(StateFolder(folder, "key").load())
    assert second.step == 2
    assert [row["step"] for row in steps(second)] == [3, 4]

    assert all(row["weights_changed"] > 0 for row in whole.tables.history), "else the test shows nothing"
    assert same(weights(whole), weights(second))
    assert same(whole.optimizer.state_dict(), second.optimizer.state_dict())
    for table in ("history", "evaluations", "replies"):
        assert getattr(whole.tables, table) == getattr(second.tables, table), table
    assert [row["step"] for row in second.tables.timings] == [1, 2, 3, 4]
    return whole
