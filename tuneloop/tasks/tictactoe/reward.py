"""Outcome and reward of one move of X."""

from __future__ import annotations

from tuneloop.tasks.contract import Outcome
from tuneloop.tasks.tictactoe.board import best_squares, free_squares, has_line, place
from tuneloop.toolcalls.contract import Fault, ToolCall

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
"""Every outcome, worst first. `legal`: free but loses value; `optimal`: keeps the minimax value
without winning at once; `win`: completes a line of X."""

MEASURES = {"legal": frozenset({"legal", "optimal", "win"}), "optimal": frozenset({"optimal", "win"})}
"""The outcomes that count as a legal and as an optimal move."""


def move_outcome(board: str, square: int) -> Outcome:
    """The outcome of X taking `square` (1–9) on `board` (X to move, game open)."""
    if square not in free_squares(board):
        name = "occupied"
    elif has_line(place(board, square, "X"), "X"):
        name = "win"
    elif square in best_squares(board):
        name = "optimal"
    else:
        name = "legal"
    return Outcome(name, REWARDS[name])


def score(board: str, reading: ToolCall | Fault) -> Outcome:
    """The outcome of a reply that was read as `reading`."""
    if isinstance(reading, Fault):
        return Outcome(reading.name, REWARDS[reading.name])
    return move_outcome(board, reading.arguments["square"])
