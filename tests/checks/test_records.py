"""Boards and their split: a good table passes; each way to spoil it fails its own expectations, by id."""

from __future__ import annotations

import pytest
from valid_tables import CHECKS, COUNT, TASK, failures, failures_by_record, records

from tuneloop.checks.records import record_tables


def rows(shown: str) -> list[list[str]]:
    return [list(row) for row in shown.split("/")]


@pytest.fixture
def tables():
    """The three tables. A record is one object in `everything` and on its side: spoiled once, spoiled in both."""
    return records()


def failed(tables, count=COUNT, heldout_fraction=0.2):
    return failures(record_tables(CHECKS, *tables, count, heldout_fraction))


def test_generated_boards_split_by_class_pass(tables):
    assert failed(tables) == {}


NO_TRAINING_BOARDS = {
    "won": ("OOO/XX./X..", {"nobody_has_won", "reached_by_legal_play"}),
    "full": ("XOX/XOO/OXX", {"x_to_move", "at_most_six_marks", "reached_by_legal_play"}),
    "out of turn": ("X../.../...", {"x_to_move"}),
    "X twice": ("XX./.../...", {"x_to_move", "reached_by_legal_play"}),
    "O ahead": ("XOX/OXO/O..", {"x_to_move", "at_most_six_marks", "reached_by_legal_play"}),
    "another mark": ("X?O/.../...", {"cells_x_o_or_dot", "reached_by_legal_play"}),
    "two rows": ("X.O/...", {"three_rows_of_three"}),
}


def test_boards_that_are_no_training_boards_are_named_each_for_its_own_reasons(tables):
    expected = {}
    for record, (board, broken) in zip(tables[1], NO_TRAINING_BOARDS.values()):
        record["board"] = rows(board)
        expected[record["id"]] = {f"boards: {name}" for name in broken}
    assert failures_by_record(record_tables(CHECKS, *tables, COUNT, 0.2)) == expected


def test_a_heldout_board_that_is_a_turn_of_a_training_board_is_named_with_it(tables):
    everything, train, heldout = tables
    known = {TASK.show(record) for record in everything}
    turns = {r["id"]: [list(column) for column in zip(*reversed(r["board"]))] for r in heldout}
    classes = [TASK.split_key(record) for record in heldout]
    turned = next(
        r
        for r in heldout
        if TASK.show({"board": turns[r["id"]]}) not in known and classes.count(TASK.split_key(r)) == 1
    )
    train[5]["board"] = turns[turned["id"]]
    assert failed(tables) == {"heldout: no_equal_in_train": [turned["id"]]}


def test_a_board_that_occurs_twice_is_named_under_both_ids(tables):
    first, second = tables[1][3], tables[1][8]
    second["board"] = first["board"]
    assert failed(tables) == {"boards: records_unique": [first["id"], second["id"]]}


def test_an_id_of_another_form_is_named(tables):
    tables[1][4]["id"] = "generated-4"
    assert failed(tables) == {"boards: ids_in_order": ["generated-4"]}


def test_an_id_that_occurs_twice_is_named(tables):
    train = tables[1]
    train[7]["id"] = train[6]["id"]
    places = ["boards: ids_unique", "boards: ids_in_order", "train: ids_unique", "train: same_record_in_boards"]
    assert failed(tables) == {place: [train[6]["id"]] for place in places}


def test_an_undocumented_key_is_named(tables):
    record = tables[1][2]
    record["note"] = "hello"
    assert failed(tables) == {"boards: form_as_documented": [record["id"]], "train: form_as_documented": [record["id"]]}


def test_a_record_without_a_board_is_named(tables):
    record = tables[1][2]
    del record["board"]
    assert failed(tables) == {
        "boards: form_as_documented": [record["id"]],
        "boards: three_rows_of_three": [record["id"]],
        "train: form_as_documented": [record["id"]],
    }


def test_a_table_of_another_size_than_asked_for_fails(tables):
    assert failed(tables, count=COUNT + 1) == {"boards: count_as_asked": []}


def test_a_record_on_both_sides_of_the_split_is_named(tables):
    _, train, heldout = tables
    train.append(heldout[0])
    assert failed(tables)["boards: on_one_side_of_the_split"] == [heldout[0]["id"]]


def test_a_record_on_neither_side_of_the_split_is_named(tables):
    dropped = tables[1].pop(3)
    assert failed(tables) == {"boards: on_one_side_of_the_split": [dropped["id"]]}


def test_a_side_that_holds_another_board_under_an_id_is_named(tables):
    _, train, _ = tables
    train[3] = {"id": train[3]["id"], "board": rows("XO./.../...")}
    assert failed(tables) == {"train: same_record_in_boards": [train[3]["id"]]}


def test_a_split_without_a_heldout_side_fails(tables):
    everything, train, heldout = tables
    assert "boards: heldout_share_as_asked" in failed((everything, train + heldout, [{"id": "x", "board": []}]))


def test_from_500_boards_on_the_heldout_share_is_held_to_two_hundredths():
    everything = TASK.generate(500, 7)
    classes = sorted({TASK.split_key(record) for record in everything})
    heldout = [record for record in everything if TASK.split_key(record) in classes[::5]]
    train = [record for record in everything if TASK.split_key(record) not in classes[::5]]
    share = len(heldout) / 500
    assert failed((everything, train, heldout), 500, share + 0.019) == {}
    assert failed((everything, train, heldout), 500, share + 0.021) == {"boards: heldout_share_as_asked": []}
