"""The order in which records are visited.

`passes`: whole shuffled passes. `Visits`: records that are not settled come more often. A record is
*settled* when the last group of replies to it all earned the same, and no less than any reply to it ever
did: another visit would give no gradient. Settled records still come back, the more often the further they are
from the best reward there is, because a group can agree on a mistake.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean
from typing import TypeVar

from tuneloop.tasks.contract import Record

T = TypeVar("T")

SETTLED_WEIGHT = 0.05
"""Weight of a settled record at the best reward; an unsettled one has 1."""
DISTANCE_WEIGHT = 0.3
"""What a settled record's weight gains over the whole distance from the best reward to the worst."""


def passes(records: Sequence[T], start: int, count: int, seed: int) -> list[T]:
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


@dataclass
class Visits:
    """What the visits to each record showed; `reward_range` is the task's (worst, best). What is drawn depends
    on the seed, the step and what was noted before: a resumed run needs `seen` and nothing else."""

    reward_range: tuple[float, float]
    seen: dict[str, tuple[float, float, bool]] = field(default_factory=dict)
    """Record id → mean reward of its last group, best reward of any reply so far, whether the last group agreed."""

    def note(self, record: Record, rewards: Sequence[float]) -> None:
        """The rewards of a group of replies to `record`."""
        best = max(rewards)
        if record["id"] in self.seen:
            best = max(best, self.seen[record["id"]][1])
        # Not by comparing the mean with the best: rounding makes the mean of seven 0.8s another number.
        self.seen[record["id"]] = (fmean(rewards), best, min(rewards) == max(rewards))

    def weight(self, record: Record) -> float:
        """How often `record` is due, relative to an unsettled one (1); infinite before its first visit."""
        if record["id"] not in self.seen:
            return math.inf
        mean, best, agreed = self.seen[record["id"]]
        worst, highest = self.reward_range
        if not agreed or mean < best - 1e-9 * (highest - worst):
            return 1.0
        return SETTLED_WEIGHT + DISTANCE_WEIGHT * (highest - mean) / (highest - worst)

    def choose(self, records: Sequence[Record], count: int, seed: int, step: int) -> list[Record]:
        """`count` different records, drawn with chances in proportion to their weights; those never visited
        first. Where there are fewer than `count`, all of them come, in turn, as often as it takes.

        The largest log(u) / weight with u uniform: sampling without replacement of Efraimidis and Spirakis,
        "Weighted random sampling with a reservoir", 2006.
        """
        random = Random(f"{seed}/visit/{step}")
        # 1 − u is never 0. Never visited ones have weight ∞: all keys 0, so u breaks the tie.
        draws = [1.0 - random.random() for _ in records]
        keys = [(math.log(u) / self.weight(record), u) for record, u in zip(records, draws)]
        order = sorted(range(len(records)), key=lambda i: keys[i], reverse=True)
        return [records[order[i % len(order)]] for i in range(count)]
