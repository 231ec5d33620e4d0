"""One pass of a decoder over tokens whose context lies in a pool of keys and values, on buffers that stay
where they are: what a CUDA graph needs to be replayed.

Nothing about a batch is fixed but the number of rows: which tokens a row sees is data (`Rows`), so one graph
serves any mix of prompts, prefixes and groups, and a reply that has ended leaves the batch by a shorter
table, without moving keys or values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from tuneloop.errors import UserError
from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.kernels import rotary_table
from tuneloop.rollout import graph_ops
from tuneloop.rollout.contract import Sampling
from tuneloop.rollout.graph_ops import Rows, Shape

GRAPHS_KEPT = 64
"""More than any run uses; a caller that changes its sampling from call to call must not fill the memory."""


@dataclass(frozen=True)
class Layer:
    """One layer's parameters as `DenseDecoder.fused` orders them; `gate_up`: both matrices as one."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Weights:
    """Copies of a decoder's parameters in `dtype`, always in the same memory."""

    def __init__(self, decoder: DenseDecoder, dtype: torch.dtype):
        self.decoder = decoder
        self.tied = decoder.head is decoder.embedding
        self._copies = [None if x is None else x.detach().to(dtype, copy=True) for x in self._current()]
        self.embedding, self.head, self.final_norm, *rest = self._copies
        self.head = self.embedding if self.tied else self.head
        fields = len(Layer.__dataclass_fields__)
        self.layers = [Layer(*rest[i : i + fields]) for i in range(0, len(rest), fields)]

    def _current(self) -> Iterator[Tensor | None]:
        decoder = self.decoder
        yield from (decoder.embedding, None if self.tied else decoder.head, decoder.final_norm)
        for f in decoder.fused():
            yield from (f.input_norm, f.qkv, f.qkv_bias, f.qk_norm, f.out, f.out_bias, f.mlp_norm)
            yield from (torch.cat([f.gate, f.up]), f.down)

    def refresh(self) -> None:
        """Take the parameters over as they stand now."""
        for copy, current in zip(self._copies, self._current()):
            if copy is not None:
                copy.copy_(current)


