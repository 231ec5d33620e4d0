"""The task's own rules on real records. Write down here what good and bad replies earn, before anything is trained.

RECORD and the table below it are about the sample: put a record and replies of your task there.
"""

from __future__ import annotations

from typing import Any

import pytest

from tuneloop.errors import UserError
from tuneloop.tasks import load_task
from tuneloop.tasks.split import split
from tuneloop.toolcalls import ToolCall, load_dialect, read_reply

TASK = load_task("template")
RECORDS = list(TASK.records.values())
TOOL = TASK.tools[0]["function"]["name"]
HERMES = load_dialect("hermes")


def call(**arguments: Any) -> str:
    """A reply that calls the tool."""
    return HERMES.render(ToolCall(TOOL, arguments))


def earned(record: dict[str, Any], text: str) -> tuple[str, float]:
    """Outcome and reward of the reply `text`, read as every reply is."""
    outcome = TASK.score_reply(record, read_reply(text, HERMES, TASK.tools, None), text)
    return outcome.name, outcome.reward


RECORD = {
    "id": "t",
    "subject": "My invoice is wrong",
    "text": "Please hurry.",
    "answer": {"category": "billing", "urgency": "high"},
    "group": "t",
}


@pytest.mark.parametrize(
    ("text", "outcome", "reward"),
    [
        (call(category="billing", urgency="high"), "right", 1.0),
        (call(category="billing", urgency="low"), "category_only", 0.6),
        (call(category="repair", urgency="high"), "urgency_only", 0.2),
        (call(category="repair", urgency="low"), "wrong", 0.0),
        (call(category="billing", urgency="soon"), "bad_arguments", -1.0),
        (call(category="billing"), "bad_arguments", -1.0),
        ("It is about billing.", "no_call", -1.0),
        (call(category="billing", urgency="high") * 2, "several_calls", -1.0),
    ],
)
def test_a_reply_earns_what_the_rules_say(text, outcome, reward):
    assert earned(RECORD, text) == (outcome, reward)


def test_the_answer_of_every_record_earns_the_highest_reward():
    for record in RECORDS:
        if record.get("answer") is not None:
            assert earned(record, call(**record["answer"]))[1] == 1.0, record["id"]


def test_the_answer_is_not_in_what_the_policy_is_shown():
    for record in RECORDS:
        assert TASK.messages(record | {"answer": None}) == TASK.messages(record)


def test_no_group_is_on_both_sides_of_the_split():
    train, heldout = split(TASK, RECORDS, 0.2, seed=1)
    assert not {TASK.split_key(r) for r in train} & {TASK.split_key(r) for r in heldout}


def test_more_records_than_there_are_cannot_be_had():
    with pytest.raises(UserError, match=f"has {len(RECORDS)}"):
        TASK.generate(len(RECORDS) + 1, seed=1)
