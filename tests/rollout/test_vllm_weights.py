"""Weights reach the vLLM engine after every change, and whatever keeps them from arriving stops the run. Each way
of failing is brought about on purpose, after a change as small as one step of Adam at a learning rate of 1e-6."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from rollout.test_vllm_engine import GREEDY, PROMPTS, SAMPLING, SEEDS, largest_gap, nudge
from rollout.vllm_policies import random_policy, started

from tuneloop.errors import UserError
from tuneloop.params import LoraParams
from tuneloop.policies.adapters import has_adapters
from tuneloop.policies.presets import LoraTargets
from tuneloop.rollout import vllm_engine, vllm_weights
from tuneloop.rollout.vllm_engine import VllmEngine
from tuneloop.training.lora import add_adapters

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="the package vllm is not installed"),
]

STEP = 1e-6


@pytest.fixture(scope="module")
def made() -> VllmEngine:
    return started(random_policy("qwen3 tied", seed=3))


@pytest.fixture
def engine(made: VllmEngine) -> VllmEngine:
    """An engine that has sampled with the policy's weights, which have changed since."""
    made.weights_changed()
    made.generate(PROMPTS, SEEDS, SAMPLING)
    nudge(made.policy, STEP)
    made.weights_changed()
    return made


def require_refusal(engine: VllmEngine, undo: Callable[[], None], said: str) -> None:
    """`generate` fails twice (a failure leaves nothing that looks arrived), and works once what broke it is undone."""
    for _ in range(2):
        with pytest.raises(UserError, match=rf"does not compute with the policy's weights: .*{said}"):
            engine.generate(PROMPTS, SEEDS, SAMPLING)
    undo()
    assert largest_gap(engine.policy, engine.generate(PROMPTS, SEEDS, SAMPLING)) < 1e-4


def test_a_push_that_is_skipped_is_noticed(engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_engine, "push", lambda *args: None)
    require_refusal(engine, monkeypatch.undo, r"model.embed_tokens.weight, .* and \d+ more differ")


def test_a_tied_head_that_keeps_its_old_packed_copy_is_noticed(
    engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_weights, "repack_heads", lambda model: None)
    require_refusal(engine, monkeypatch.undo, "lm_head.weight differ")


def test_a_prefix_cache_that_is_not_reset_is_noticed(engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_weights, "forget_prefixes", lambda llm: None)
    require_refusal(engine, monkeypatch.undo, "32 tokens of the first prompt after a push came from")


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        ("model.layers.1.mlp.down_proj.weight", "model.layers.1.mlp.down_proj.weight differ"),
        ("model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.q_norm.weight differ"),
        ("model.norm.weight", "model.norm.weight differ"),
    ],
)
def test_a_single_tensor_that_is_left_out_is_named(
    engine: VllmEngine, monkeypatch: pytest.MonkeyPatch, lost: str, named: str
) -> None:
    real = vllm_engine.push

    def push(llm: Any, weights: dict[str, torch.Tensor]) -> None:
        real(llm, {name: value for name, value in weights.items() if name != lost})

    monkeypatch.setattr(vllm_engine, "push", push)
    require_refusal(engine, monkeypatch.undo, named)


def test_scored_tokens_alone_notice_weights_that_no_name_speaks_for(
    engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    nudge(engine.policy, 0.05)
    monkeypatch.setattr(vllm_engine, "push", lambda llm, weights: vllm_weights.forget_prefixes(llm))
    monkeypatch.setattr(vllm_engine, "differing", lambda *args: [])
    require_refusal(engine, monkeypatch.undo, r"mean \|Δ log p\| over the 4 scored tokens is \d\.\d+, limit 0.001")


def test_names_that_have_nothing_in_common_are_not_a_proof(engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {f"other.{name}": value for name, value in vllm_weights.policy_weights(engine.policy.model).items()}
    with pytest.raises(RuntimeError, match="no name in common"):
        vllm_weights.differing(vllm_weights.model_of(engine.llm), weights)


def test_nothing_is_pushed_before_it_is_asked_for_and_then_once(
    engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushes = []
    real = vllm_engine.push
    monkeypatch.setattr(vllm_engine, "push", lambda *args: (pushes.append(1), real(*args)))
    for _ in range(3):
        engine.weights_changed()
    assert not pushes
    for _ in range(2):
        engine.generate(PROMPTS, SEEDS, SAMPLING)
    assert len(pushes) == 1


def test_the_engine_has_weights_of_its_own(engine: VllmEngine) -> None:
    kept = {name: value.clone() for name, value in engine.policy.model.state_dict().items()}
    before = engine.generate(PROMPTS, SEEDS, GREEDY)
    assert all(torch.equal(value, kept[name]) for name, value in engine.policy.model.state_dict().items())
    nudge(engine.policy, 0.05)  # no word to the engine
    assert engine.generate(PROMPTS, SEEDS, GREEDY) == before
    engine.weights_changed()
    assert engine.generate(PROMPTS, SEEDS, GREEDY) != before


def test_adapters_reach_the_engine_merged_in_and_the_policy_keeps_them() -> None:
    policy = random_policy("qwen3 tied", seed=5)
    targets = LoraTargets(modules=("q_proj", "v_proj", "down_proj"), parameters=())
    add_adapters(policy.model, LoraParams(rank=4, alpha=8), targets, seed=1)
    engine = started(policy)
    before = engine.generate(PROMPTS, SEEDS, SAMPLING)
    assert largest_gap(policy, before) < 1e-4
    nudge(policy, 0.05)  # of A, B and the base alike: all of them are in what is pushed
    engine.weights_changed()
    after = engine.generate(PROMPTS, SEEDS, SAMPLING)
    assert largest_gap(policy, after) < 1e-4 < largest_gap(policy, before)
    assert has_adapters(policy.model)


def test_a_bfloat16_engine_proves_its_weights_too(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = started(random_policy("qwen3 tied", seed=4), "bfloat16")
    engine.generate(PROMPTS, SEEDS, SAMPLING)
    nudge(engine.policy, 1e-4)  # of weights of about 0.15, which bfloat16 spaces 5e-4: one in five rounds to another
    engine.weights_changed()
    monkeypatch.setattr(vllm_engine, "push", lambda *args: None)
    with pytest.raises(UserError, match=r"model.embed_tokens.weight, .* and \d+ more differ"):
        engine.generate(PROMPTS, SEEDS, SAMPLING)
    monkeypatch.undo()
    engine.generate(PROMPTS, SEEDS, SAMPLING)
