"""Which engine `rollout.engine` gives, and what is said where it cannot be had."""

from __future__ import annotations

from collections.abc import Callable
from importlib import util

import pytest
import torch
from policies.tiny_models import bailing_hybrid, drawn, qwen3
from transformers import PreTrainedModel

from tuneloop.errors import UserError
from tuneloop.params import Params, RolloutParams
from tuneloop.policies.card import PolicyCard
from tuneloop.policies.nano import nano_tokenizer
from tuneloop.policies.policy import Policy
from tuneloop.rollout import engines
from tuneloop.rollout.engines import load_engine
from tuneloop.rollout.torch_engine import TorchEngine
from tuneloop.rollout.transformers_engine import TransformersEngine


@pytest.fixture
def rollout(tiny_params: Callable[..., Params]) -> Callable[[str], RolloutParams]:
    return lambda engine: tiny_params().rollout.model_copy(update={"engine": engine})


def policy(make: Callable[[], PreTrainedModel]) -> Policy:
    return Policy(drawn(make, dtype=torch.float32), nano_tokenizer([], 300), PolicyCard("tiny", "hermes", None, False))


def test_each_name_gives_its_engine(rollout: Callable[[str], RolloutParams]) -> None:
    assert type(load_engine(policy(qwen3), rollout("torch"))) is TorchEngine
    assert type(load_engine(policy(qwen3), rollout("transformers"))) is TransformersEngine
    assert type(load_engine(policy(bailing_hybrid), rollout("transformers"))) is TransformersEngine


def test_the_torch_engine_says_which_engines_compute_a_model_that_it_does_not(
    rollout: Callable[[str], RolloutParams],
) -> None:
    with pytest.raises(UserError, match=r"rollout\.engine=torch: .*'bailing_hybrid'.* to transformers or vllm"):
        load_engine(policy(bailing_hybrid), rollout("torch"))


def test_a_missing_vllm_is_answered_with_how_to_install_it(
    rollout: Callable[[str], RolloutParams], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None if name == "vllm" else util.find_spec(name))
    with pytest.raises(UserError, match=r"pip install -e '\.\[vllm\]'"):
        load_engine(policy(qwen3), rollout("vllm"))
