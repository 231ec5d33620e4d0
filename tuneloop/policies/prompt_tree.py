"""A rollout batch as a tree whose every token is present once.

All prompts share a *prefix* (system text, tools), every group has a *suffix* of its own (the record)
and *replies*. The last token of a reply predicts nothing, so it is scored but not computed on.

Shape suffixes: T packed tokens · P prefix tokens · B groups · S longest suffix · G replies a group ·
N = B·G replies · L longest reply.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Ragged:
    """Rows of unequal length: packed one after another, or padded on the right to the longest.

    `flat[i]` is the place of packed token i in the padded [rows · width] layout.
    """

    rows: int
    width: int
    flat: Tensor
    lengths: Tensor

    @staticmethod
    def of(lengths: Sequence[int], device: torch.device | str) -> Ragged:
        rows, width = len(lengths), max(lengths, default=0)
        held = np.asarray(lengths, dtype=np.int64)
        flat = np.flatnonzero(np.arange(width) < held[:, None])
        return Ragged(rows, width, torch.from_numpy(flat).to(device), torch.from_numpy(held).to(device))

    def pad(self, packed: Tensor) -> Tensor:
        """[tokens, …] → [rows, width, …], zeros behind every row's end."""
        return _Pad.apply(packed, self.flat, self.rows * self.width).view(self.rows, self.width, *packed.shape[1:])

    def mask(self) -> Tensor:
        """[rows, width], True on tokens."""
        return torch.arange(self.width, device=self.lengths.device)[None] < self.lengths[:, None]

    def slots(self, start: int) -> Tensor:
        """[rows · width] where each padded slot's token lies in a packed layout in which these rows
        begin at `start`; a slot behind a row's end names the token at 0."""
        where = self.flat.new_zeros(self.rows * self.width)
        where[self.flat] = torch.arange(start, start + len(self.flat), device=self.flat.device)
        return where


class _Pad(torch.autograd.Function):
    # Every packed row lands in one place, so both directions are plain copies: exact, repeatable and
    # far cheaper than the accumulating scatter that indexing's own backward pass would be.
    @staticmethod
    def forward(ctx, packed: Tensor, flat: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(flat)
        out = packed.new_zeros(size, *packed.shape[1:])
        return out.index_copy_(0, flat, packed)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        (flat,) = ctx.saved_tensors
        return grad.index_select(0, flat), None, None


@dataclass(frozen=True)
class PromptTree:
    """Prompts and replies of B groups. Build with `prompt_tree`."""

    ids: Tensor
    """[T] token ids that are computed on: prefix, then suffixes, then replies without their last tokens."""
    positions: Tensor
    """[T] position of every token in its own sequence."""
    prefix: int
    suffix: Ragged
    fed: Ragged
    """The replies without their last tokens."""
    replies: Ragged
    """The replies whole."""
    reply_ids: Tensor
    """[reply tokens] the replies' token ids, packed."""
    group_size: int
    predictors: Tensor
    """[reply tokens] place in `ids` of the token whose hidden state predicts each reply token."""

    @property
    def prompt_tokens(self) -> int:
        return self.prefix + len(self.suffix.flat)


def shared_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """How many leading ids all prompts share, leaving each at least one id of its own."""
    first, last = min(prompts), max(prompts)
    limit = min(len(p) for p in prompts) - 1
    length = 0
    while length < limit and first[length] == last[length]:
        length += 1
    return length


def prompt_tree(
    prompts: Sequence[Sequence[int]],
    replies: Sequence[Sequence[Sequence[int]]],
    device: torch.device | str = "cpu",
    prefix: int | None = None,
) -> PromptTree:
    """The tree of B prompts with G replies each (`replies[b][g]` ids; may be empty).

    `prefix` fixes the shared length (at most what is really shared); None finds the longest.
    Raises ValueError where a prompt is empty or groups differ in size.
    """
    if not prompts or not all(prompts):
        raise ValueError("every group needs a prompt of at least one token")
    sizes = {len(group) for group in replies} or {0}
    if len(sizes) != 1 or len(replies) not in (0, len(prompts)):
        raise ValueError(f"every group needs equally many replies, got {sorted(sizes)}")
    shared = shared_prefix(prompts)
    prefix = shared if prefix is None else min(prefix, shared)
    suffixes = [list(prompt[prefix:]) for prompt in prompts]
    whole = [list(reply) for group in replies for reply in group]
    fed = [reply[:-1] for reply in whole]
    starts = [len(prompt) for prompt, group in zip(prompts, replies) for _ in group]
    ids = [*prompts[0][:prefix], *itertools.chain(*suffixes), *itertools.chain(*fed)]
    positions = [
        *range(prefix),
        *(i for s in suffixes for i in range(prefix, prefix + len(s))),
        *(i for start, f in zip(starts, fed) for i in range(start, start + len(f))),
    ]
    prompt_ends = list(itertools.accumulate(map(len, suffixes), initial=prefix))
    begins = itertools.accumulate(map(len, fed), initial=prompt_ends[-1])
    predictors: list[int] = []
    for n, (begin, reply) in enumerate(zip(begins, whole)):
        if reply:
            predictors += [prompt_ends[n // len(replies[0]) + 1] - 1, *range(begin, begin + len(reply) - 1)]

    def numbers(values: Sequence[int]) -> Tensor:
        # Through numpy: torch takes ten times as long to read a list.
        return torch.from_numpy(np.asarray(values, dtype=np.int64)).to(device)

    return PromptTree(
        numbers(ids),
        numbers(positions),
        prefix,
        Ragged.of([len(s) for s in suffixes], device),
        Ragged.of([len(f) for f in fed], device),
        Ragged.of([len(r) for r in whole], device),
        numbers([i for reply in whole for i in reply]),
        sizes.pop(),
        numbers(predictors),
    )
