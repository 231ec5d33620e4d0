"""`graph_ops` for CUDA: a Triton kernel for each, which reads what a row sees from the device and never waits.

Arithmetic is float32 whatever is stored, rounded where plain torch rounds. What samples is in
`graph_draw_kernels`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tuneloop.rollout.graph_draw_kernels import draw, logits, record
from tuneloop.rollout.graph_ops import Rows, Shape

__all__ = ["attend", "draw", "gate", "logits", "norm", "place", "record"]

MANY_ROWS = 512
"""From here on a GPU is full with several rows a program (measured on an H200)."""


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    out = torch.empty_like(x)
    n, width = x.shape
    _norm[(n,)](x, weight, out, eps, width, triton.next_power_of_2(width), num_warps=4)
    return out


@triton.jit
def _norm(x, weight, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    value = tl.load(x + row * WIDTH + column, inside, 0.0).to(tl.float32)
    normed = value * tl.rsqrt(tl.sum(value * value) / WIDTH + eps)
    stored = out.dtype.element_ty
    factor = tl.load(weight + column, inside, 0.0).to(tl.float32)
    tl.store(out + row * WIDTH + column, (normed.to(stored).to(tl.float32) * factor).to(stored), inside)


def gate(joined: Tensor) -> Tensor:
    n, width = joined.shape[0], joined.shape[1] // 2
    out = joined.new_empty(n, width)
    _gate[(n, triton.cdiv(width, 1024))](joined, out, width, 1024, num_warps=4)
    return out


@triton.jit
def _gate(joined, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    gated = tl.load(joined + row * 2 * WIDTH + column, inside, 0.0).to(tl.float32)
    up = tl.load(joined + row * 2 * WIDTH + WIDTH + column, inside, 0.0).to(tl.float32)
    stored = out.dtype.element_ty
    gated = (gated * tl.sigmoid(gated)).to(stored).to(tl.float32)
    tl.store(out + row * WIDTH + column, (gated * up).to(stored), inside)


@triton.jit
def _slot(j, prefix, prompt, suffix, reply):
    """`Rows.slots`."""
    return tl.where(j < prefix, j, tl.where(j < prompt, suffix + j - prefix, reply + j - prompt))


def place(
    joined: Tensor, qk_norm: Tensor | None, rotary: Tensor, rows: Rows, keys: Tensor, values: Tensor, shape: Shape
) -> Tensor:
    K, H, D = shape.K, shape.R * shape.K, shape.D
    n = joined.shape[0]
    q = joined.new_empty(n, H * D)
    heads = triton.next_power_of_2(H + K)
    where = (rows.position, rows.suffix, rows.prompt, rows.reply, rows.prefix)
    weight = joined if qk_norm is None else qk_norm
    sizes = (H, K, D, heads, triton.next_power_of_2(D // 2), triton.next_power_of_2(K * D))
    _place[(n,)](joined, weight, rotary, *where, q, keys, values, shape.eps, *sizes, qk_norm is not None, num_warps=2)
    return q


@triton.jit
def _place(
    joined,
    qk_norm,
    rotary,
    position,
    suffix,
    prompt,
    reply,
    prefix,
    q,
    keys,
    values,
    eps,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    VALUES: tl.constexpr,
    NORMED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    j = tl.load(position + row)
    slot = _slot(j, tl.load(prefix), tl.load(prompt + row), tl.load(suffix + row), tl.load(reply + row))
    head = tl.arange(0, HEADS)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    # Both halves of a pair are read and written together: [heads, pairs, 2].
    both = tl.arange(0, 2)[None, None, :]
    cell = (head * D + 2 * pair)[:, :, None] + both
    inside = (head < H + K) & (pair < D // 2)
    source = joined + row * (H + 2 * K) * D
    stored = source.dtype.element_ty
    even, odd = tl.split(tl.load(source + cell, inside[:, :, None], 0.0).to(tl.float32))
    if NORMED:
        inverse = tl.rsqrt(tl.sum(even * even + odd * odd, axis=1) / D + eps)[:, None]
        to_even, to_odd = tl.split(tl.load(qk_norm + cell, inside[:, :, None], 0.0).to(tl.float32))
        even = ((even * inverse).to(stored).to(tl.float32) * to_even).to(stored).to(tl.float32)
        odd = ((odd * inverse).to(stored).to(tl.float32) * to_odd).to(stored).to(tl.float32)
    angle = rotary + j * D + 2 * pair
    cos = tl.load(angle, pair < D // 2, 0.0)
    sin = tl.load(angle + 1, pair < D // 2, 0.0)
    turned = tl.join(even * cos - odd * sin, even * sin + odd * cos).to(stored)
    tl.store(q + row * H * D + cell, turned, (inside & (head < H))[:, :, None])
    tl.store(keys + slot * K * D + cell - H * D, turned, (inside & (head >= H))[:, :, None])
    entry = tl.arange(0, VALUES)
    value = tl.load(source + (H + K) * D + entry, entry < K * D, 0.0)
    tl.store(values + slot * K * D + entry, value, entry < K * D)


def attend(q: Tensor, rows: Rows, keys: Tensor, values: Tensor, shape: Shape) -> Tensor:
    """A program takes one row, or several where rows are many and most of what they see is the prefix, which it
    then reads once for all of them."""
    K, R, D = shape.K, shape.R, shape.D
    n, out = len(q), torch.empty_like(q)
    where = (rows.position, rows.suffix, rows.prompt, rows.reply, rows.prefix)
    width = max(16, triton.next_power_of_2(D))
    # Two stages of keys and values must fit the shared memory of any device.
    most = 65_536 // (4 * width * q.element_size())
    precision = "ieee" if q.dtype == torch.float32 else "tf32"
    if n < MANY_ROWS or not rows.near:
        heads = max(16, triton.next_power_of_2(R))
        few = n < 256
        sizes = (K, R, D, width, heads, min(most, 128 if few else 64), precision)
        _attend[(n, K)](q, *where, keys, values, out, D**-0.5, *sizes, num_warps=4 if few else 2, num_stages=2)
    else:
        together = max(1, min(4, 16 // triton.next_power_of_2(R)))
        heads = max(16, triton.next_power_of_2(together * R))
        sizes = (K, R, D, width, heads, together, min(most, 64), precision)
        warps = 2 if width <= 64 else 4
        grid = (triton.cdiv(n, together), K)
        _attend_together[grid](q, *where, keys, values, out, D**-0.5, n, *sizes, num_warps=warps, num_stages=2)
    return out


@triton.jit
def _fold(queries, at, inside, seen, keys, values, scale, top, total, mixed, PRECISION: tl.constexpr):
    """Some more keys into the running softmax: `top` and `total` [heads], `mixed` [heads, width]."""
    k = tl.load(keys + at, inside, 0.0)
    v = tl.load(values + at, inside, 0.0)
    scores = tl.dot(queries, tl.trans(k), input_precision=PRECISION) * scale
    scores = tl.where(seen, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, axis=1))
    base = tl.where(new_top == float("-inf"), 0.0, new_top)  # nothing seen yet
    weights = tl.exp(scores - base[:, None])
    fade = tl.exp(top - base)
    total = total * fade + tl.sum(weights, axis=1)
    mixed = mixed * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    return new_top, total, mixed


@triton.jit
def _attend(
    q,
    position,
    suffix,
    prompt,
    reply,
    prefix,
    keys,
    values,
    out,
    scale,
    K: tl.constexpr,
    R: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    last = tl.load(position + row)
    P, from_prompt = tl.load(prefix), tl.load(prompt + row)
    from_suffix, from_reply = tl.load(suffix + row), tl.load(reply + row)
    r = tl.arange(0, HEADS)[:, None]
    d = tl.arange(0, WIDTH)[None, :]
    of_q = (row * R * K + r * K + head) * D + d
    mine = (r < R) & (d < D)
    queries = tl.load(q + of_q, mine, 0.0)
    top = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    mixed = tl.zeros([HEADS, WIDTH], tl.float32)
    for start in range(0, last + 1, KEYS):
        j = start + tl.arange(0, KEYS)
        at = _slot(j, P, from_prompt, from_suffix, from_reply)[:, None] * (K * D) + head * D + d
        inside = (j <= last)[:, None] & (d < D)
        seen = (j <= last)[None, :]
        top, total, mixed = _fold(queries, at, inside, seen, keys, values, scale, top, total, mixed, PRECISION)
    tl.store(out + of_q, (mixed / total[:, None]).to(out.dtype.element_ty), mine)


@triton.jit(do_not_specialize=["n"])
def _attend_together(
    q,
    position,
    suffix,
    prompt,
    reply,
    prefix,
    keys,
    values,
    out,
    scale,
    n,
    K: tl.constexpr,
    R: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * ROWS
    head = tl.program_id(1)
    P = tl.load(prefix)
    m = tl.arange(0, HEADS)  # a row's query heads, the next row's …
    row = first + m // R
    real = (m < ROWS * R) & (row < n)
    last = tl.load(position + row, real, -1)
    farthest = tl.max(last)
    d = tl.arange(0, WIDTH)[None, :]
    of_q = (row * (R * K) + (m % R) * K + head)[:, None] * D + d
    mine = real[:, None] & (d < D)
    queries = tl.load(q + of_q, mine, 0.0)
    top = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    mixed = tl.zeros([HEADS, WIDTH], tl.float32)
    for start in range(0, tl.minimum(P, farthest + 1), KEYS):
        j = start + tl.arange(0, KEYS)
        at = j[:, None] * (K * D) + head * D + d
        inside = (j < P)[:, None] & (d < D)
        seen = (j < P)[None, :] & (j[None, :] <= last[:, None])
        top, total, mixed = _fold(queries, at, inside, seen, keys, values, scale, top, total, mixed, PRECISION)
    # Behind the prefix every row has keys of its own: an equal share of each block.
    i = tl.arange(0, KEYS)
    SHARE: tl.constexpr = KEYS // ROWS
    owner = first + i // SHARE
    there = owner < n
    owner_last = tl.load(position + owner, there, -1)
    owner_prompt, owner_suffix = tl.load(prompt + owner, there, 0), tl.load(suffix + owner, there, 0)
    owner_reply = tl.load(reply + owner, there, 0)
    own = owner[None, :] == row[:, None]
    for start in range(P, farthest + 1, SHARE):
        j = start + i % SHARE
        at = _slot(j, P, owner_prompt, owner_suffix, owner_reply)[:, None] * (K * D) + head * D + d
        inside = (j <= owner_last)[:, None] & (d < D)
        seen = own & (j <= owner_last)[None, :]
        top, total, mixed = _fold(queries, at, inside, seen, keys, values, scale, top, total, mixed, PRECISION)
    tl.store(out + of_q, (mixed / total[:, None]).to(out.dtype.element_ty), mine)
