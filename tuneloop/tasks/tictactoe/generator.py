"""Seeded training boards: X to move, game open, all different.

Draws come from one `random.Random(seed)` in this order, which fixes the bytes of the file:
`randint(0, 6)` for the number of plies, then `choice` over the free squares in ascending order
for each ply, and once more for the extra O if it is O's turn.
"""

from __future__ import annotations

from itertools import combinations
from random import Random

from tuneloop.errors import UserError
from tuneloop.tasks.contract import Record
from tuneloop.tasks.tictactoe.board import EMPTY, free_squares, place, to_move, winner

MOST_MARKS = 6
POSSIBLE = 2201
"""Boards of 0, 2, 4 or 6 marks with X to move and no line: 1 + 72 + 756 + 1372."""


def generate(count: int, seed: int) -> list[Record]:
    """`count` different boards as records `{"id": "generated-00000", "board": [[…], …]}`.

    Raises UserError if `count` is not an integer from 1 to 2201: no more such boards exist.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= POSSIBLE:
        raise UserError(
            f"boards.count: {count!r} boards asked for, but it must be a whole number from 1 to "
            f"{POSSIBLE}: exactly {POSSIBLE} boards of 0 to 6 marks have X to move and an open game"
        )
    random = Random(seed)
    seen: dict[str, None] = {}
    while len(seen) < count:
        board = _random_board(random)
        if board is not None:
            seen.setdefault(board)
    return [{"id": f"generated-{i:05d}", "board": to_rows(board)} for i, board in enumerate(seen)]


def _random_board(random: Random) -> str | None:
    board = EMPTY
    for _ in range(random.randint(0, MOST_MARKS)):
        board = place(board, random.choice(free_squares(board)), to_move(board))
        if winner(board):
            break
    # Also after a won game: the draw belongs to the order that fixes the file's bytes.
    if to_move(board) == "O":
        board = place(board, random.choice(free_squares(board)), "O")
    return None if winner(board) else board


def last_moves() -> list[Record]:
    """The 222 boards on which X makes the last move of a game: eight marks, four of them X, no line. Whole games
    reach them; `generate` stops at six marks."""
    boards = (
        "".join("." if cell == free else "X" if cell in crosses else "O" for cell in range(9))
        for free in range(9)
        for crosses in combinations([cell for cell in range(9) if cell != free], 4)
    )
    return [{"id": f"last-{board}", "board": to_rows(board)} for board in boards if winner(board) is None]


def to_rows(board: str) -> list[list[str]]:
    """The board as records hold it: three rows of three."""
    return [list(board[i : i + 3]) for i in (0, 3, 6)]


def from_rows(rows: list[list[str]]) -> str:
    """The board of nine characters; the way back from `to_rows`."""
    return "".join("".join(row) for row in rows)
