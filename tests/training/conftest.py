"""A trainer over the tiny policy, and what its updates are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from runs import TASK, Start

from tuneloop import machine
from tuneloop.params import Params
from tuneloop.policies.policy import Policy, load_policy
from tuneloop.rollout.ask import Asker
from tuneloop.rollout.torch_engine import TorchEngine
from tuneloop.training import trainer as trainer_module
from tuneloop.training.trainer import Trainer


@pytest.fixture
def start(tiny_params: Callable[..., Params], tiny_records: tuple[list, list], tiny_policy: Path) -> Start:
    """`start({"train.lr": 0.0})`: a trainer at step 0 with the tiny policy's weights."""

    def begin(changes: Mapping[str, Any] = {}, engine: Callable[[Policy], Any] | None = None) -> Trainer:
        params = tiny_params(changes)
        policy = load_policy(tiny_policy, machine.prepare(params.machine.threads))
        made = engine(policy) if engine else TorchEngine(policy.model, policy.end_ids)
        return Trainer(Asker(policy, made, TASK), made, *tiny_records, params.train, params.rollout, params.seed)

    return begin


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The groups of every update that is computed from here on."""
    updates: list[list[Any]] = []
    real = trainer_module.accumulate

    def spy(decoder: Any, groups: Sequence[Any], *rest: Any) -> Any:
        updates.append(list(groups))
        return real(decoder, groups, *rest)

    monkeypatch.setattr(trainer_module, "accumulate", spy)
    return updates
