"""A task made of a file, a tool, messages and a reward: what the loop gets of it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuneloop.errors import UserError
from tuneloop.newtask.template import TASK as TEMPLATE
from tuneloop.tasks.contract import Outcome, scored
from tuneloop.tasks.plain import plain_task, tool
from tuneloop.tasks.plain_arguments import quoted
from tuneloop.tasks.split import split
from tuneloop.toolcalls import Fault, ToolCall, load_dialect, read_reply
from tuneloop.toolcalls.schema import problem_with

SIZE = tool("set_size", "Set the size.", {"size": {"type": "integer", "minimum": 1, "maximum": 5}})
ROWS = [{"id": f"r{i}", "text": f"item {i}", "answer": {"size": 1 + i % 5}, "group": f"g{i % 4}"} for i in range(12)]


def messages(record):
    return [{"role": "user", "content": record["text"]}]


def close(record, reply):
    """1 for the right size, less for every step away: 0.75, 0.5, 0.25, 0."""
    return 1 - abs(reply.arguments["size"] - record["answer"]["size"]) / 4


@pytest.fixture
def make(tmp_path: Path):
    """`make(rows, …)`: a task called sizes over `rows`."""

    def made(rows=ROWS, **parts):
        folder = tmp_path / "sizes"
        folder.mkdir(exist_ok=True)
        text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
        (folder / "records.jsonl").write_text(text, encoding="utf-8")
        defaults = {"messages": messages, "reward": close}
        if "output" not in parts:
            defaults["tools"] = [SIZE]
        return plain_task(str(folder / "__init__.py"), **(defaults | parts))

    return made


def size(number: int) -> ToolCall:
    return ToolCall("set_size", {"size": number})


def test_a_seed_draws_records_of_the_file_once_each_in_its_order(make):
    task = make()
    drawn = task.generate(7, seed=3)
    assert drawn == task.generate(7, seed=3) != task.generate(7, seed=4)
    assert len({r["id"] for r in drawn}) == 7
    assert [r for r in ROWS if r in drawn] == drawn
    assert task.generate(12, seed=3) == ROWS


@pytest.mark.parametrize("count", [0, 13])
def test_a_count_that_the_file_cannot_meet_is_answered_with_what_it_has(make, count):
    with pytest.raises(UserError, match=r"boards.count: .*sizes/records.jsonl has 12; set boards.count to 12"):
        make().generate(count, seed=1)


def test_groups_stay_together_and_a_record_without_group_is_its_own(make):
    train, heldout = split(make(), ROWS, 0.25, seed=1)
    assert {r["group"] for r in heldout}.isdisjoint(r["group"] for r in train)
    assert len(heldout) == 3  # one group of four
    task = make([row | {"group": None} for row in ROWS])
    assert len({task.split_key(record) for record in task.generate(12, 1)}) == 12


def test_a_number_becomes_the_last_outcome_whose_least_reward_it_reaches(make):
    task = make(outcomes={"exact": 1.0, "far": 0.0, "near": 0.75})
    earned = [task.score(ROWS[0], size(n)) for n in (1, 2, 3, 5)]
    assert earned == [Outcome("exact", 1.0), Outcome("near", 0.75), Outcome("far", 0.5), Outcome("far", 0.0)]
    assert task.outcomes[-3:] == ("far", "near", "exact")
    assert task.measures == {"valid": {"far", "near", "exact"}, "exact": {"exact"}}


def test_without_outcomes_every_readable_reply_is_scored_and_the_rest_has_its_fault(make):
    task = make()
    assert task.outcomes == ("no_call", "several_calls", "wrong_tool", "bad_arguments", "scored")
    assert task.score(ROWS[0], size(3)) == Outcome("scored", 0.5)
    assert task.score(ROWS[0], Fault("wrong_tool", "")) == Outcome("wrong_tool", -1.0)


def test_a_fault_never_reaches_the_reward_function(make):
    task = make(reward=lambda record, reply: 1 / 0)
    for name in ("no_call", "several_calls", "wrong_tool", "bad_arguments"):
        assert scored(task, ROWS[0], Fault(name, ""), "what was said") == Outcome(name, -1.0)


def test_the_reward_function_sees_text_tool_arguments_and_finish_reason(make):
    seen = []
    task = make(reward=lambda record, reply: seen.append(reply) or 0.0)
    text = load_dialect("hermes").render(size(4)) + " done"
    scored(task, ROWS[0], read_reply(text, load_dialect("hermes"), task.tools, None), text, "length")
    (reply,) = seen
    assert (reply.text, reply.name, reply.arguments, reply.finish_reason) == (text, "set_size", {"size": 4}, "length")
    assert reply.output == {"size": 4}


def test_a_reward_function_that_changes_what_it_gets_changes_nothing(make):
    def greedy(record, reply):
        record["answer"]["size"] = reply.arguments.pop("size")
        return 1.0

    task, record, call = make(reward=greedy), json.loads(json.dumps(ROWS[0])), size(4)
    task.score(record, call)
    assert (record, call) == (ROWS[0], size(4))


def test_an_outcome_may_be_given_by_name(make):
    task = make(reward=lambda record, reply: Outcome("odd", 0.5), outcomes={"bad": -1.0, "odd": 0.0, "good": 0.4})
    assert task.score(ROWS[0], size(1)) == Outcome("odd", 0.5)


WRONG = {
    "raises": (lambda record, reply: record["nothing"], r"raised KeyError: 'nothing' \(.*test_plain_task\.py:\d+"),
    "leaves": (lambda record, reply: exit(0), "raised SystemExit: 0"),
    "nan": (lambda record, reply: float("nan"), "gave nan"),
    "infinite": (lambda record, reply: float("inf"), "gave inf"),
    "huge": (lambda record, reply: 1e9, r"gave 1e\+09; it must give a number from -1 to 1"),
    "too low": (lambda record, reply: -1.5, "gave -1.5"),
    "text": (lambda record, reply: "0.5", "gave str '0.5'"),
    "nothing": (lambda record, reply: None, r"gave None \(is a return missing\?\)"),
    "yes": (lambda record, reply: True, "gave bool True"),
    "unknown outcome": (
        lambda record, reply: Outcome("great", 1.0),
        "'great', not a listed one; outcomes are low from",
    ),
    "outcome of nan": (lambda record, reply: Outcome("high", float("nan")), "gave nan"),
    "below all outcomes": (lambda record, reply: -0.5, "gave -0.5, below every outcome"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_a_reward_function_may_not_do_is_told_with_record_and_reply(make, what):
    reward, message = WRONG[what]
    task = make(reward=reward, outcomes={"low": 0.0, "high": 1.0})
    with pytest.raises(UserError, match=message) as refused:
        task.score_reply(ROWS[5], size(2), "so " * 200 + "it is")
    assert "task sizes: the reward of record r5 " in str(refused.value)
    assert "read as set_size({'size': 2})" in str(refused.value)
    assert len(str(refused.value)) < 800  # the reply is cut


ROW = ROWS[0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("[1]", "line 2: is not a JSON object"),
        ({**ROW, "id": ""}, 'line 2: has no "id"'),
        ({**ROW, "id": "r0"}, "line 2: the id 'r0' is in an earlier line too"),
        ({"id": "x", "text": "t"}, "line 2: record x has the fields id, text, the first record"),
        ({**ROW, "id": "x", "group": 3}, "line 2: record x: 'group' must be a text"),
        (
            {**ROW, "id": "x", "answer": {"size": 6}},
            r"record x: 'answer' is nothing that a reply could say: \$\.size: 6",
        ),
        ({**ROW, "id": "x", "answer": "1"}, "record x: 'answer' must be an object of the tool's arguments"),
        ('{"id": "x", "text": NaN, "answer": null, "group": null}', "record x: holds NaN"),
    ],
)
def test_a_bad_line_of_the_file_is_named(make, row, message):
    with pytest.raises(UserError, match=message):
        make([ROW, row]).generate(1, seed=1)


def test_a_missing_file_and_a_field_name_that_checks_use_are_named(make):
    with pytest.raises(UserError, match=r"elsewhere.jsonl: is not there"):
        make(records="elsewhere.jsonl").generate(1, seed=1)
    with pytest.raises(UserError, match="line 1: a field cannot be called content"):
        make([{"id": "x", "content": "t"}]).generate(1, seed=1)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"tools": []}, "at least"),
        ({"tools": [{"name": "x"}]}, "is no tool"),
        ({"tools": [tool("x", "", {"a": {"type": "whole"}})]}, "x: .*'whole' is not valid"),
        ({"output": {"type": "string"}}, "must be that of an object"),
        ({"outcomes": {"good": 2.0}}, "from -1 to 1"),
        ({"outcomes": {"a": 0.5, "b": 0.5}}, "start at the same"),
        ({"outcomes": {"no_call": 0.5}}, "name of a fault"),
        ({"outcomes": {"Very good": 0.5}}, "small letters"),
        ({"measures": {"reward": ["scored"]}}, "another number"),
        ({"measures": {"fine": ["good"]}}, "no outcome 'good'"),
    ],
)
def test_parts_that_do_not_fit_are_refused_when_the_task_is_made(make, parts, message):
    with pytest.raises(UserError, match=message) as refused:
        make(**parts)
    assert str(refused.value).startswith("task sizes: ")


def test_messages_that_raise_or_are_none_are_told_with_the_record(make):
    with pytest.raises(UserError, match="messages of record r0 raised KeyError: 'question'"):
        make(messages=lambda record: record["question"]).messages(ROW)
    with pytest.raises(UserError, match="messages of record r0 gave 'hello'; it must give a list"):
        make(messages=lambda record: "hello").messages(ROW)


def test_a_shown_record_reads_back_and_an_id_finds_it(make):
    task = make()
    assert task.parse(task.show(ROWS[3])) == task.parse("r3") == ROWS[3]
    with pytest.raises(UserError, match=r"is no id in .* \(such as r0, r1, r2\)"):
        task.parse("r99")


HARD = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "b"]},
        "quoted": {"type": "string", "minLength": 3},
        "day": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$", "examples": ["2026-11", "2025-01"]},
        "parts": {"type": "array", "items": {"type": "number", "minimum": 2}, "minItems": 1},
        "flag": {"type": ["boolean", "null"]},
        "inner": {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 5}}, "required": ["n"]},
    },
    "required": ["kind", "quoted", "day"],
}


def test_demonstrations_are_valid_calls_drawn_without_a_look_at_the_answer(make):
    rows = [{"id": f"x{i}", "text": "one two three four", "answer": None} for i in range(5)]
    task = make(rows, output=HARD)
    render = load_dialect("hermes").render
    shown = task.demonstrations(rows, 50, 1, render)
    assert shown == task.demonstrations(rows, 50, 1, render) != task.demonstrations(rows, 50, 2, render)
    for demonstration in shown:
        call = read_reply(demonstration.content, load_dialect("hermes"), task.tools, None)
        assert isinstance(call, ToolCall) and problem_with(call.arguments, HARD) is None
        assert demonstration.reasoning == "one two three four"
    # The same with other answers: they are not looked at.
    sizes = make()
    others = [row | {"answer": {"size": 5}} for row in ROWS]
    assert [d.content for d in sizes.demonstrations(ROWS, 30, 1, render)] == [
        d.content for d in sizes.demonstrations(others, 30, 1, render)
    ]


def test_the_reasoning_of_a_demonstration_quotes_whole_lines_of_the_input_while_there_is_room():
    # 16 words: 3, 11, and two of the third line.
    texts = ["one two three\n\n" + "word " * 10 + "end", "a b c d", "never"]
    assert quoted(texts) == "one two three\n" + "word " * 10 + "end\na b"
    assert quoted([]) is None


def test_a_pattern_that_cannot_be_met_by_chance_takes_answers_of_any_record_or_says_what_to_do(make):
    schema = {
        "type": "object",
        "properties": {"code": {"type": "string", "pattern": "^Z[0-9]{9}$"}},
        "required": ["code"],
    }
    known = [{"id": f"k{i}", "text": "t", "answer": {"code": f"Z00000000{i}"}} for i in range(3)]
    assert {
        call.arguments["code"] for calls in make(known, output=schema).made_up(known, 1).values() for call in calls
    } == {
        "Z000000000",
        "Z000000001",
        "Z000000002",
    }
    unknown = [row | {"answer": None} for row in known]
    with pytest.raises(UserError, match="list some under `examples`"):
        make(unknown, output=schema).made_up(unknown, 1)


def test_reference_players_have_the_rewards_that_arithmetic_gives_them(make):
    # Answers 1 to 5 over 12 records; the commonest are 1 and 2 (three times each), the first met counts: 1.
    players = make(outcomes={"off": 0.0, "exact": 1.0}).reference_players(ROWS)
    always = sum(1 - abs(1 - row["answer"]["size"]) / 4 for row in ROWS) / 12
    assert players["always the commonest answer"] == {"reward": pytest.approx(always), "valid": 1.0, "exact": 0.25}
    assert players["the known answer"] == {"reward": 1.0, "valid": 1.0, "exact": 1.0}
    assert 0.3 < players["anything valid"]["reward"] < 0.9
    unknown = [row | {"answer": None} for row in ROWS]
    assert list(make(unknown, reward=lambda record, reply: 0.0).reference_players(unknown)) == ["anything valid"]


def test_the_template_splits_by_groups_of_rewordings():
    records = list(TEMPLATE.records.values())
    assert len(records) == 512
    assert {sum(r["group"] == group for r in records) for group in {r["group"] for r in records}} == {8}
