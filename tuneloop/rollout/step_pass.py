"""What one step computes on one shelf: the next token of every row that is written, and a piece of every prompt
that is read. Shape suffixes as in `tuneloop.rollout.stepping`; B prompts · S longest piece · w keys looked at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tuneloop.rollout.shelf import Shelf


@dataclass(frozen=True)
class Pass:
    """The tokens of a step that belong to one shelf: one a row in `writing`, then `pieces[j]` of row j in `reading`."""

    shelf: Shelf
    pieces: list[int]
    ids: np.ndarray
    positions: np.ndarray
    slots: Tensor
    """[T · K]; see `Shelf.slots`."""
    to_write: Tensor | None
    """[rows that write, 1, 1, w] additive mask."""
    to_read: Tensor | None
    """[B, 1, S · R, w] additive mask."""
    padded: Tensor | None
    """[B · S] which of the pieces' tokens each padded slot holds; any behind a piece's end."""
    packed: Tensor | None
    """[pieces' tokens] the padded slot of each."""

    @staticmethod
    def of(shelf: Shelf, pieces: list[int], repeat: int) -> Pass:
        """`repeat`: R."""
        written, read = shelf.writing, shelf.reading[: len(pieces)]
        like = shelf.keys
        ids = [row.token for row in written]
        positions = [row.held for row in written]
        places = list(range(len(written)))
        for j, (row, size) in enumerate(zip(read, pieces)):
            ids += row.prompt[row.held : row.held + size]
            positions += range(row.held, row.held + size)
            places += [len(written) + j] * size
        at = np.array(positions)
        masks: list[Tensor | None] = [None, None]
        if written:
            masks[0] = _mask(at[: len(written), None], like)[:, None]
        padded = packed = None
        if read:
            sizes, begins = np.array(pieces), np.array([row.held for row in read])
            S = int(sizes.max())
            inside = np.arange(S) < sizes[:, None]
            numbers = np.zeros(inside.shape, dtype=np.int64)
            numbers[inside] = np.arange(sizes.sum())
            padded = torch.from_numpy(numbers.reshape(-1)).to(like.device)
            packed = torch.from_numpy(np.flatnonzero(inside)).to(like.device)
            # A slot behind a piece's end may look at anything finite.
            seen = np.minimum(begins[:, None] + np.arange(S), (begins + sizes)[:, None] - 1)
            masks[1] = _mask(seen.repeat(repeat, axis=1), like)[:, None]
        slots = shelf.slots(np.array(places), at)
        return Pass(shelf, pieces, np.array(ids), at, slots, *masks, padded, packed)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[T, R·K·D] from queries [T, R·K, D] (heads ordered [R, K]), keys and values [T, K, D], which are put in
        their places first."""
        K, D = k.shape[1:]
        R = q.shape[1] // K
        keys, values = self.shelf.keys[layer], self.shelf.values[layer]
        for cache, new in ((keys, k), (values, v)):
            cache.view(-1, D).index_copy_(0, self.slots, new.reshape(-1, D))
        n, parts = len(self.shelf.writing), []
        if self.to_write is not None:
            rows = q[:n].view(n, R, K, D).transpose(1, 2)
            parts.append(_attention(rows, keys[:n], values[:n], self.to_write).transpose(1, 2).reshape(n, -1))
        if self.to_read is not None:
            B = len(self.pieces)
            rows = q[n:].index_select(0, self.padded).view(B, -1, K, D).transpose(1, 2)
            mixed = _attention(rows, keys[n : n + B], values[n : n + B], self.to_read)
            parts.append(mixed.transpose(1, 2).reshape(-1, R * K * D).index_select(0, self.packed))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attention(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """[rows, K, queries, D] over as many of the keys as the mask is wide."""
    w = mask.shape[-1]
    return F.scaled_dot_product_attention(q, keys[:, :, :w], values[:, :, :w], attn_mask=mask)


def _mask(last: np.ndarray, like: Tensor) -> Tensor:
    """[…, w] 0 on keys up to place `last`, each query's own, else −∞; w: the keys that any of them sees."""
    where = torch.from_numpy(last).to(like.device)[..., None]
    w = int(last.max()) + 1
    hidden = torch.arange(w, device=like.device) > where
    return torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden, -torch.inf)
