"""Adapters where transformers computes the forward pass: on Ling's architecture, its experts' stacked weights too."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_models import bailing_hybrid, drawn
from transformers import PreTrainedModel

from tuneloop.params import LoraParams
from tuneloop.policies.adapters import adapted_layers, adapters_off, merged_state
from tuneloop.policies.decoders import load_decoder
from tuneloop.policies.prompt_tree import prompt_tree
from tuneloop.policies.scoring import reply_logprobs
from tuneloop.training.lora import add_adapters, save_adapter, targets_of

peft = pytest.importorskip("peft")

LORA = LoraParams(rank=2, alpha=4.0)
TARGETS = targets_of("ling-3.0-tiny")
PROMPTS, REPLIES = [[1, 5, 7], [1, 5, 8, 9]], [[[4, 6, 2], [3]], [[11, 12], [13, 2]]]


@pytest.fixture(scope="module")
def plain() -> PreTrainedModel:
    return drawn(bailing_hybrid, dtype=torch.float32)


@pytest.fixture
def adapted(plain: PreTrainedModel) -> PreTrainedModel:
    model = copy.deepcopy(plain)
    add_adapters(model, LORA, TARGETS, seed=0)
    draw = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=draw)
    return model


def scored(model: PreTrainedModel) -> torch.Tensor:
    return reply_logprobs(load_decoder(model), prompt_tree(PROMPTS, REPLIES))[0]


def test_the_presets_targets_reach_attention_mlp_and_the_stacked_experts(adapted: PreTrainedModel) -> None:
    names = " ".join(adapted_layers(adapted))
    for part in ("q_proj", "kv_b_proj", "shared_experts.up_proj", "mlp.gate_proj", "mlp.experts"):
        assert part in names, part


def test_gradients_reach_every_adapter_and_nothing_else(adapted: PreTrainedModel) -> None:
    scored(adapted).sum().backward()
    for name, parameter in adapted.named_parameters():
        assert (parameter.grad is not None) == ("lora_" in name), name


def test_the_merged_state_is_that_of_a_plain_model_that_computes_the_same(
    adapted: PreTrainedModel, plain: PreTrainedModel
) -> None:
    merged = copy.deepcopy(plain)
    merged.load_state_dict(merged_state(adapted))
    with torch.no_grad():
        found, expected, base = scored(adapted), scored(merged), scored(plain)
        assert (found - expected).abs().max() < 1e-5
        assert (expected - base).abs().max() > 1e-2, "else the adapters do nothing"
        with adapters_off(adapted):
            assert (scored(adapted) - base).abs().max() < 1e-6


def test_the_saved_adapter_is_read_by_peft(adapted: PreTrainedModel, plain: PreTrainedModel, tmp_path) -> None:
    save_adapter(adapted.state_dict(), LORA, TARGETS, tmp_path)
    over = peft.PeftModel.from_pretrained(copy.deepcopy(plain), tmp_path)
    ids = torch.tensor([[1, 5, 7, 4, 6]])
    with torch.no_grad():
        assert (over(ids).logits - adapted(ids).logits).abs().max() < 1e-5
