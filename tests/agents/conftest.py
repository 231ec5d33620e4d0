"""A tiny policy asked through agents, and what its engine sampled meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tuneloop import machine
from tuneloop.agents.asker import AgentAsker, with_agent
from tuneloop.params import Params
from tuneloop.policies.policy import load_policy
from tuneloop.rollout.ask import Asker
from tuneloop.rollout.contract import Reply, Sampling
from tuneloop.rollout.torch_engine import TorchEngine
from tuneloop.tasks import load_task
from tuneloop.training import trainer as trainer_module
from tuneloop.training.trainer import Trainer

TASK = load_task("tictactoe")


class Recording:
    """An engine that keeps every reply it gave, by prompt."""

    def __init__(self, engine: TorchEngine):
        self.engine = engine
        self.replies: dict[tuple[int, ...], list[Reply]] = {}
        self.calls: list[tuple[list[list[int]], list[list[int]], Sampling]] = []

    def generate(self, prompts: Any, seeds: Any, sampling: Sampling) -> list[list[Reply]]:
        found = self.engine.generate(prompts, seeds, sampling)
        self.calls.append(([list(p) for p in prompts], [list(s) for s in seeds], sampling))
        for prompt, group in zip(prompts, found):
            self.replies.setdefault(tuple(prompt), []).extend(group)
        return found

    def weights_changed(self) -> None:
        self.engine.weights_changed()


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def asking(tiny_params: Callable[..., Params], tiny_policy: Path, opened: ExitStack) -> Callable[..., Asker]:
    """`asking("module:function", {…})`: an asker over a recording engine, through that agent (None: without one)."""

    def begin(agent: str | None, changes: Mapping[str, Any] = {}) -> Asker:
        params = tiny_params({"rollout.agent": agent, "rollout.agent_timeout": 60.0} | dict(changes))
        policy = load_policy(tiny_policy, machine.prepare(1))
        engine = Recording(TorchEngine(policy.model, policy.end_ids))
        return opened.enter_context(with_agent(Asker(policy, engine, TASK), params.rollout))

    return begin


@pytest.fixture
def training(
    asking: Callable[..., AgentAsker], tiny_params: Callable[..., Params], tiny_records: tuple[list, list]
) -> Callable[..., Trainer]:
    """`training("module:function", {…})`: a trainer at step 0."""

    def begin(agent: str | None, changes: Mapping[str, Any] = {}) -> Trainer:
        asker = asking(agent, changes)
        params = tiny_params({"rollout.agent": agent, "rollout.agent_timeout": 60.0} | dict(changes))
        train, heldout = tiny_records
        return Trainer(asker, asker.engine, train, heldout[:3], params.train, params.rollout, params.seed)

    return begin


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The groups that updates are computed from, from here on."""
    groups: list[Any] = []
    real = trainer_module.accumulate

    def spy(decoder: Any, part: Any, *rest: Any) -> Any:
        groups.extend(part)
        return real(decoder, part, *rest)

    monkeypatch.setattr(trainer_module, "accumulate", spy)
    return groups
