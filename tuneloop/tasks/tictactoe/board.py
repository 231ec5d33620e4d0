"""Rules of Tic-Tac-Toe on boards of nine cells.

A *board* is a string of nine characters `X`, `O` or `.` (empty), row by row; square numbers are
1–9 in the same order. X starts, so X is to move whenever both sides have equally many marks.
"""

from __future__ import annotations

from functools import cache

EMPTY = "........."
LINES = ((1, 2, 3), (4, 5, 6), (7, 8, 9), (1, 4, 7), (2, 5, 8), (3, 6, 9), (1, 5, 9), (3, 5, 7))
"""The eight lines of three squares: rows, columns, diagonals."""


def to_move(board: str) -> str:
    """The mark whose turn it is; X begins."""
    return "X" if board.count("X") == board.count("O") else "O"


def other(mark: str) -> str:
    """The opponent's mark."""
    return "O" if mark == "X" else "X"


def free_squares(board: str) -> list[int]:
    """The numbers of the empty squares, ascending."""
    return [i + 1 for i, cell in enumerate(board) if cell == "."]


def place(board: str, square: int, mark: str) -> str:
    """`board` with `mark` on the empty square `square` (1–9). Raises ValueError for any other."""
    if not 1 <= square <= 9 or board[square - 1] != ".":
        raise ValueError(f"square {square} of {board} is not free")
    return board[: square - 1] + mark + board[square:]


def has_line(board: str, mark: str) -> bool:
    """Whether `mark` has three in a line."""
    return any(all(board[s - 1] == mark for s in line) for line in LINES)


def winner(board: str) -> str | None:
    """`"X"`, `"O"`, `"draw"` for a full board without a line, or None while the game is open."""
    for mark in "XO":
        if has_line(board, mark):
            return mark
    return "draw" if "." not in board else None


def finishing_squares(board: str, mark: str) -> list[int]:
    """The empty squares that complete a line of `mark`, ascending."""
    return [s for s in free_squares(board) if has_line(place(board, s, mark), mark)]


@cache
def value(board: str) -> int:
    """Minimax value for X of a board reached by legal play: 1 X wins, 0 draw, -1 O wins."""
    end = winner(board)
    if end is not None:
        return {"X": 1, "O": -1, "draw": 0}[end]
    mark = to_move(board)
    values = [value(place(board, s, mark)) for s in free_squares(board)]
    return max(values) if mark == "X" else min(values)


def best_squares(board: str) -> list[int]:
    """The squares that keep the minimax value for the side to move, ascending."""
    mark = to_move(board)
    return [s for s in free_squares(board) if value(place(board, s, mark)) == value(board)]


def _turned(cells: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(cells[6 - 3 * (i % 3) + i // 3] for i in range(9))


def _symmetries() -> tuple[tuple[int, ...], ...]:
    cells = tuple(range(9))
    found = []
    for _ in range(4):
        cells = _turned(cells)
        found += [cells, tuple(cells[i - i % 3 + 2 - i % 3] for i in range(9))]
    return tuple(found)


SYMMETRIES = _symmetries()
"""The 8 turns and mirror images of the square, each as the old index of every new cell."""


def symmetry_class(board: str) -> str:
    """The smallest of the board's 8 turns and mirror images: equal for boards that are images
    of each other, and only for those."""
    return min("".join(board[i] for i in image) for image in SYMMETRIES)
