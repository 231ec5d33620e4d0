"""The torch engine for a GPU: decoding captured in CUDA graphs, so that a small model waits for no launches.

The host does little: it lays prompts and replies out in a table of numbers, replays one graph a token, and
asks every few tokens who is still writing. Replies that have ended leave when the rest fit a smaller
graph. Prompts share their longest common prefix, kept from call to call until the weights change, and every
group its suffix. `tuneloop.rollout.graph_step` has the passes. The same code runs without graphs, on a CPU too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import torch

from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.prompt_tree import shared_prefix
from tuneloop.rollout.contract import Reply, Sampling
from tuneloop.rollout.graph_step import Room, Step, Weights, ops_for
from tuneloop.rollout.sampling import uniforms

PROMPT_ROWS = 8192
"""Prompt tokens computed in one pass, at most."""
POLL = 4
"""Tokens between two questions who is still writing: each drains the device for some tens of microseconds, and
a finished batch runs on for at most this many tokens."""
NEAR = 128
"""Up to so many tokens behind the prefix, rows are attended to several at once (measured on an H200)."""
POOL_SHARE = 0.5
"""Of the device's free memory, for keys and values."""
BUCKETS = [16 * b for b in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)]
"""Rows of a graph: a third of them idle at most (from 32 on)."""


