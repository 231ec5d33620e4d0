"""What the data checks know of Tic-Tac-Toe (see `tuneloop.checks.contract.TaskChecks`).

Like the oracle, this shares nothing with the board code: which boards can arise is found by playing
every game forward, and turns and mirror images are made from rows, not from cell numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from tuneloop.tasks.tictactoe.oracle import EPISODE_REWARDS, MAGIC, REWARDS, episode_oracle, has_line, oracle

if TYPE_CHECKING:
    from great_expectations.expectations import Expectation

__all__ = [
    "EPISODE_REWARDS",
    "RECORD_COLUMNS",
    "REWARDS",
    "episode_oracle",
    "generated_id",
    "oracle",
    "record_expectations",
    "record_facts",
    "split_class",
]

RECORD_COLUMNS: dict[str, tuple[type, ...]] = {"id": (str,), "board": (list,)}


def generated_id(number: int) -> str:
    return f"generated-{number:05d}"


def record_facts(record: Mapping[str, Any]) -> dict[str, Any]:
    """`shape`: what `board` is. The rest is None unless that is 3 rows of 3 texts: `cells` row by row
    (`X.O/.../XO.`), `lead` (how many more X than O), `marks`, `three` (who has three in a row),
    `open_game` (whether legal play can lead there and still go on)."""
    rows = _rows(record)
    if rows is None:
        return {"shape": "not 3 rows of 3 texts"} | dict.fromkeys(("cells", "lead", "marks", "three", "open_game"))
    cells = "".join(map("".join, rows))
    return {
        "shape": "3 rows of 3 texts",
        "cells": "/".join(map("".join, rows)),
        "lead": cells.count("X") - cells.count("O"),
        "marks": 9 - cells.count("."),
        "three": " and ".join(mark for mark in "XO" if _has_three(cells, mark)) or "nobody",
        "open_game": "reached" if cells in _open_boards() else "not reached",
    }


def record_expectations() -> dict[str, Expectation]:
    import great_expectations.expectations as gxe

    return {
        "three_rows_of_three": gxe.ExpectColumnValuesToBeInSet(column="shape", value_set=["3 rows of 3 texts"]),
        "cells_x_o_or_dot": gxe.ExpectColumnValuesToMatchRegex(column="cells", regex=r"\A[XO.]{3}(?:/[XO.]{3}){2}\Z"),
        "x_to_move": gxe.ExpectColumnValuesToBeInSet(column="lead", value_set=[0]),
        "nobody_has_won": gxe.ExpectColumnValuesToBeInSet(column="three", value_set=["nobody"]),
        "at_most_six_marks": gxe.ExpectColumnValuesToBeBetween(column="marks", min_value=0, max_value=6),
        "reached_by_legal_play": gxe.ExpectColumnValuesToBeInSet(column="open_game", value_set=["reached"]),
    }


def split_class(record: Mapping[str, Any]) -> str | None:
    """The first, in the order of text, of the board's turns and mirror images."""
    rows = _rows(record)
    return None if rows is None else min("/".join(map("".join, image)) for image in _images(rows))


def _images(rows: list[list[str]]) -> Iterator[list[list[str]]]:
    for _ in range(4):
        rows = [list(column) for column in zip(*reversed(rows))]  # a quarter turn
        yield rows
        yield [row[::-1] for row in rows]


def _rows(record: Mapping[str, Any]) -> list[list[str]] | None:
    rows = record.get("board")
    square = isinstance(rows, list) and [isinstance(row, list) and len(row) for row in rows] == [3, 3, 3]
    return rows if square and all(isinstance(cell, str) for row in rows for cell in row) else None


def _has_three(cells: str, mark: str) -> bool:
    return has_line(frozenset(number for number, cell in zip(MAGIC, cells) if cell == mark))


@cache
def _open_boards() -> frozenset[str]:
    """Every board, nine cells row by row, on which a game that X began can stand and still go on."""
    reached = layer = {"." * 9}
    for mark in "XOXOXOXO":
        moves = {cells[:i] + mark + cells[i + 1 :] for cells in layer for i in range(9) if cells[i] == "."}
        layer = {cells for cells in moves if not _has_three(cells, mark)}
        reached = reached | layer
    return frozenset(reached)
