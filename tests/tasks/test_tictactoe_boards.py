"""The boards: which exist, how they are drawn, which records are refused."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import product

import pytest
from brute_force import has_line, images, masks, open_boards

from tuneloop.artifacts import write_jsonl
from tuneloop.errors import UserError
from tuneloop.tasks.tictactoe import TASK
from tuneloop.tasks.tictactoe.board import SYMMETRIES
from tuneloop.tasks.tictactoe.generator import from_rows, to_rows

BOARDS = open_boards()


def record(cells: str, **changes) -> dict:
    return {"id": "a", "board": to_rows(cells)} | changes


def test_the_brute_force_lists_2201_boards_as_the_design_says():
    """The numbers are the design's: 1, 72, 756, 1372 with 0, 2, 4, 6 marks."""
    assert len(BOARDS) == len(set(BOARDS)) == 2201
    assert Counter(9 - board.count(".") for board in BOARDS) == {0: 1, 2: 72, 4: 756, 6: 1372}
    assert Counter(TASK.stratum(record(board)) for board in BOARDS) == {
        "0 marks": 1,
        "2 marks": 72,
        "4 marks": 756,
        "6 marks": 1372,
    }


def test_asking_for_all_boards_gives_exactly_those():
    boards = [from_rows(r["board"]) for r in TASK.generate(2201, 5)]
    assert sorted(boards) == sorted(BOARDS)


def test_a_class_is_a_board_with_its_turns_and_mirror_images_and_there_are_304():
    classes = {board: TASK.split_key(record(board)) for board in BOARDS}
    for board, name in classes.items():
        assert name in images(board)
        assert all(classes[image] == name for image in images(board))
    assert len(set(classes.values())) == 304


def test_there_are_8_symmetries():
    assert len(set(SYMMETRIES)) == 8


@pytest.mark.parametrize(
    ("count", "seed", "sha256"),
    [
        (16, 7, "ecfa9e8146e7a4c0756ba71f945e408f598877b88a82a3ab5d18715ee4ae1e44"),
        (128, 2026, "57544727b53ee2780838538c2305c89a6bb21b5e084dac117e1f60c4cf55d9bf"),
        (2048, 2026, "e091ccc1b7be8e925e8b4f2465bd2c589558f338067e7dce65d05611e6115e6c"),
    ],
)
def test_the_file_of_boards_has_the_bytes_that_the_design_fixes(tmp_path, count, seed, sha256):
    path = tmp_path / "boards.jsonl"
    write_jsonl(path, TASK.generate(count, seed))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def test_a_record_is_one_compact_line(tmp_path):
    path = tmp_path / "boards.jsonl"
    records = TASK.generate(3, 0)
    write_jsonl(path, records)
    lines = path.read_bytes().split(b"\n")
    assert len(lines) == 4 and lines[-1] == b""
    for i, (line, r) in enumerate(zip(lines, records)):
        rows = ",".join("[" + ",".join(f'"{cell}"' for cell in row) + "]" for row in r["board"])
        assert line.decode() == f'{{"id":"generated-{i:05d}","board":[{rows}]}}'


def test_the_same_seed_gives_the_same_boards_and_a_larger_count_only_adds_to_them():
    assert TASK.generate(40, 3) == TASK.generate(40, 3)
    assert TASK.generate(40, 3)[:10] == TASK.generate(10, 3)
    assert TASK.generate(40, 3) != TASK.generate(40, 4)


def test_boards_and_ids_are_all_different():
    records = TASK.generate(500, 1)
    assert len({r["id"] for r in records}) == len({TASK.show(r) for r in records}) == 500


@pytest.mark.parametrize("count", [0, -1, 2202, 10**30, True, False, 2.0, "16", None, float("nan")])
def test_a_count_that_cannot_be_met_is_refused_at_once_naming_2201(count):
    with pytest.raises(UserError, match="2201"):
        TASK.generate(count, 0)


@pytest.mark.parametrize("board", ["." * 9, "X...O....", "XXOOOXXO."])
def test_a_valid_record_is_handed_back_as_it_is(board):
    r = record(board)
    assert TASK.validate(r, "here") is r


