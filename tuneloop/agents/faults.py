"""How an episode can fail that is not the policy's doing, and how often it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the checks need the names alone, and no torch
    from tuneloop.rollout.ask import Answer

FAULTS = ("raised", "timed_out", "flooded", "silent")
"""The agent raised; took too long; asked for too many replies; returned without asking the policy."""


def fault_counts(answers: Sequence[Sequence[Answer]]) -> dict[str, int]:
    """`fault_<kind>`: how many of these episodes ended so."""
    faults = Counter(answer.fault for group in answers for answer in group)
    return {f"fault_{kind}": faults[kind] for kind in FAULTS}
