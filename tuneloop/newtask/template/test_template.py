"""The task's own rules on real records. Write down here what good and bad replies earn, before anything is trained."""

from __future__ import annotations

import pytest

from tuneloop.errors import UserError
from tuneloop.tasks import load_task
from tuneloop.tasks.split import split
from tuneloop.toolcalls import load_dialect, read_reply

TASK = load_task("template")
RECORDS = list(TASK.records.values())
HERMES = load_dialect("hermes")


def earned(record: dict, text: str) -> tuple[str, float]:
    """Outcome and reward of the reply `text`, read as every reply is."""
    outcome = TASK.score_reply(record, read_reply(text, HERMES, TASK.tools, None), text)
    return outcome.name, outcome.reward


def call(category: str, urgency: str) -> str:
    arguments = f'{{"category": "{category}", "urgency": "{urgency}"}}'
    return f'<tool_call>\n{{"name": "file_message", "arguments": {arguments}}}\n</tool_call>'


RECORD = {
    "id": "t",
    "message": "My invoice is wrong. Please hurry.",
    "answer": {"category": "billing", "urgency": "high"},
}


@pytest.mark.parametrize(
    ("text", "outcome", "reward"),
    [
        (call("billing", "high"), "right", 1.0),
        (call("billing", "low"), "category_only", 0.6),
        (call("repair", "high"), "urgency_only", 0.2),
        (call("repair", "low"), "wrong", 0.0),
        (call("billing", "soon"), "bad_arguments", -1.0),
        ("It is about billing.", "no_call", -1.0),
        (call("billing", "high") * 2, "several_calls", -1.0),
    ],
)
def test_a_reply_earns_what_the_rules_say(text, outcome, reward):
    assert earned(RECORD, text) == (outcome, reward)


def test_the_answer_of_every_record_earns_the_highest_reward():
    for record in RECORDS:
        assert earned(record, call(**record["answer"])) == ("right", 1.0)


def test_the_answer_is_not_in_what_the_policy_is_shown():
    for record in RECORDS:
        other = record | {"answer": {"category": "other", "urgency": "other"}}
        assert TASK.messages(record) == TASK.messages(other)


def test_no_group_is_on_both_sides_of_the_split():
    train, heldout = split(TASK, RECORDS, 0.2, seed=1)
    assert not {TASK.split_key(r) for r in train} & {TASK.split_key(r) for r in heldout}


def test_more_records_than_there_are_cannot_be_had():
    with pytest.raises(UserError, match=f"has {len(RECORDS)}"):
        TASK.generate(len(RECORDS) + 1, seed=1)