@dataclass(frozen=True)
class Room:
    """How much a `Step` holds: `rows` of one pass, `slots` of the pool, `tokens` drawn in one batch,
    `groups` and `positions`."""

    rows: int = 0
    slots: int = 0
    tokens: int = 0
    groups: int = 0
    positions: int = 0

    def holds(self, other: Room) -> bool:
        return all(getattr(self, name) >= getattr(other, name) for name in Room.__dataclass_fields__)

    def grown(self, other: Room) -> Room:
        """Room for both, with an eighth to spare where it had to grow."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in Room.__dataclass_fields__)
        return Room(*(old if old >= new else new + new // 8 for old, new in pairs))


class Step:
    """The buffers, and the passes over them: `prompt`, `first` and `next`.

    `table` [7, rows] int64, filled by the engine before a pass: position, suffix, prompt, reply (see `Rows`);
    token (of a prompt pass); place of a reply's first token in `ids`, `logps` and `noise`; group.
    """

    def __init__(self, weights: Weights, ends: Tensor, ops: ModuleType, captured: bool, room: Room):
        decoder, self.weights, self.ends, self.ops, self.room = weights.decoder, weights, ends, ops, room
        self.shape = Shape(decoder.kv_heads, decoder.heads // decoder.kv_heads, decoder.head_width, decoder.eps)
        device, dtype = weights.embedding.device, weights.embedding.dtype
        wide = torch.float64 if dtype == torch.float64 else torch.float32

        def zeros(*size: int, of: torch.dtype) -> Tensor:
            return torch.zeros(*size, dtype=of, device=device)

        pool = (len(weights.layers), room.slots, self.shape.K, self.shape.D)
        self.keys, self.values = zeros(*pool, of=dtype), zeros(*pool, of=dtype)
        self.table = zeros(7, room.rows, of=torch.long)
        self.prefix, self.t = zeros(1, of=torch.long), zeros(1, of=torch.long)
        self.hidden = zeros(room.rows, weights.embedding.shape[1], of=dtype)
        self.starts = zeros(room.groups, weights.embedding.shape[1], of=dtype)  # hidden states that replies begin from
        self.noise = zeros(room.tokens, of=torch.float64)
        self.ids, self.logps = zeros(room.tokens, of=torch.long), zeros(room.tokens, of=torch.float64)
        self.running = zeros(room.rows, of=torch.bool)
        table = rotary_table(torch.arange(room.positions, device=device), self.shape.D, decoder.theta, wide)
        self.rotary = torch.view_as_real(table[:, 0]).contiguous()
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}
        self.memory = torch.cuda.graph_pool_handle() if captured else None
        self.near = False
        """See `Rows`; the engine says it before a pass."""

    def prompt(self, n: int) -> None:
        """Keys and values of the table's first n tokens to their slots, hidden states to `hidden`."""
        self._run(("prompt", n, self.near), lambda: self._prompt(n))

    def first(self, n: int, sampling: Sampling) -> None:
        """Token 0 of the table's first n replies, from `starts`."""
        self._run(("first", n, sampling), lambda: self._first(n, sampling))

    def next(self, n: int, sampling: Sampling) -> None:
        """Token `t` of the table's first n replies; then counts `t` up."""
        self._run(("next", n, self.near, sampling), lambda: self._next(n, sampling))

    def _run(self, key: Hashable, work: Callable[[], None]) -> None:
        """Eagerly the first time, which also builds kernels and handles; captured when it comes again."""
        if self.memory is None:
            work()
        elif key not in self.graphs:
            if len(self.graphs) >= GRAPHS_KEPT:
                torch.cuda.synchronize()
                self.graphs.clear()
            self.graphs[key] = None
            work()
        else:
            if self.graphs[key] is None:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self.memory, capture_error_mode="thread_local"):
                    work()
                self.graphs[key] = graph
            self.graphs[key].replay()

    def _prompt(self, n: int) -> None:
        position, suffix, prompt, reply, token = self.table[:5, :n]
        self.hidden[:n] = self._layers(token, Rows(position, suffix, prompt, reply, self.prefix, self.near))

    def _first(self, n: int, sampling: Sampling) -> None:
        self._draw(self.starts.index_select(0, self.table[6, :n]), self.table[5, :n], n, sampling)

    def _next(self, n: int, sampling: Sampling) -> None:
        _, suffix, prompt, reply, _, place = self.table[:6, :n]
        at = place + self.t
        rows = Rows(prompt + (self.t - 1), suffix, prompt, reply, self.prefix, self.near)
        self._draw(self._layers(self.ids.index_select(0, at - 1), rows), at, n, sampling)
        self.t += 1

    def _draw(self, hidden: Tensor, at: Tensor, n: int, sampling: Sampling) -> None:
        logits = self.ops.logits(hidden, self.weights.head)
        tokens, logp = self.ops.draw(logits, sampling, self.noise.index_select(0, at))
        self.ops.record(tokens, logp, at, self.ends, self.ids, self.logps, self.running[:n])

    def _layers(self, tokens: Tensor, rows: Rows) -> Tensor:
        """Final hidden states [n, hidden] of `tokens` [n], their keys and values put into the pool."""
        ops, weights, shape = self.ops, self.weights, self.shape
        x = F.embedding(tokens, weights.embedding)
        for layer, keys, values in zip(weights.layers, self.keys, self.values):
            joined = F.linear(ops.norm(x, layer.input_norm, shape.eps), layer.qkv, layer.qkv_bias)
            q = ops.place(joined, layer.qk_norm, self.rotary, rows, keys, values, shape)
            x.addmm_(ops.attend(q, rows, keys, values, shape), layer.out.T)
            if layer.out_bias is not None:
                x += layer.out_bias
            x.addmm_(ops.gate(F.linear(ops.norm(x, layer.mlp_norm, shape.eps), layer.gate_up)), layer.down.T)
        return ops.norm(x, weights.final_norm, shape.eps)


def ops_for(device: torch.device, dtype: torch.dtype) -> ModuleType:
    """The kernels where they can run (CUDA, not float64), else plain torch. Raises UserError where CUDA is without
    the compiler that they need."""
    if device.type != "cuda" or dtype == torch.float64:
        return graph_ops
    if find_spec("triton") is None:
        raise UserError("on a GPU it needs the package triton, which torch's CUDA builds for Linux bring with them")
    from tuneloop.rollout import graph_kernels

    return graph_kernels
