"""Tiny random models of every supported family, and what transformers itself says about their replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import (
    BailingHybridConfig,
    BailingHybridForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY = 40


def _sizes(kv_heads: int, tied: bool, layers: int) -> dict[str, object]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": kv_heads,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 256,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "bos_token_id": 1,
        # "eager" attention takes its softmax in float32 even in a float64 model.
        "attn_implementation": "sdpa",
    }


def qwen3(kv_heads: int = 2, tied: bool = True, layers: int = 2) -> PreTrainedModel:
    # A head width that is not hidden size / heads, as in the published Qwen3 models.
    return Qwen3ForCausalLM(Qwen3Config(**_sizes(kv_heads, tied, layers), head_dim=6))


def llama(kv_heads: int = 2, tied: bool = True, layers: int = 2, biases: bool = False) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**_sizes(kv_heads, tied, layers), attention_bias=biases))


def qwen2(kv_heads: int = 2, tied: bool = True, layers: int = 2) -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**_sizes(kv_heads, tied, layers)))


def bailing_hybrid(**changes: object) -> PreTrainedModel:
    """The architecture of Ling-3.0-tiny: layers of KDA linear attention, then one of MLA; a dense MLP first,
    then routed experts with a shared one. (Fewer and narrower; everything else as there.)"""
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "moe_intermediate_size": 8,
        "num_hidden_layers": 3,
        "layer_group_size": 3,
        "first_k_dense_replace": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "q_lora_rank": 6,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 6,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "num_mtp_layers": 0,
        "max_position_embeddings": 256,
        "eos_token_id": 2,
        # The embedding of the padding token gets no gradient: not the end token's, then.
        "pad_token_id": 0,
    }
    return BailingHybridForCausalLM(BailingHybridConfig(**(sizes | changes)))


FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen3 grouped tied": lambda: qwen3(2, True),
    "qwen3 multi-head untied": lambda: qwen3(4, False),
    "llama grouped untied": lambda: llama(2, False),
    "llama multi-head tied": lambda: llama(4, True),
    "llama one key head with biases": lambda: llama(1, True, biases=True),
    "qwen2 grouped tied": lambda: qwen2(2, True),
    "qwen2 multi-head untied": lambda: qwen2(4, False),
}


def drawn(make: Callable[[], PreTrainedModel], seed: int = 0, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """A model whose every parameter is random: biases are not 0 and norms not 1, as transformers
    begins with them, so that leaving one out shows."""
    model = make().to(dtype).eval()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
            centre = 1.0 if parameter.dim() == 1 else 0.0
            parameter.copy_(centre + 0.3 * noise)
    return model


def with_exact_norms(model: PreTrainedModel) -> PreTrainedModel:
    """`model`, whose norms now compute in its own type. Those of transformers go through float32 even
    in a float64 model, which would hide every error below 1e-7."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = _norm.__get__(module)
    return model


def _norm(self: torch.nn.Module, x: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.variance_epsilon) * self.weight


def distributions(
    model: PreTrainedModel, prompt: Sequence[int], reply: Sequence[int], temperature: float = 1
) -> Tensor:
    """[reply tokens, vocabulary] log-probabilities from transformers' forward pass over one sequence."""
    ids = torch.tensor([[*prompt, *reply]])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : ids.shape[1] - 1]
    return (logits / temperature).log_softmax(-1)


def logprobs(model: PreTrainedModel, prompt: Sequence[int], reply: Sequence[int], temperature: float = 1) -> Tensor:
    """[reply tokens] log-probabilities of the reply's own tokens, likewise."""
    rows = distributions(model, prompt, reply, temperature)
    return torch.stack([row[i] for row, i in zip(rows, reply)]) if len(reply) else rows[:, 0]


def relative_error(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()
