"""Move mode against game mode: one table from the metrics of several runs (docs/games.md).

    python -m bench.modes move=RUN/data/compare/metrics.json move=… game=… game=…

Every argument is LABEL=FILE, a file that stage `compare` wrote. Prints a Markdown table: a row a run, and for every
label the mean of its runs. Held-out numbers are those of the trained policy's sampled replies; games are won, drawn,
lost and forfeited by the trained policy as X and as O together.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tuneloop.artifacts import read_json

OPPONENTS = ("random", "win/block", "minimax")
RESULTS = ("won", "drawn", "lost", "forfeit")


def numbers(metrics: Mapping[str, Any]) -> list[float]:
    """Reward, illegal share, and for every opponent the games by result."""
    sampled, games = metrics["sampled"], metrics["games"]["after"]
    counts = [sum(side[opponent][result] for side in games.values()) for opponent in OPPONENTS for result in RESULTS]
    return [sampled["reward"]["after"]["value"], 1 - sampled["legal"]["after"]["value"], *counts]


def table(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """The Markdown table of (label, metrics)."""
    found = [(label, numbers(metrics)) for label, metrics in runs]
    labels = list(dict.fromkeys(label for label, _ in found))
    means = [(f"{label}, mean", _means([row for name, row in found if name == label])) for label in labels]
    head = ["run", "held-out reward", "illegal", *(f"against {opponent}" for opponent in OPPONENTS)]
    lines = [head, ["---"] * len(head), *(_cells(label, row, 0) for label, row in found)]
    lines += [_cells(label, row, 1) for label, row in means]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(column) for column in zip(*rows)]


def _cells(label: str, row: Sequence[float], digits: int) -> list[str]:
    reward, illegal, *counts = row
    games = [counts[i : i + len(RESULTS)] for i in range(0, len(counts), len(RESULTS))]
    return [label, f"{reward:+.3f}", f"{100 * illegal:.1f} %", *("-".join(f"{n:.{digits}f}" for n in g) for g in games)]


def main(arguments: Sequence[str]) -> int:
    if not arguments or not all("=" in argument for argument in arguments):
        print(__doc__, file=sys.stderr)
        return 2
    pairs = [argument.split("=", 1) for argument in arguments]
    print(table([(label, read_json(Path(path))) for label, path in pairs]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
