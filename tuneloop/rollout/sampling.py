"""Drawing the next token: inverse transform sampling from one uniform number a token.

A reply's uniforms depend on its own seed alone, so neither batch size nor the order in which replies
finish changes what is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tuneloop.rollout.contract import Sampling


def uniforms(seeds: Sequence[int], length: int) -> np.ndarray:
    """[len(seeds), length] float64 in [0, 1), row i from a Philox stream keyed by `seeds[i]`."""
    return np.stack([np.random.Generator(np.random.Philox(key=seed)).random(length) for seed in seeds])


def next_tokens(logits: Tensor, sampling: Sampling, u: Tensor) -> tuple[Tensor, Tensor]:
    """Token ids [n] and their log-probabilities [n] from logits [n, vocabulary] and uniforms [n]."""
    if sampling.greedy:
        logp = logits.log_softmax(-1)
        ids = logits.argmax(-1)
        return ids, logp.gather(-1, ids[:, None])[:, 0]
    logp = (logits / sampling.temperature).log_softmax(-1)
    probabilities = cut(logp, sampling).double()
    total = probabilities.cumsum(-1)
    # u < 1 and a strict comparison: a token of probability 0 is never drawn, and neither is one
    # past the end where the sum rounds below 1.
    ids = torch.searchsorted(total, (u.double() * total[:, -1])[:, None], right=True)[:, 0]
    ids = ids.clamp_max(logits.shape[-1] - 1)
    return ids, logp.gather(-1, ids[:, None])[:, 0]


def cut(logp: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities [n, vocabulary] left by top-k, then top-p (the smallest set of likeliest tokens
    that reaches p), not renormalised."""
    probabilities = logp.exp()
    if sampling.top_k and sampling.top_k < logp.shape[-1]:
        least = probabilities.topk(sampling.top_k, dim=-1).values[:, -1:]
        probabilities = probabilities.masked_fill(probabilities < least, 0.0)
    if sampling.top_p < 1:
        ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered
        ordered = ordered.masked_fill(before >= sampling.top_p * ordered.sum(-1, keepdim=True), 0.0)
        probabilities = torch.zeros_like(probabilities).scatter_(-1, order, ordered)
    return probabilities
