"""Players that need no model: opponents in games, and reference lines for the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from tuneloop.tasks.reference import expected
from tuneloop.tasks.tictactoe.board import best_squares, finishing_squares, free_squares, other, to_move
from tuneloop.tasks.tictactoe.reward import move_outcome

Choices = Callable[[str], list[int]]
"""The squares among which a player chooses with equal chances, for the side to move."""


def win_or_block(board: str) -> list[int]:
    """A winning square if there is one, else a square that stops the opponent, else any free one."""
    mark = to_move(board)
    return finishing_squares(board, mark) or finishing_squares(board, other(mark)) or free_squares(board)


def best_reward(board: str) -> list[int]:
    """A winning square if there is one, else a square that keeps the minimax value."""
    return finishing_squares(board, to_move(board)) or best_squares(board)


REFERENCE: Mapping[str, Choices] = {
    "any square": lambda board: list(range(1, 10)),
    "any free square": free_squares,
    "win, else block, else any": win_or_block,
    "best possible": best_reward,
}

OPPONENTS: Mapping[str, Choices] = {"random": free_squares, "win/block": win_or_block, "minimax": best_squares}


def reference_players(boards: Sequence[str], measures: Mapping[str, frozenset[str]]) -> dict[str, dict[str, float]]:
    """Exact expected reward and measure shares of every reference player, averaged over `boards`."""
    return {
        player: expected([[move_outcome(board, square) for square in choices(board)] for board in boards], measures)
        for player, choices in REFERENCE.items()
    }


def opponent_move(name: str) -> Callable[[str, Random], int]:
    """The player `name` of `OPPONENTS` as `Games.opponents` wants it: (board, random) → square."""
    return lambda board, random: random.choice(OPPONENTS[name](board))
