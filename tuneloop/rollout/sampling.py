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

# Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011: Philox 4x64, ten rounds.
ROUNDS = 10
MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


def uniforms(seeds: Sequence[int], length: int) -> np.ndarray:
    """[len(seeds), length] float64 in [0, 1), row i what numpy's Philox generator keyed by `seeds[i]` (below 2^128)
    gives: computed for all seeds at once, since making a generator costs more than drawing from it."""
    mask = (1 << 64) - 1
    keys = [np.array([(seed >> shift) & mask for seed in seeds], dtype=np.uint64)[:, None] for shift in (0, 64)]
    blocks = -(-length // 4)
    # numpy counts up before it draws: the first block of a stream is counter 1.
    counter = np.zeros((4, len(seeds), blocks), dtype=np.uint64)
    counter[0] = np.arange(1, blocks + 1, dtype=np.uint64)
    a, b, c, d = counter
    with np.errstate(over="ignore"):
        for round_ in range(ROUNDS):
            if round_:
                keys = [key + np.uint64(step) for key, step in zip(keys, WEYL)]
            (high0, low0), (high1, low1) = (_product(x, m) for x, m in zip((a, c), MULTIPLIERS))
            a, b, c, d = high1 ^ b ^ keys[0], low1, high0 ^ d ^ keys[1], low0
    words = np.stack([a, b, c, d], axis=-1).reshape(len(seeds), 4 * blocks)[:, :length]
    return (words >> np.uint64(11)) * 2.0**-53


def _product(x: np.ndarray, factor: int) -> tuple[np.ndarray, np.ndarray]:
    """High and low 64 bits of x · factor."""
    f = np.uint64(factor)
    x0, x1, f0, f1 = x & LOW, x >> HALF, f & LOW, f >> HALF
    middle = x1 * f0 + ((x0 * f0) >> HALF)  # below 2^64: (2^32 − 1)² + 2^32 − 1
    crossed = x0 * f1 + (middle & LOW)
    return x1 * f1 + (middle >> HALF) + (crossed >> HALF), x * f


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
