"""How the report shows Tic-Tac-Toe: its words, a line to hold rewards against, and drawn boards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from tuneloop.tasks.contract import Record
from tuneloop.tasks.tictactoe.generator import from_rows

WORDS = {
    "record": "board",
    "records": "boards",
    "cluster": "symmetry class",
    "clusters": "symmetry classes",
    "stratum": "number of marks",
    "choice": "The chosen move",
}

LANDMARKS = {"where the tutorial ends": 0.4}
"""Mean reward in the last steps of the tutorial that this task comes from: a rise to 0.4 looks
like learning, and is below a player who only knows which squares are free."""

_SIDE = 30


def picture(record: Record, row: Mapping[str, Any]) -> str:
    """The board of `record` as inline SVG with the square that the reply `row` chose.

    The chosen square takes the colours of its outcome from the CSS properties `--outcome` and
    `--on-outcome` of the element around it. Free squares show their numbers.
    """
    board = from_rows(record["board"])
    chosen = chosen_square(row)
    cells = "".join(_cell(square, mark, square == chosen) for square, mark in enumerate(board, 1))
    said = "no square chosen" if chosen is None else f"square {chosen} chosen"
    rows = ", then ".join(" ".join({".": "free"}.get(c, c) for c in board[i : i + 3]) for i in (0, 3, 6))
    label = escape(f"Board row by row: {rows}; {said}: {row['outcome']}")
    return f'<svg viewBox="-1 -1 {3 * _SIDE + 2} {3 * _SIDE + 2}" role="img" aria-label="{label}">{cells}</svg>'


def chosen_square(row: Mapping[str, Any]) -> int | None:
    """The square that a reply names, None where it holds no valid call."""
    try:
        square = json.loads(row["call"])["arguments"]["square"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return square if type(square) is int and 1 <= square <= 9 else None


def _cell(square: int, mark: str, chosen: bool) -> str:
    x, y = (square - 1) % 3 * _SIDE, (square - 1) // 3 * _SIDE
    fill = "var(--outcome,#888)" if chosen else "none"
    ink = "var(--on-outcome,#000)" if chosen else "currentColor"
    box = f'<rect x="{x}" y="{y}" width="{_SIDE}" height="{_SIDE}" style="fill:{fill};stroke:currentColor"/>'
    free = mark == "."
    # The move is ringed, to tell it from the marks that were there; dashed where it hit one of them.
    dashes = "" if free else ";stroke-dasharray:3 2.6"
    middle = f'cx="{x + _SIDE / 2:g}" cy="{y + _SIDE / 2:g}"'
    ring = f'<circle {middle} r="12.5" style="fill:none;stroke:{ink};stroke-width:1.3{dashes}"/>' if chosen else ""
    text = "X" if free and chosen else str(square) if free else mark
    size, weight, opacity = (17, 700, 1) if text in "XO" else (10, 400, 0.75)
    style = f"fill:{ink};font:{weight} {size}px sans-serif;text-anchor:middle;dominant-baseline:central"
    at = f'x="{x + _SIDE / 2:g}" y="{y + _SIDE / 2:g}"'
    return f'{box}{ring}<text {at} opacity="{opacity}" style="{style}">{text}</text>'
