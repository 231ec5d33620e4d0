"""Finding tasks by name, and what the policy is told."""

from __future__ import annotations

import pytest
from brute_force import open_boards

from tuneloop.errors import UserError
from tuneloop.tasks import load_task, task_names
from tuneloop.tasks.tictactoe.generator import to_rows

TASK = load_task("tictactoe")


def test_the_task_is_found_by_its_name():
    assert TASK.name == "tictactoe"
    assert "tictactoe" in task_names()


@pytest.mark.parametrize("name", ["", "chess", "contract", "__init__", "../tasks", "TicTacToe", "tictactoe.board"])
def test_an_unknown_task_is_answered_with_the_known_ones(name):
    with pytest.raises(UserError, match="tictactoe"):
        load_task(name)


def test_the_tool_takes_one_integer_from_1_to_9_and_nothing_else():
    (tool,) = TASK.tools
    parameters = tool["function"]["parameters"]
    assert tool["type"] == "function" and tool["function"]["name"] == "choose_square"
    assert parameters["additionalProperties"] is False
    assert parameters["required"] == list(parameters["properties"]) == ["square"]
    square = parameters["properties"]["square"]
    assert (square["type"], square["minimum"], square["maximum"]) == ("integer", 1, 9)


def test_the_messages_show_each_square_once_with_its_number_and_mark():
    for board in open_boards()[::50]:
        system, user = TASK.messages({"id": "a", "board": to_rows(board)})
        assert (system["role"], user["role"]) == ("system", "user")
        labelled = [f"{square}{mark}" for square, mark in enumerate(board, 1)]
        assert [word for word in user["content"].split() if word[0].isdigit()] == labelled


def test_different_boards_are_different_prompts():
    boards = open_boards()
    assert len({TASK.messages({"id": "a", "board": to_rows(b)})[1]["content"] for b in boards}) == len(boards)
