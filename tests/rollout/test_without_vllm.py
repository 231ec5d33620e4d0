"""What is said where vLLM is missing, or where its numbers would be too coarse for training."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
from rollout.vllm_policies import random_policy, rollout_params

from tuneloop.errors import UserError
from tuneloop.params import Params, parse_params
from tuneloop.rollout.engines import load_engine
from tuneloop.rollout.vllm_engine import VllmEngine


@pytest.mark.skipif(find_spec("vllm") is not None, reason="the package vllm is installed")
@pytest.mark.parametrize("make", [VllmEngine, load_engine])
def test_without_the_package_it_says_how_to_install_it(make: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match=r"rollout.engine=vllm: the package vllm .*pip install -e '.\[vllm\]'"):
        make(random_policy("qwen3 tied"), rollout_params())


def test_a_coarse_engine_wants_old_log_probabilities_from_the_trainer(
    tiny_tree: Callable[..., dict], tiny_params: Callable[..., Params]
) -> None:
    coarse = {"rollout.engine": "vllm", "rollout.vllm.dtype": "bfloat16"}
    with pytest.raises(UserError) as refused:
        parse_params(tiny_tree(coarse | {"train.old_logprobs": "engine"}), "params.yaml")
    for part in ("rollout.vllm.dtype=bfloat16", "train.old_logprobs=engine", "set train.old_logprobs to trainer"):
        assert part in str(refused.value)
    accepted = [
        coarse | {"train.old_logprobs": "trainer"},
        {"rollout.engine": "vllm", "rollout.vllm.dtype": "float32", "train.old_logprobs": "engine"},
        {"rollout.engine": "torch", "rollout.vllm.dtype": "bfloat16", "train.old_logprobs": "engine"},
    ]
    for changes in accepted:
        assert tiny_params(changes).rollout.engine == changes["rollout.engine"]
