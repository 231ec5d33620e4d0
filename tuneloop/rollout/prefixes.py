"""Beginnings that prompts share (system text, tools, the history of a conversation), with their keys and values.

A beginning is kept from the second prompt on that has it, in whole blocks of tokens: the places at which prompts
happen to part would otherwise be as many beginnings of their own. The longest one that a prompt starts with saves
computing it; the one not used for the longest time leaves first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from torch import Tensor

BLOCK = 16
"""Tokens."""
SEEN = 50_000
"""Beginnings that are remembered without keys, to know them when they come again."""

Kept = tuple[Tensor, Tensor]
"""Keys and values, both [layers, K, tokens, D]."""


class Prefixes:
    def __init__(self, limit: int):
        """`limit`: tokens kept."""
        self.limit = limit
        self._kept: OrderedDict[bytes, Kept] = OrderedDict()
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._tokens = 0

    def clear(self) -> None:
        self._kept.clear()
        self._seen.clear()
        self._tokens = 0

    def longest(self, prompt: Sequence[int]) -> Kept | None:
        """Of the beginning kept that is the longest in `prompt`, leaving at least one token of it."""
        for name in reversed(_names(prompt)):
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
        return None

    def wanted(self, prompt: Sequence[int]) -> int:
        """How many tokens of a computed prompt `keep` should get (0: none): the longest beginning that an earlier
        prompt had too, unless it is kept already. Remembers the prompt."""
        names, found = _names(prompt), 0
        for blocks in range(len(names), 0, -1):
            name = names[blocks - 1]
            if name in self._seen:
                found = 0 if name in self._kept else blocks * BLOCK
                break
        for name in names:
            self._seen[name] = None
            self._seen.move_to_end(name)
        while len(self._seen) > SEEN:
            self._seen.popitem(last=False)
        return found if found <= self.limit else 0

    def keep(self, begin: Sequence[int], kept: Kept) -> None:
        """`begin`: whole blocks of token ids."""
        self._kept[_names([*begin, 0])[-1]] = kept
        self._tokens += len(begin)
        while self._tokens > self.limit:
            _, (keys, _) = self._kept.popitem(last=False)
            self._tokens -= keys.shape[2]


def _names(prompt: Sequence[int]) -> list[bytes]:
    """Of the beginnings of 1, 2, … blocks that leave at least one token: no two have the same."""
    ids = np.asarray(prompt, dtype=np.int64)
    running, names = hashlib.blake2b(digest_size=16), []
    for end in range(BLOCK, len(ids), BLOCK):
        running.update(ids[end - BLOCK : end].tobytes())
        names.append(running.digest())
    return names
