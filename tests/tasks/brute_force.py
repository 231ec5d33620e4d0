"""Tic-Tac-Toe written a second time for the tests, sharing no code and no method with the package:
boards are listed instead of drawn, play is solved backwards from full boards on bit masks."""

from __future__ import annotations

from itertools import product

LINES = [0o7, 0o70, 0o700, 0o111, 0o222, 0o444, 0o421, 0o124]
"""The eight lines as bit masks; bit s-1 is square s, so an octal digit is a row."""
FULL = 0o777


def masks(board: str) -> tuple[int, int]:
    """The squares of X and of O as bit masks."""
    return tuple(sum(1 << i for i, cell in enumerate(board) if cell == mark) for mark in "XO")


def has_line(mask: int) -> bool:
    return any(mask & line == line for line in LINES)


def open_boards() -> list[str]:
    """Every board of at most 6 marks, equally many of X and O, without a line."""
    boards = map("".join, product("XO.", repeat=9))
    return [
        board
        for board in boards
        if board.count("X") == board.count("O") <= 3 and not any(has_line(mask) for mask in masks(board))
    ]


def images(board: str) -> set[str]:
    """The board's turns and mirror images, by turning and mirroring its rows."""
    rows = [board[0:3], board[3:6], board[6:9]]
    found = set()
    for _ in range(4):
        rows = ["".join(column) for column in zip(*rows[::-1])]
        found |= {"".join(rows), "".join(row[::-1] for row in rows)}
    return found


def solve() -> dict[tuple[int, int], int]:
    """The value for X (1, 0, -1) of every position that play can reach, as {(X mask, O mask): value}.

    Positions are listed forward mark by mark, then valued backward from the last list to the first.
    """
    layers = [{(0, 0)}]
    for marks in range(9):
        layer = set()
        for x, o in layers[-1]:
            if has_line(x) or has_line(o):
                continue
            for bit in (1 << i for i in range(9)):
                if not (x | o) & bit:
                    layer.add((x | bit, o) if marks % 2 == 0 else (x, o | bit))
        layers.append(layer)
    values: dict[tuple[int, int], int] = {}
    for marks in range(9, -1, -1):
        for x, o in layers[marks]:
            if has_line(x) or has_line(o):
                values[x, o] = 1 if has_line(x) else -1
                continue
            bits = [1 << i for i in range(9) if not (x | o) & (1 << i)]
            after = [values[(x | b, o) if marks % 2 == 0 else (x, o | b)] for b in bits]
            values[x, o] = (max if marks % 2 == 0 else min)(after, default=0)
    return values


VALUES = solve()


def outcome(board: str, square: int) -> str:
    """What X earns by taking `square`, from the lists above."""
    x, o = masks(board)
    bit = 1 << (square - 1)
    if (x | o) & bit:
        return "occupied"
    if has_line(x | bit):
        return "win"
    return "optimal" if VALUES[x | bit, o] == VALUES[x, o] else "legal"
