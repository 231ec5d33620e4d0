"""Drawing the next token: inverse transform sampling from one uniform number a token.

A reply's uniforms depend on its own seed alone, so neither batch size nor the order in which replies
finish changes what is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tuneloop.rollout.contract import Sampling


def uniforms(seeds: Sequence[int], length: int) -> np.ndarray:
    """[len(seeds), length] float64 in [0, 1), row i from a Philox stream keyed by `seeds[i]`."""
    return np.stack([np.random.Generator(np.random.Philox(key=seed)).random(length) for seed in seeds])


def next_tokens(logits: Tensor, sampling: Sampling, u: Tensor) -> tuple[Tensor, Tensor]:
    """Token ids [n] and their log-probabilities [n] from logits [n, vocabulary] and uniforms [n]."""
    if not sampling.greedy and sampling.temperature != 1:
        logits = logits / sampling.temperature
    shifted = logits - logits.amax(-1, keepdim=True)
    weights = shifted.exp()
    # Not log_softmax: that is one more pass over the vocabulary, and sampling needs the exponentials anyway.
    log_total = weights.sum(-1).log()
    ids = logits.argmax(-1) if sampling.greedy else draw(cut(weights, sampling), u)
    return ids, shifted.gather(-1, ids[:, None])[:, 0] - log_total


BLOCK = 32


def draw(probabilities: Tensor, u: Tensor) -> Tensor:
    """[n] the first token at which the running sum of `probabilities` [n, vocabulary] (any positive
    scale) exceeds u · total, for u [n] in [0, 1). Never a token of probability 0.

    Sums run in float64 over blocks of tokens, then inside one block: a running sum over the whole
    vocabulary is the slowest step of sampling from a small model.
    """
    n, vocabulary = probabilities.shape
    blocks = F.pad(probabilities, (0, -vocabulary % BLOCK)).view(n, -1, BLOCK)
    sums = blocks.sum(-1, dtype=torch.float64)
    ends = sums.cumsum(-1)
    target = u.double() * ends[:, -1]
    block = _first_above(ends, target)
    before = (ends - sums).gather(-1, block[:, None])[:, 0]
    inside = blocks[torch.arange(n, device=block.device), block].double().cumsum(-1)
    return block * BLOCK + _first_above(inside, target - before)


def _first_above(running: Tensor, target: Tensor) -> Tensor:
    """[n] index of the first running sum above the target; the target is held inside [0, last sum), so
    that rounding leads neither past the end nor to an entry that adds nothing."""
    last = torch.nextafter(running[:, -1], torch.zeros_like(target))
    held = target.clamp_min(0.0).minimum(last)
    return torch.searchsorted(running, held[:, None], right=True)[:, 0]


def cut(weights: Tensor, sampling: Sampling) -> Tensor:
    """What top-k, then top-p (the smallest set of likeliest tokens that reaches p) leave of the
    probabilities [n, vocabulary], which are given at any scale and not rescaled."""
    if sampling.top_k and sampling.top_k < weights.shape[-1]:
        least = weights.topk(sampling.top_k, dim=-1).values[:, -1:]
        weights = weights.masked_fill(weights < least, 0.0)
    if sampling.top_p < 1:
        ordered, order = weights.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered
        ordered = ordered.masked_fill(before >= sampling.top_p * ordered.sum(-1, keepdim=True), 0.0)
        weights = torch.zeros_like(weights).scatter_(-1, order, ordered)
    return weights
