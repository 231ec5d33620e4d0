"""The data checks that a plain task has without writing any."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from tuneloop.checks import load_checks
from tuneloop.checks.plain import NOTE, PlainChecks
from tuneloop.checks.records import record_tables
from tuneloop.checks.replies import Setting, evaluation_tables
from tuneloop.checks.verdict import validate
from tuneloop.tasks import load_task
from tuneloop.tasks.plain import plain_task, tool
from tuneloop.tasks.split import split
from tuneloop.toolcalls import ToolCall, calls_as_json, load_dialect

SIZE = tool("set_size", "Set the size.", {"size": {"type": "integer", "minimum": 1, "maximum": 5}})
ROWS = [{"id": f"r{i}", "text": f"item {i}", "answer": {"size": 1 + i % 5}, "group": f"g{i % 4}"} for i in range(12)]


def close(record, reply):
    return 1 - abs(reply.arguments["size"] - record["answer"]["size"]) / 4


@pytest.fixture
def make(tmp_path: Path):
    """`make(rows, reward)`: a task over `rows`."""

    def made(rows=ROWS, reward=close):
        folder = tmp_path / "sizes"
        folder.mkdir(exist_ok=True)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "records.jsonl").write_text(text, encoding="utf-8")
        shown = lambda record: [{"role": "user", "content": record["text"]}]  # noqa: E731
        return plain_task(str(folder / "__init__.py"), tools=[SIZE], messages=shown, reward=reward)

    return made


def failing(verdict) -> dict[str, list[str]]:
    """The ids under every expectation that failed."""
    return {e["name"]: e["ids"] for e in verdict["expectations"] if not e["success"]}


def checked(task, rows=ROWS):
    train, heldout = split(task, rows, 0.25, seed=1)
    return validate(record_tables(PlainChecks(task), rows, train, heldout, len(rows), 0.25))


def replies(task, heldout, size) -> list[dict]:
    """A table of one greedy reply a record, all without fault, scored as an evaluation does."""
    rows = []
    for record in heldout:
        call = ToolCall("set_size", {"size": size})
        text = load_dialect("hermes").render(call)
        outcome = task.score_reply(record, call, text)
        rows.append(
            {
                **{"id": record["id"], "board": task.show(record), "stratum": "all", "cluster": task.split_key(record)},
                **{"decoding": "greedy", "sample": 0, "prompt_hash": "0" * 16, "text": text},
                **{"call": calls_as_json(call), "outcome": outcome.name, "reward": outcome.reward},
                **{"length": 5, "finish_reason": "stop"},
            }
        )
    return rows


def rewards_checked(task, reply_rows, checks=None):
    train, heldout = split(task, ROWS, 0.25, seed=1)
    setting = Setting(task, checks or PlainChecks(task), train, heldout, 40, "hermes", None)
    return validate(evaluation_tables("baseline", reply_rows, setting, {"greedy": 1}))


def test_records_and_replies_that_are_as_they_should_be_pass(make):
    task = make()
    assert failing(checked(task)) == {}
    assert failing(rewards_checked(task, replies(task, split(task, ROWS, 0.25, 1)[1], 3))) == {}


def test_the_same_input_under_two_ids_is_named(make):
    rows = [*ROWS, {"id": "copy", "text": "Item  3", "answer": {"size": 2}, "group": "elsewhere"}]
    assert failing(checked(make(rows), rows)) == {"inputs_unique": ["r3", "copy"]}


def test_a_reward_that_fails_on_a_record_and_one_that_pays_more_than_the_answer_are_named(make):
    def odd(record, reply):
        if record["id"] == "r1":
            return None
        return 1.0 if record["id"] == "r2" and reply.arguments["size"] != 3 else 0.5

    # r2's own answer, 3, earns 0.5, all else 1.
    assert failing(checked(make(reward=odd))) == {
        "reward_gives_numbers": ["r1"],
        "nothing_earns_more_than_the_answer": ["r2"],
    }


def test_a_reward_that_does_not_repeat_and_a_table_that_was_changed_are_named(make):
    calls = []

    def tired(record, reply):
        calls.append(record["id"])
        return 1.0 if calls.count(record["id"]) == 1 else 0.5

    task = make(reward=tired)
    heldout = split(task, ROWS, 0.25, 1)[1]
    ids = [record["id"] for record in heldout]
    assert failing(rewards_checked(task, replies(task, heldout, 3))) == {"reward_as_oracle": ids}
    task = make()
    rows = replies(task, heldout, 3)
    rows[1]["reward"] = 0.9
    assert failing(rewards_checked(task, rows)) == {"reward_as_oracle": [ids[1]]}


def test_the_note_says_that_it_is_no_independent_check_until_an_oracle_of_its_own_makes_it_one(make):
    task = make()
    assert PlainChecks(task).note == NOTE and "not that they are right" in NOTE
    module = ModuleType("checks")
    module.oracle = lambda shown, text, reasoning, dialect: ("scored", 0.25)
    own = PlainChecks(task, module)
    assert own.note is None
    heldout = split(task, ROWS, 0.25, 1)[1]
    # By hand: a size of 3 for an answer 1 or 5 earns 0.5, for 2 or 4 0.75, for 3 1: never 0.25.
    assert failing(rewards_checked(task, replies(task, heldout, 3), own)) == {
        "reward_as_oracle": [record["id"] for record in heldout]
    }


def test_a_task_with_checks_of_its_own_keeps_them():
    assert not isinstance(load_checks("tictactoe"), PlainChecks)
    assert load_task("tictactoe").name == "tictactoe"
