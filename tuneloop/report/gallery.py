"""A fair choice of records to look at before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

Row = Mapping[str, Any]
KINDS = ("improved", "unchanged", "worse")


@dataclass(frozen=True)
class Pair:
    """The greedy replies to one record; `kind`: how the reward changed."""

    before: Row
    after: Row
    kind: str


@dataclass(frozen=True)
class Gallery:
    """`pairs` in the order of the table; `counts` and `shown` by kind, over all and over `pairs`."""

    pairs: list[Pair]
    counts: dict[str, int]
    shown: dict[str, int]


def choose_pairs(baseline: Sequence[Row], retest: Sequence[Row], size: int, seed: int) -> Gallery:
    """`size` records by a seeded draw within each kind, kinds in their true proportions (largest
    remainders), but at least one of each kind that occurs: the worse ones are never left out."""
    after = {row["id"]: row for row in retest if row["decoding"] == "greedy"}
    pairs = [
        Pair(row, after[row["id"]], _kind(row["reward"], after[row["id"]]["reward"]))
        for row in baseline
        if row["decoding"] == "greedy"
    ]
    counts = {kind: sum(pair.kind == kind for pair in pairs) for kind in KINDS}
    shown = proportional(counts, min(size, len(pairs)))
    random = Random(seed)
    chosen: set[str] = set()
    for kind in KINDS:
        ids = [pair.before["id"] for pair in pairs if pair.kind == kind]
        chosen.update(random.sample(ids, shown[kind]))
    return Gallery([pair for pair in pairs if pair.before["id"] in chosen], counts, shown)


def proportional(counts: Mapping[str, int], size: int) -> dict[str, int]:
    """`size` places dealt out in proportion to `counts` by largest remainders, at least one to each
    count above zero (as far as there are places); never more places than the count."""
    total = sum(counts.values())
    exact = {kind: size * count / total for kind, count in counts.items()}
    places = {kind: int(exact[kind]) for kind in counts}
    for kind in sorted(counts, key=lambda k: places[k] - exact[k])[: size - sum(places.values())]:
        places[kind] += 1
    for kind, count in counts.items():
        richest = max(places, key=lambda k: places[k])
        if count and not places[kind] and places[richest] > 1:
            places[richest] -= 1
            places[kind] += 1
    return places


def _kind(before: float, after: float) -> str:
    return "unchanged" if before == after else "improved" if after > before else "worse"
