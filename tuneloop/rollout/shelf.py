"""Keys and values of replies that are written side by side, each row in a place of its own.

The first places are those of rows that are being written, the next those of rows whose prompts are still being
computed, without a gap: the keys of either part are a slice, never a copy. Rows move only to close gaps.

Shape suffixes: M places · K key/value heads · W width · D head width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tuneloop.rollout.contract import Sampling

FIRST_TOKENS = 2048
"""Of a new shelf: its places grow with the rows."""


@dataclass(eq=False)
class Row:
    """One reply in the making: `index` of those that `ticket` asked for, of `limit` tokens at most. `sampling`: one
    object for all rows with equal settings. `uniforms`: its random numbers, one a token. `held`: tokens whose keys
    are in its place; `drawn`: tokens of the reply so far, `token` the last of them."""

    ticket: int
    index: int
    prompt: Sequence[int]
    sampling: Sampling
    limit: int
    uniforms: Sequence[float]
    held: int = 0
    drawn: int = 0
    token: int = 0


class Shelf:
    """Places for rows of at most `width` tokens. `keys` and `values` are [layers, M, K, W, D] and hold zeros where
    nothing was written: what a mask hides is multiplied with 0, so it must be a number.

    `writing`: the rows in the first places. `reading`: those in the next. Their order is that of their places."""

    def __init__(self, layers: int, kv_heads: int, width: int, head_width: int, like: Tensor):
        """`like`: has the type and device of keys and values."""
        self.width, self.kv_heads = width, kv_heads
        self.writing: list[Row] = []
        self.reading: list[Row] = []
        shape = layers, max(1, FIRST_TOKENS // width), kv_heads, width, head_width
        self.keys, self.values = (torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in range(2))

    def add(self, row: Row) -> None:
        """A row whose prompt is to be computed."""
        self._make_room(len(self.rows) + 1)
        self.reading.append(row)

    def begin(self, place: int, prefix: tuple[Tensor, Tensor]) -> None:
        """Give the row in a place the keys and values [layers, K, P, D] of its prompt's first P tokens."""
        row = self.rows[place]
        row.held = prefix[0].shape[2]
        self.keys[:, place, :, : row.held], self.values[:, place, :, : row.held] = prefix

    @property
    def rows(self) -> list[Row]:
        return self.writing + self.reading

    def arrange(self, writing: Sequence[Row], reading: Sequence[Row], origin: Mapping[int, Row] = {}) -> None:
        """From now on these rows are written and read. `origin`: by the `id` of a new row, the row here whose prompt
        it shares."""
        if writing == self.writing and reading == self.reading:
            return
        before = {id(row): place for place, row in enumerate(self.rows)}
        count = len(writing)
        self._make_room(count + len(reading))
        # Whoever has a place inside stays; the others fill the gaps.
        placed: list[Row | None] = [None] * count
        others = []
        for row in writing:
            place = before.get(id(row), count)
            if place < count:
                placed[place] = row
            else:
                others.append(row)
        waiting = iter(others)
        self.writing = [next(waiting) if row is None else row for row in placed]
        self.reading = list(reading)
        moves = []
        for place, row in enumerate(self.rows):
            source = before[id(origin.get(id(row), row))]
            if source != place:
                moves.append((place, source))
        if moves:
            to, places = (torch.tensor(side, device=self.keys.device) for side in zip(*moves))
            used = max(row.held for row in self.rows)
            for cache in (self.keys, self.values):
                # The right side is a copy before anything is written.
                cache[:, to, :, :used] = cache[:, places, :, :used]

    def kept(self, place: int, length: int) -> tuple[Tensor, Tensor]:
        """A copy of the first `length` keys and values of a place, both [layers, K, length, D]."""
        return self.keys[:, place, :, :length].clone(), self.values[:, place, :, :length].clone()

    def slots(self, places: np.ndarray, positions: np.ndarray) -> Tensor:
        """[tokens · K] where the keys of these tokens lie in a layer's [M · K · W, D]."""
        heads = places[:, None] * self.kv_heads + np.arange(self.kv_heads)
        return torch.from_numpy((heads * self.width + positions[:, None]).reshape(-1)).to(self.keys.device)

    def _make_room(self, places: int) -> None:
        layers, have, *rest = self.keys.shape
        if places <= have:
            return
        grown = []
        for cache in (self.keys, self.values):
            new = cache.new_zeros(layers, max(places, 2 * have), *rest)
            new[:, :have] = cache
            grown.append(new)
        self.keys, self.values = grown