class GraphEngine:
    """Samples from a transformers model in this process; see `tuneloop.rollout.contract.Engine`."""

    def __init__(
        self,
        model: torch.nn.Module,
        end_ids: Sequence[int],
        dtype: torch.dtype | None = None,
        batch_replies: int = 1024,
        captured: bool | None = None,
    ):
        """`end_ids`: tokens that end a reply. `dtype`: what is computed in (None: the parameters' own type); logits
        and log-probabilities are float32 at least. `batch_replies`: about how many replies are in flight at once
        (whole groups, at least one). `captured`: replay CUDA graphs (None: where there is a GPU)."""
        self.decoder = DenseDecoder(model, dtype)
        self.dtype = dtype or self.decoder.embedding.dtype
        self.end_ids = list(end_ids)
        self.batch_replies = batch_replies
        device = self.decoder.device
        # In float64 plain torch computes, which waits for the device in places.
        can_capture = device.type == "cuda" and self.dtype != torch.float64
        self.captured = can_capture if captured is None else captured and can_capture
        self.ops = ops_for(device, self.dtype)
        self.weights: Weights | None = None
        self.step: Step | None = None
        self.prefix: list[int] | None = None
        """Whose keys and values the pool begins with."""
        self.stale = False

    def weights_changed(self) -> None:
        self.prefix, self.stale = None, True

    @torch.inference_mode()
    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Reply]]:
        if len(prompts) != len(seeds):
            raise ValueError(f"{len(prompts)} prompts but seeds for {len(seeds)}")
        if not all(prompts):
            raise ValueError("every prompt needs at least one token")
        if not any(seeds):
            return [[] for _ in seeds]
        device = self.decoder.device
        with torch.cuda.device(device if device.type == "cuda" else -1):  # −1: no device
            return self._generate(prompts, seeds, sampling)

    def _generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Reply]]:
        if self.weights is None:
            self.weights = Weights(self.decoder, self.dtype)
        elif self.stale:
            self.weights.refresh()
        self.stale = False
        prefix = list(prompts[0][: shared_prefix(prompts)])
        groups = max(1, self._rows_at_once(sampling.max_new_tokens) // max(map(len, seeds)))
        batches = [slice(start, start + groups) for start in range(0, len(prompts), groups)]
        rooms = [_room(prompts[b], seeds[b], len(prefix), sampling.max_new_tokens) for b in batches]
        self._make_room(Room(*(max(sizes) for sizes in zip(*(vars(room).values() for room in rooms)))))
        self._compute_prefix(prefix)
        replies: list[list[Reply]] = []
        for b in batches:
            replies += _Batch(self.step, prompts[b], seeds[b], sampling, len(prefix)).run(self.end_ids)
        return replies

    def _rows_at_once(self, new_tokens: int) -> int:
        """`batch_replies`, or what the device's memory holds of such replies."""
        device = self.decoder.device
        if device.type != "cuda":
            return self.batch_replies
        free = torch.cuda.mem_get_info(device)[0] + (0 if self.step is None else 2 * self.step.keys.nbytes)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        decoder = self.decoder
        token = 2 * len(self.weights.layers) * decoder.kv_heads * decoder.head_width * self.dtype.itemsize
        return max(1, min(self.batch_replies, int(POOL_SHARE * free) // (token * new_tokens)))

    def _make_room(self, needed: Room) -> None:
        if self.step is not None and self.step.room.holds(needed):
            return
        old = Room() if self.step is None else self.step.room
        self.step, self.prefix = None, None  # its memory goes first
        ends = torch.tensor(self.end_ids, dtype=torch.long, device=self.decoder.device)
        self.step = Step(self.weights, ends, self.ops, self.captured, old.grown(needed))

    def _compute_prefix(self, ids: list[int]) -> None:
        """Always by itself, so that having kept it changes nothing."""
        self.step.prefix.fill_(len(ids))
        if ids != self.prefix:
            self.step.near = True
            position, all_of_it = np.arange(len(ids)), np.full(len(ids), len(ids))
            for _ in _compute(self.step, np.array(ids), position, np.zeros_like(position), all_of_it, len(ids)):
                pass
            self.prefix = ids


def bucket(n: int) -> int:
    """The fewest rows of a graph that hold n."""
    return next((b for b in BUCKETS if b >= n), -(-n // PROMPT_ROWS) * PROMPT_ROWS)


def _room(prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], prefix: int, new_tokens: int) -> Room:
    """What one batch needs, with slots and places for one reply more: idle rows write there."""
    replies, suffixes = sum(map(len, seeds)), sum(map(len, prompts)) - prefix * len(prompts)
    rows = max(bucket(replies), bucket(min(PROMPT_ROWS, max(suffixes, prefix))))
    tokens = (replies + 1) * new_tokens
    return Room(rows, prefix + suffixes + tokens, tokens, len(prompts), max(map(len, prompts)) + new_tokens)


def _upload(step: Step, first: int, columns: Sequence[np.ndarray], idle: Sequence[int]) -> int:
    """Fill the table from line `first` on and return how many rows a pass over it has; rows beyond the columns'
    length get the values `idle`."""
    count = len(columns[0])
    rows = bucket(count)
    table = np.empty((len(columns), rows), dtype=np.int64)
    table[:] = np.array(idle)[:, None]
    table[:, :count] = columns
    step.table[first : first + len(columns), :rows] = torch.from_numpy(table).to(step.table.device)
    return rows


def _compute(
    step: Step, ids: np.ndarray, position: np.ndarray, suffix: np.ndarray, prompt: np.ndarray, prefix: int
) -> Iterator[int]:
    """Put prompt tokens' keys and values into the pool, a part at a time: yields where each part begins, while
    `step.hidden` holds its hidden states."""
    # An idle row is what follows the prefix, in the pool's last slot.
    idle = [prefix, 0, prefix, step.room.slots - 1, 0]
    for start in range(0, len(ids), PROMPT_ROWS):
        part = slice(start, start + PROMPT_ROWS)
        columns = [position[part], suffix[part], prompt[part], np.zeros_like(ids[part]), ids[part]]
        step.prompt(_upload(step, 0, columns, idle))
        yield start


class _Batch:
    """The replies in flight at once. The pool holds prefix, suffixes, replies, one after another."""

    def __init__(
        self,
        step: Step,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
        prefix: int,
    ):
        self.step, self.L, self.prefix = step, sampling.max_new_tokens, prefix
        # The limit is no part of a pass: the same graphs serve any.
        self.sampling = replace(sampling, max_new_tokens=0)
        self.sizes = [len(group) for group in seeds]
        self.seeds = [seed for group in seeds for seed in group]
        lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
        ends = (lengths - prefix).cumsum()
        starts = prefix + ends - (lengths - prefix)  # slot of every group's suffix
        step.near = int(lengths.max()) - prefix + self.L <= NEAR
        self._compute_suffixes(prompts, lengths, starts, ends - 1)
        group = np.repeat(np.arange(len(prompts)), self.sizes)
        place = np.arange(len(group)) * self.L
        reply = prefix + int(ends[-1]) + place
        self.columns = np.stack([starts[group], lengths[group], reply, np.zeros_like(place), place, group])

    def _compute_suffixes(
        self, prompts: Sequence[Sequence[int]], lengths: np.ndarray, starts: np.ndarray, last: np.ndarray
    ) -> None:
        """`last`: which of the packed suffix tokens end a suffix."""
        step, P = self.step, self.prefix
        own = lengths - P
        ids = np.concatenate([np.array(prompt[P:], dtype=np.int64) for prompt in prompts])
        group = np.repeat(np.arange(len(prompts)), own)
        position = P + np.arange(len(ids)) - (starts - P)[group]
        for start in _compute(step, ids, position, starts[group], lengths[group], P):
            here = np.flatnonzero((last >= start) & (last < start + PROMPT_ROWS))
            if len(here):
                rows = torch.from_numpy(last[here] - start).to(step.hidden.device)
                step.starts[here[0] : here[-1] + 1] = step.hidden.index_select(0, rows)

    def run(self, end_ids: Sequence[int]) -> list[list[Reply]]:
        step, N, L = self.step, len(self.seeds), self.L
        if not self.sampling.greedy:
            step.noise[: N * L] = torch.from_numpy(uniforms(self.seeds, L).ravel()).to(step.noise.device)
        rows = self._lay_out()
        step.first(rows, self.sampling)
        step.t.fill_(1)
        for t in range(1, L):
            if t % POLL == 0:
                writing = step.running[: self.columns.shape[1]].cpu().numpy()
                left = int(writing.sum())
                if not left:
                    break
                if bucket(left) < rows:
                    self.columns = self.columns[:, writing]
                    rows = self._lay_out()
            step.next(rows, self.sampling)
        ids, logps = (x[: N * L].view(N, L).cpu().numpy() for x in (step.ids, step.logps))
        return self._replies(ids, logps, end_ids)

    def _lay_out(self) -> int:
        room = self.step.room
        # An idle row replies to the prefix alone, into what nobody reads.
        idle = [0, self.prefix, room.slots - self.L, 0, room.tokens - self.L, 0]
        rows = _upload(self.step, 1, self.columns, idle)
        self.step.running[:rows] = True
        return rows

    def _replies(self, ids: np.ndarray, logps: np.ndarray, end_ids: Sequence[int]) -> list[list[Reply]]:
        """Cuts every row behind its first end token: what follows was drawn before the host asked."""
        ended = np.isin(ids, list(end_ids))
        stopped = ended.any(1)
        lengths = np.where(stopped, ended.argmax(1) + 1, self.L)
        flat = iter(
            Reply(row[:length], logp[:length], "stop" if stop else "length")
            for row, logp, length, stop in zip(ids.tolist(), logps.tolist(), lengths.tolist(), stopped.tolist())
        )
        return [list(islice(flat, size)) for size in self.sizes]
