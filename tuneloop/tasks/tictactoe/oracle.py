"""A second opinion on every reply: outcome and reward from the board and the text alone.

Nothing here is shared with the code that it checks (`board`, `reward`, the reader of replies), and the ways are
different where they can be, so that a bug on either side shows up as a disagreement: lines are sums in a magic
square, play is searched over sets of numbers, and calls are read by `tuneloop.tasks.second_reader`.
"""

from __future__ import annotations

import math
import re
from functools import cache
from itertools import combinations
from typing import Any

from tuneloop.tasks.second_reader import Tools, second_reading
from tuneloop.toolcalls.contract import Reasoning

MAGIC = (2, 7, 6, 9, 5, 1, 4, 3, 8)
"""The Lo Shu square, row by row: three cells are a line exactly if their numbers sum to 15."""

REWARDS = {
    "no_call": -1.0,
    "several_calls": -1.0,
    "wrong_tool": -1.0,
    "bad_arguments": -1.0,
    "occupied": -1.0,
    "legal": 0.0,
    "optimal": 0.8,
    "win": 1.0,
}

TOOLS: Tools = {"choose_square": {"square": range(1, 10)}}


def oracle(shown: str, text: str, reasoning: Reasoning | None, dialect: str) -> tuple[str, float]:
    """Outcome and reward of the reply `text` on the board `shown` (`X.O/.../XO.`, X to move, game open).

    Never raises for any text. Raises UserError for a dialect that it cannot read.
    """
    square = _chosen(text, reasoning, dialect)
    outcome = square if isinstance(square, str) else move(shown, square)
    return outcome, REWARDS[outcome]


def _chosen(text: str, reasoning: Reasoning | None, dialect: str) -> int | str:
    """The square that a reply chooses, or its fault."""
    found = second_reading(text, reasoning, dialect, TOOLS)
    return found if isinstance(found, str) else found[1]["square"]


def move(shown: str, square: int) -> str:
    """The outcome of X taking `square` (1–9, row by row)."""
    cells = shown.replace("/", "")
    own, other = (frozenset(n for n, cell in zip(MAGIC, cells) if cell == mark) for mark in "XO")
    number = MAGIC[square - 1]
    if number in own | other:
        return "occupied"
    if has_line(own | {number}):
        return "win"
    return "optimal" if -_score(other, own | {number}) == _score(own, other) else "legal"


POINTS = {"no_call": -1.0, "several_calls": -1.0, "wrong_tool": -1.0, "bad_arguments": -1.0, "occupied": -1.0} | {
    "lost": 0.0,
    "drawn": 0.5,
    "won": 1.0,
}
EPISODE_REWARDS = {"end": POINTS, "turn": dict.fromkeys(POINTS)}
"""By `task.reward_at`, the reward of every outcome of a whole game; None where it also depends on the way there."""


def episode_oracle(
    shown: str, turns: list[dict[str, Any]], reasoning: Reasoning | None, dialect: str, reward_at: str
) -> tuple[str, float | None]:
    """Outcome and reward of a whole game from the board `shown`, X to move: played again from the texts of the
    replies, with the opponent's moves as the tool's answers tell them. The move with which O wins is told to nobody;
    a game that ends there counts as lost where O has such a move. A record of turns that is no game from its
    beginning to its end has an outcome that says so, and no reward."""
    cells = shown.replace("/", "")
    earned: list[float] = []
    for number, turn in enumerate(turns, 1):
        outcome, reward = oracle("/".join((cells[:3], cells[3:6], cells[6:])), turn["text"], reasoning, dialect)
        earned.append(reward)
        if reward < 0:
            end = outcome
        else:
            cells = _marked(cells, _chosen(turn["text"], reasoning, dialect), "X")
            end = "won" if outcome == "win" else "drawn" if "." not in cells else None
        if end is None and turn["result"] is None:
            end = "lost" if _can_finish(cells) else "not played to its end"
        if end is not None:
            if number < len(turns) or turn["result"] is not None:
                return "goes on after its end", None
            if end not in POINTS:
                return end, None
            return end, math.fsum(earned) / len(earned) if reward_at == "turn" else POINTS[end]
        told = re.match(r"O takes ([1-9])\.\n", turn["result"])
        if told is None or cells[int(told[1]) - 1] != ".":
            return "O makes no move", None
        cells = _marked(cells, int(told[1]), "O")
        if re.findall(r"[1-9]([XO.])", turn["result"][len(told[0]) :]) != list(cells):
            return "shows another board", None
    return "not played to its end", None


def _marked(cells: str, square: int, mark: str) -> str:
    return "".join(mark if place == square else cell for place, cell in enumerate(cells, 1))


def _can_finish(cells: str) -> bool:
    own = frozenset(n for n, cell in zip(MAGIC, cells) if cell == "O")
    return any(has_line(own | {n}) for n, cell in zip(MAGIC, cells) if cell == ".")


def has_line(numbers: frozenset[int]) -> bool:
    """Whether three of the magic square's `numbers` are a line."""
    return any(sum(three) == 15 for three in combinations(numbers, 3))


@cache
def _score(own: frozenset[int], other: frozenset[int]) -> int:
    """1, 0 or -1: what the side to move, which holds `own`, reaches against best play."""
    if has_line(other):
        return -1
    free = frozenset(MAGIC) - own - other
    return max((-_score(other, own | {number}) for number in free), default=0)
