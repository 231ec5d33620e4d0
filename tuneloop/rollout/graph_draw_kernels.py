"""The part of `graph_kernels` behind the last hidden state: logits, the draw, and writing down what was drawn.

Logits are read twice and never copied. Sums that decide which token is drawn are float64.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tuneloop.rollout.contract import Sampling
from tuneloop.rollout.sampling import next_tokens

CHUNK = 4096
"""Tokens of the vocabulary that sampling takes at a time."""


def logits(hidden: Tensor, head: Tensor) -> Tensor:
    if hidden.dtype == torch.float32:
        return hidden @ head.T
    # Half precision stops before the logits: rounding them would move every log-probability by up to 0.03.
    return torch.mm(hidden, head.T, out_dtype=torch.float32)


def draw(logits: Tensor, sampling: Sampling, u: Tensor) -> tuple[Tensor, Tensor]:
    """See `tuneloop.rollout.sampling.next_tokens`. Two readings of the logits: totals of every chunk, then the
    chunk in which the running sum passes u · total."""
    n, vocabulary = logits.shape
    if not sampling.greedy and (sampling.top_p < 1 or 0 < sampling.top_k < vocabulary):
        return next_tokens(logits, sampling, u)
    chunks = triton.cdiv(vocabulary, CHUNK)
    padded = triton.next_power_of_2(chunks)
    tops, sums = (logits.new_empty(n, chunks) for _ in range(2))
    tokens = torch.empty(n, dtype=torch.long, device=logits.device)
    logp = torch.empty(n, dtype=torch.float64, device=logits.device)
    scale = 1.0 if sampling.greedy else 1.0 / sampling.temperature
    _totals[(n, chunks)](logits, tops, sums, scale, vocabulary, chunks, CHUNK, num_warps=8)
    _draw[(n,)](
        logits, tops, sums, u, tokens, logp, scale, vocabulary, chunks, padded, CHUNK, sampling.greedy, num_warps=8
    )
    return tokens, logp


@triton.jit
def _totals(logits, tops, sums, scale, VOCABULARY: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr):
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + row * VOCABULARY + token, token < VOCABULARY, float("-inf")) * scale
    top = tl.max(x)
    tl.store(tops + row * CHUNKS + chunk, top)
    # A chunk of tokens that are all impossible adds nothing, not NaN.
    tl.store(sums + row * CHUNKS + chunk, tl.sum(tl.exp(x - tl.where(top == float("-inf"), 0.0, top))))


@triton.jit
def _first_above(weights, running, target, index, SIZE: tl.constexpr):
    """The first index whose running sum is above the target, else the last; never one of weight 0."""
    above = tl.min(tl.where((running > target) & (weights > 0), index, SIZE))
    last = tl.max(tl.where(weights > 0, index, 0))
    return tl.minimum(above, last)


@triton.jit
def _draw(
    logits,
    tops,
    sums,
    u,
    tokens,
    logp,
    scale,
    VOCABULARY: tl.constexpr,
    CHUNKS: tl.constexpr,
    PADDED: tl.constexpr,
    CHUNK: tl.constexpr,
    GREEDY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, PADDED)
    chunk_tops = tl.load(tops + row * CHUNKS + chunk, chunk < CHUNKS, float("-inf"))
    top = tl.max(chunk_tops)
    shares = tl.load(sums + row * CHUNKS + chunk, chunk < CHUNKS, 0.0).to(tl.float64)
    shares = shares * tl.exp(chunk_tops - top).to(tl.float64)
    total = tl.sum(shares)
    if GREEDY:
        chosen = tl.min(tl.where(chunk_tops == top, chunk, PADDED))
        before = total * 0
    else:
        target = tl.load(u + row) * total
        running = tl.cumsum(shares)
        chosen = _first_above(shares, running, target, chunk, PADDED)
        before = tl.sum(tl.where(chunk < chosen, shares, 0.0))
    inside = tl.arange(0, CHUNK)
    token = chosen * CHUNK + inside
    x = tl.load(logits + row * VOCABULARY + token, token < VOCABULARY, float("-inf")) * scale
    if GREEDY:
        found = tl.min(tl.where(x == top, inside, CHUNK))
    else:
        weights = tl.exp(x - top).to(tl.float64)
        found = _first_above(weights, tl.cumsum(weights), target - before, inside, CHUNK)
    x_found = tl.sum(tl.where(inside == found, x, 0.0))
    tl.store(tokens + row, chosen.to(tl.int64) * CHUNK + found)
    tl.store(logp + row, (x_found - top).to(tl.float64) - tl.log(total))


def record(tokens: Tensor, logp: Tensor, at: Tensor, ends: Tensor, ids: Tensor, logps: Tensor, running: Tensor) -> None:
    n = len(tokens)
    _record[(triton.cdiv(n, 128),)](tokens, logp, at, ends, ids, logps, running, n, len(ends), 128, num_warps=4)


@triton.jit(do_not_specialize=["n"])
def _record(tokens, logp, at, ends, ids, logps, running, n, ENDS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < n
    token = tl.load(tokens + row, inside, 0)
    where = tl.load(at + row, inside, 0)
    tl.store(ids + where, token, inside)
    tl.store(logps + where, tl.load(logp + row, inside, 0.0).to(tl.float64), inside)
    ended = token != token
    for end in range(ENDS):
        ended |= token == tl.load(ends + end)
    tl.store(running + row, tl.zeros([BLOCK], tl.int1), inside & ended)
