"""The papers' objectives a second time, one reply and one token at a time, sharing no code with the
package: log-probabilities from transformers' forward pass over single sequences, all in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 24


@dataclass(frozen=True)
class Sampled:
    """One reply with what training knows of it; `weights` are those of the engine's mismatch, one a token."""

    prompt: list[int]
    reply: list[int]
    old: list[float]
    advantage: float
    weights: list[float] | None = None

    def weight(self, token: int) -> float:
        return 1.0 if self.weights is None else self.weights[token]


def tiny_model(seed: int = 0, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """A random Qwen3 of two layers in which no parameter is 0 or 1."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        tie_word_embeddings=True,
        eos_token_id=2,
        pad_token_id=2,
        attn_implementation="sdpa",
    )
    model = Qwen3ForCausalLM(config).to(dtype).eval()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
            parameter.copy_((parameter.dim() == 1) + 0.3 * noise)
    # transformers leaves the padding token's embedding out of the gradient, which here is also the end token.
    model.model.embed_tokens.padding_idx = None
    # The norms of transformers compute in float32 whatever the model's type.
    for module in model.modules():
        if type(module).__name__ == "Qwen3RMSNorm":
            module.forward = _norm.__get__(module)
    return model


def _norm(self: torch.nn.Module, x: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.variance_epsilon) * self.weight


def rows(model: PreTrainedModel, prompt: Sequence[int], reply: Sequence[int], temperature: float = 1.0) -> Tensor:
    """[reply tokens, vocabulary] log-probabilities."""
    logits = model(input_ids=torch.tensor([[*prompt, *reply]]), use_cache=False).logits[0]
    return (logits[len(prompt) - 1 : -1] / temperature).log_softmax(-1)


def token_logprobs(
    model: PreTrainedModel, prompt: Sequence[int], reply: Sequence[int], temperature: float = 1.0
) -> list[Tensor]:
    return [row[token] for row, token in zip(rows(model, prompt, reply, temperature), reply)]


def padded_logprobs(
    model: PreTrainedModel, sampled: Sequence[Sampled], side: str, temperature: float
) -> list[list[Tensor]]:
    """`token_logprobs` of all replies from one pass, padded on the left or right with the end token."""
    sequences = [[*s.prompt, *s.reply] for s in sampled]
    width = max(map(len, sequences))
    ids = torch.full((len(sequences), width), model.config.pad_token_id)
    mask, positions = torch.zeros_like(ids), torch.zeros_like(ids)
    starts = [width - len(row) if side == "left" else 0 for row in sequences]
    for i, (start, row) in enumerate(zip(starts, sequences)):
        place = slice(start, start + len(row))
        ids[i, place], mask[i, place], positions[i, place] = torch.tensor(row), 1, torch.arange(len(row))
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    logp = (logits / temperature).log_softmax(-1)
    return [
        [logp[i, start + len(s.prompt) + t - 1, token] for t, token in enumerate(s.reply)]
        for i, (start, s) in enumerate(zip(starts, sampled))
    ]


def token_weights(old: Sequence[float], engine: Sequence[float], cap: float) -> list[float]:
    """min(πold / πengine, cap) of every token."""
    return [min(math.exp(a) / math.exp(b), cap) for a, b in zip(old, engine)]


def reply_weights(old: Sequence[float], engine: Sequence[float], cap: float) -> list[float]:
    """The same for the reply as a whole: the ratio of the two probabilities of the reply, at every token."""
    ratio = math.prod(map(math.exp, old)) / math.prod(map(math.exp, engine))
    return [min(ratio, cap)] * len(old)


def mean_kl(new: Sequence[Sequence[Tensor]], base: Sequence[Sequence[float]]) -> Tensor:
    """arXiv 2402.03300, eq. 4, averaged as in eq. 3: over a reply's tokens, then over replies."""
    replies = []
    for now, before in zip(new, base):
        tokens = [math.exp(b) / n.exp() - (b - n) - 1 for n, b in zip(now, before)]
        replies.append(sum(tokens) / len(tokens))
    return sum(replies) / len(replies)


def mean_entropy(model: PreTrainedModel, sampled: Sequence[Sampled], temperature: float) -> Tensor:
    """Over all reply tokens, in nats."""
    parts = [-(row.exp() * row).sum() for s in sampled for row in rows(model, s.prompt, s.reply, temperature)]
    return sum(parts) / len(parts)


def held(ratio: Tensor, advantage: float, low: float, high: float) -> Tensor:
    """min(r·A, clip(r, 1−ε₋, 1+ε₊)·A), case by case."""
    if advantage > 0 and ratio > 1 + high:
        return torch.tensor((1 + high) * advantage, dtype=ratio.dtype)
    if advantage < 0 and ratio < 1 - low:
        return torch.tensor((1 - low) * advantage, dtype=ratio.dtype)
    return ratio * advantage


def sequence_ratio(new: Sequence[Tensor], old: Sequence[float]) -> Tensor:
    """arXiv 2507.18071, eq. 7: (πθ(y) / πold(y)) to the power of 1 / |y|."""
    probability_ratio = torch.ones((), dtype=torch.float64)
    for after, before in zip(new, old):
        probability_ratio = probability_ratio * (after - before).exp()
    return probability_ratio ** (1 / len(old))


def gspo(new: Sequence[Sequence[Tensor]], sampled: Sequence[Sampled], low: float, high: float, limit: int) -> Tensor:
    """J of arXiv 2507.18071, eq. 5."""
    terms = [held(sequence_ratio(n, s.old), s.advantage, low, high) * s.weight(0) for n, s in zip(new, sampled)]
    return sum(terms) / len(sampled)


def grpo(new: Sequence[Sequence[Tensor]], sampled: Sequence[Sampled], low: float, high: float, limit: int) -> Tensor:
    """J of arXiv 2402.03300, eq. 3 without KL: mean over a reply's tokens, then over replies."""
    replies = []
    for n, s in zip(new, sampled):
        tokens = [held((a - b).exp(), s.advantage, low, high) * s.weight(t) for t, (a, b) in enumerate(zip(n, s.old))]
        replies.append(sum(tokens) / len(tokens))
    return sum(replies) / len(replies)


def dr_grpo(new: Sequence[Sequence[Tensor]], sampled: Sequence[Sampled], low: float, high: float, limit: int) -> Tensor:
    """J of arXiv 2503.20783, section 3.2: a constant in the place of the reply's length."""
    total = torch.zeros((), dtype=torch.float64)
    for n, s in zip(new, sampled):
        for t, (after, before) in enumerate(zip(n, s.old)):
            total = total + held((after - before).exp(), s.advantage, low, high) * s.weight(t)
    return total / (len(sampled) * limit)


def dapo(new: Sequence[Sequence[Tensor]], sampled: Sequence[Sampled], low: float, high: float, limit: int) -> Tensor:
    """J of arXiv 2503.14476, eq. 8: a mean over all tokens."""
    tokens = [
        held((after - before).exp(), s.advantage, low, high) * s.weight(t)
        for n, s in zip(new, sampled)
        for t, (after, before) in enumerate(zip(n, s.old))
    ]
    return sum(tokens) / len(tokens)


# GSPO-token with one advantage a reply has GSPO's value and gradient (arXiv 2507.18071, section 4.3).
OBJECTIVES: dict[str, Callable[..., Tensor]] = {
    "gspo": gspo,
    "gspo_token": gspo,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "dapo": dapo,
}


def gradients(model: PreTrainedModel, value: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(value, list(model.parameters())))


def relative_error(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest over tensors of |found − expected| / |expected|, Euclidean norms."""
    return max(((a - b).norm() / b.norm()).item() for a, b in zip(found, expected, strict=True))
