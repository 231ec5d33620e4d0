"""The order in which records are visited: whole shuffled passes, from the seed and position alone."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


def visit(records: Sequence[T], start: int, count: int, seed: int) -> list[T]:
    """Records `start` to `start + count` of an endless sequence of shuffled passes over `records`.
    A function of its arguments, so that a resumed run needs no state to go on where it stood."""
    found: list[T] = []
    position = start
    while len(found) < count:
        number, offset = divmod(position, len(records))
        pass_order = list(range(len(records)))
        Random(f"{seed}/{number}").shuffle(pass_order)
        taken = pass_order[offset : offset + count - len(found)]
        found += [records[i] for i in taken]
        position += len(taken)
    return found
