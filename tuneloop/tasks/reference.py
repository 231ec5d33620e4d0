"""What a player that needs no model can expect: the numbers of a task's reference lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tuneloop.tasks.contract import Outcome


def expected(outcomes: Sequence[Sequence[Outcome]], measures: Mapping[str, frozenset[str]]) -> dict[str, float]:
    """`{"reward": …, <measure>: …}` of a player: its exact expected reward and shares, averaged over records.

    `outcomes`: for each record those of the answers among which the player chooses with equal chances."""
    shares = {key: _mean_of_means([[o.name in yes for o in row] for row in outcomes]) for key, yes in measures.items()}
    return {"reward": _mean_of_means([[o.reward for o in row] for row in outcomes]), **shares}


def _mean_of_means(rows: Sequence[Sequence[float]]) -> float:
    """Rounded once at the end (fsum), so that a share of all records is 1.0 and not 1.0000000000000113."""
    return math.fsum(math.fsum(row) / len(row) for row in rows) / len(rows)