def test_every_generated_record_is_valid():
    for r in TASK.generate(300, 11):
        assert TASK.validate(r, "here") is r


REFUSED = {
    "X has won": record("XXXOO.O.."),
    "O has won": record("OOOXX.X.."),
    "both have won": record("XXXOOO..."),
    "a full board": record("XOXXOOOXX"),
    "O is to move": record("X........"),
    "O has more marks": record("O........"),
    "X is two ahead": record("X.X......"),
    "two rows": record("." * 9, board=[[".", ".", "."], [".", ".", "."]]),
    "four rows": record("." * 9, board=[[".", ".", "."]] * 4),
    "a short row": record("." * 9, board=[[".", ".", "."], [".", "."], [".", ".", "."]]),
    "a long row": record("." * 9, board=[[".", ".", ".", "."], ["."] * 3, ["."] * 3]),
    "rows as texts": record("." * 9, board=["...", "...", "..."]),
    "a board as text": record("." * 9, board="........."),
    "a board as an object": record("." * 9, board={"0": []}),
    "a small x": record("." * 9, board=[["x", "O", "."], ["."] * 3, ["."] * 3]),
    "a zero for O": record("." * 9, board=[["X", "0", "."], ["."] * 3, ["."] * 3]),
    "a space for empty": record("." * 9, board=[[" "] * 3] * 3),
    "an empty cell": record("." * 9, board=[[""] * 3] * 3),
    "two marks in a cell": record("." * 9, board=[["XO", ".", "."], ["."] * 3, ["."] * 3]),
    "a number in a cell": record("." * 9, board=[[1, 2, 3], ["."] * 3, ["."] * 3]),
    "a list in a cell": record("." * 9, board=[[["X"], ["O"], "."], ["."] * 3, ["."] * 3]),
    "no board": {"id": "a"},
    "null as board": {"id": "a", "board": None},
    "no id": {"board": to_rows("." * 9)},
    "an empty id": record("." * 9, id=""),
    "a number as id": record("." * 9, id=7),
    "a list": [1, 2],
    "a text": "X.O/.../XO.",
    "null": None,
}


@pytest.mark.parametrize("bad", REFUSED.values(), ids=REFUSED.keys())
def test_a_record_that_is_no_open_board_with_x_to_move_is_refused_naming_the_place(bad):
    with pytest.raises(UserError, match=r"^boards\.jsonl, line 3: "):
        TASK.validate(bad, "boards.jsonl, line 3")


def test_every_board_of_the_game_that_is_not_x_to_move_and_open_is_refused():
    """Against the list: of all boards of at most 6 marks only the 2201 pass."""
    from itertools import product

    passed = []
    for cells in product("XO.", repeat=9):
        board = "".join(cells)
        if board.count(".") < 3:
            continue
        try:
            TASK.validate(record(board), "here")
            passed.append(board)
        except UserError:
            pass
    assert sorted(passed) == sorted(BOARDS)


def test_a_shown_board_is_parsed_back_to_the_same_board():
    for board in BOARDS:
        shown = TASK.show(record(board))
        assert TASK.parse(shown) == {"id": shown, "board": to_rows(board)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "X.O/.../XO",
        "X.O.../XO.",
        "X.O/.../XO./",
        "x.o/.../xo.",
        " X.O/.../XO.",
        "X.O/.../XO.\n",
        "XXX/OO./...",
        "X../.../...",
    ],
)
def test_a_text_that_shows_no_valid_board_is_refused(text):
    with pytest.raises(UserError):
        TASK.parse(text)


def test_the_extra_records_are_all_boards_on_which_x_makes_the_last_move_and_none_that_can_be_held_out():
    extra = [from_rows(record["board"]) for record in TASK.extra_records()]
    # Listed again: one square free, equally many marks, no line.
    last = {
        board
        for board in map("".join, product("XO.", repeat=9))
        if board.count(".") == 1 and board.count("X") == 4 and not any(has_line(mask) for mask in masks(board))
    }
    assert set(extra) == last and len(extra) == len(last) == 222
    assert not set(extra) & set(open_boards())
    assert len({record["id"] for record in TASK.extra_records()}) == 222
    for record in TASK.extra_records():
        assert TASK.validate(record, "extra") is record
