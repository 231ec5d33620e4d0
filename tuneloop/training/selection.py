"""What of a step's replies is trained on.

RL      every reply of the groups whose rewards differ, weighed by its advantage
sft     the best reply of each group
dpo     the best reply of each group (chosen) against its worst (rejected)

A group whose rewards are all equal shows nothing better than something else: it is left out under every algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence

from tuneloop.training.batch import Group

IMITATION = ("sft", "dpo")
"""Algorithms that take replies, or pairs of them, as they are: without advantages, ratios or clipping."""


def select(
    algorithm: str, groups: Sequence[Group], rewards: Sequence[Sequence[float]], least: float | None = None
) -> list[Group]:
    """The groups that are trained on, in their order, each with the replies that count. `rewards` [group][reply] is
    what training is told that they earned; under sft a best reply that earned less than `least` is passed over."""
    if algorithm not in IMITATION:
        return [group for group in groups if any(group.advantages)]
    found = []
    for group, earned in zip(groups, rewards):
        # A reply that was left out of the group has no tokens; its reward still tells that the others are better.
        places = [i for i, length in enumerate(group.lengths) if length]
        best = max(places, key=lambda i: earned[i], default=None)  # the first of equals
        worst = min(places, key=lambda i: earned[i], default=None)
        if best is None:
            continue
        if algorithm == "sft" and earned[best] > min(earned) and (least is None or earned[best] >= least):
            found.append(group.of_places([best], [1.0]))
        if algorithm == "dpo" and earned[best] > earned[worst]:
            found.append(group.of_places([best, worst], [1.0, -1.0]))
    return found
