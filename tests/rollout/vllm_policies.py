"""Tiny random policies that vLLM runs on a CPU: its attention there wants heads of 32, 64, 128, … numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tuneloop.params import RolloutParams, VllmParams
from tuneloop.policies.card import PolicyCard
from tuneloop.policies.nano import nano_tokenizer
from tuneloop.policies.policy import Policy
from tuneloop.rollout.vllm_engine import VllmEngine

VOCABULARY = 40
END = 2


def _sizes(tied: bool) -> dict[str, object]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 256,
        "eos_token_id": END,
        "pad_token_id": END,
        "bos_token_id": 1,
    }


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen3 tied": lambda: Qwen3ForCausalLM(Qwen3Config(**_sizes(tied=True))),
    "llama untied": lambda: LlamaForCausalLM(LlamaConfig(**_sizes(tied=False))),
    "qwen2 tied with biases": lambda: Qwen2ForCausalLM(Qwen2Config(**_sizes(tied=True))),
}


def random_policy(name: str, seed: int = 0) -> Policy:
    """Every parameter random, biases and norms too, so that leaving one out shows."""
    model = MODELS[name]().float().eval()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            centre, spread = (1.0, 0.2) if parameter.dim() == 1 else (0.0, 0.15)
            parameter.copy_(centre + spread * torch.randn(parameter.shape, generator=draw))
    return Policy(model, nano_tokenizer([], 300), PolicyCard(name, "hermes", None, False))


STARTED: list[VllmEngine] = []
"""An engine that is deleted takes the process groups of all others with it, so none is."""


def started(policy: Policy, dtype: str = "float32") -> VllmEngine:
    STARTED.append(VllmEngine(policy, rollout_params(dtype)))
    return STARTED[-1]


def rollout_params(dtype: str = "float32") -> RolloutParams:
    return RolloutParams(
        engine="vllm",
        max_new_tokens=12,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        thinking=False,
        agent=None,
        agent_timeout=60.0,
        agent_turns=16,
        vllm=VllmParams(dtype=dtype, memory_share=0.01, max_model_len=256),
    )
