"""The desk's oracle and record facts: right by themselves, and in agreement with the code that they check."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tuneloop.checks import load_checks
from tuneloop.errors import UserError
from tuneloop.tasks import load_task
from tuneloop.tasks.desk import facts_of
from tuneloop.tasks.desk.oracle import REWARDS, oracle
from tuneloop.tasks.desk.players import calls_of
from tuneloop.tasks.desk.prompt import REASONS
from tuneloop.tasks.desk.rules import due
from tuneloop.tasks.second_reader import READERS
from tuneloop.toolcalls import Reasoning, ToolCall, dialect_names, load_dialect, read_reply

TASK = load_task("desk")
CHECKS = load_checks("desk")
RECORDS = TASK.generate(2048, 2026)
THINK, OPENED = Reasoning("<think>", "</think>"), Reasoning("<think>", "</think>", opened_by_prompt=True)
SHOWN = (
    "Refunds up to $60 within 4 weeks. | "
    "Hello, order 482: the lamp came broken. I paid $45 3 weeks ago and I have the receipt."
)


def call(arguments: str, name: str = "issue_refund") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


DUE = call('{"order": 482, "amount": 45, "reason": "damaged"}')


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (DUE, "right"),
        ("I give it back.\n" + DUE, "right"),
        (call('{"reason": "damaged", "amount": 45, "order": 482}'), "right"),
        (call('{"order": 482, "amount": 45, "reason": "missing"}'), "other_reason"),
        (call('{"order": 482, "amount": 44, "reason": "damaged"}'), "other_amount"),
        (call('{"order": 481, "amount": 45, "reason": "damaged"}'), "other_order"),
        (call('{"order": 482, "reason": "safety"}', "escalate"), "other_tool"),
        (call('{"order": 482, "amount": 45.0, "reason": "damaged"}'), "bad_arguments"),
        (call('{"order": "482", "amount": 45, "reason": "damaged"}'), "bad_arguments"),
        (call('{"order": 482, "amount": true, "reason": "damaged"}'), "bad_arguments"),
        (call('{"order": 482, "amount": 0, "reason": "damaged"}'), "bad_arguments"),
        (call('{"order": 99, "amount": 45, "reason": "damaged"}'), "bad_arguments"),
        (call('{"order": 482, "amount": 45, "reason": "safety"}'), "bad_arguments"),
        (call('{"order": 482, "amount": 45}'), "bad_arguments"),
        (call('{"order": 482, "order": 482, "amount": 45, "reason": "damaged"}'), "bad_arguments"),
        (call('{"order": 482, "note": "x"}', "ask_for_receipt"), "bad_arguments"),
        (call("[" * 20_000), "bad_arguments"),
        (call('{"order": 482}', "refund"), "wrong_tool"),
        (DUE + DUE, "several_calls"),
        (DUE[:-12], "no_call"),
        ("", "no_call"),
        ("<think>" + DUE + "</think>", "no_call"),
        ("<think>" + DUE, "no_call"),
        ("<think>" + call("{}") + "</think>" + DUE, "right"),
        (call("{}") + "</think>" + DUE, "right"),
    ],
)
def test_hermes_replies_to_one_ticket(text, outcome):
    """The source is the strict reader's contract (`tuneloop.toolcalls.reader`) and the reward table (docs/desk.md)."""
    assert oracle(SHOWN, text, THINK, "hermes") == (outcome, REWARDS[outcome])


def test_the_replies_of_every_dialect_that_a_policy_may_write_can_be_checked():
    assert sorted(READERS) == dialect_names()


def test_a_dialect_that_the_oracle_cannot_read_is_refused_with_the_ones_it_can():
    with pytest.raises(UserError, match=r"'other'.*glm, hermes, llama, plain, qwen3_coder"):
        oracle(SHOWN, "", None, "other")


def test_the_rewards_written_down_apart_are_the_tasks():
    assert tuple(REWARDS) == TASK.outcomes
    assert (min(REWARDS.values()), max(REWARDS.values())) == TASK.reward_range


@pytest.mark.parametrize("dialect", sorted(READERS))
def test_oracle_and_scorer_agree_on_every_kind_of_call(dialect):
    written = load_dialect(dialect)
    seen: Counter[str] = Counter()
    # What a call is worth does not depend on the dialect: many tickets once.
    for record in RECORDS[:: 4 if dialect == "hermes" else 40]:
        facts, shown = facts_of(record), TASK.show(record)
        calls = [made for tool in REASONS for made in calls_of(tool, facts)]
        calls.append(ToolCall("ask_for_receipt", {"order": 1099 - facts.order}))
        for made in calls:
            scored = TASK.score(record, made)
            assert oracle(shown, written.render(made), THINK, dialect) == (scored.name, scored.reward)
            seen[scored.name] += 1
    assert set(seen) >= {"other_order", "undue_refund", "other_tool", "other_amount", "other_reason", "right"}


NOISE = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_value>", "{", "}", "[", '"', ",", "\\"),
    *(
        "3.9",
        "true",
        '"482"',
        "４８２",
        "-5",
        "0482",
        "1e0",
        "1e999",
        "NaN",
        "9" * 310,
        "[" * 70,
        " ",
        "\u00a0",
        "x",
        "\ud800",
    ),
    *('{"name":"ask_for_receipt","arguments":{"order":482}}', '{"name":"x","arguments":{}}', ',"a":1', '"order":482,'),
    *(
        '{"name":"ask_for_receipt","parameters":{"order":482}}',
        "```json",
        "```",
        "<|python_tag|>",
        "; ",
        "{}",
        "]" * 70,
    ),
    *(
        "<function=",
        "</function>",
        "<parameter=",
        "</parameter>",
        ">",
        "\n",
        "<parameter=why>1</parameter>",
        "</arg_key>",
    ),
]


@pytest.mark.parametrize("dialect", sorted(READERS))
def test_oracle_and_reader_agree_on_thousands_of_broken_replies(dialect):
    """Right calls in pieces, with pieces lost, doubled and replaced by noise."""
    random, written = Random(2026), load_dialect(dialect)
    seen: Counter[str] = Counter()
    for number in range(1500):
        record = RECORDS[number % len(RECORDS)]
        made = random.choice([c for tool in REASONS for c in calls_of(tool, facts_of(record))])
        pieces = _pieces(written.render(made)) * random.choice((0, 1, 1, 1, 1, 1, 2))
        pieces = random.choice((pieces, ["<think>", "hm", "</think>", *pieces], [*NOISE[:2], *pieces]))
        for _ in range(random.randint(0, 3)):
            at = random.randint(0, len(pieces))
            pieces[at : at + random.randint(0, 1)] = random.choice(([], [random.choice(NOISE)]))
        text = "".join(pieces)
        reasoning = random.choice((None, THINK, OPENED))
        scored = TASK.score(record, read_reply(text, written, TASK.tools, reasoning))
        assert oracle(TASK.show(record), text, reasoning, dialect) == (scored.name, scored.reward), repr(text)
        seen[scored.name] += 1
    assert set(seen) >= {"no_call", "several_calls", "bad_arguments", "undue_refund", "other_tool", "right"}


def _pieces(text: str) -> list[str]:
    """A call's text cut at brackets, quotes, tags and spaces."""
    found, now = [], ""
    for character in text:
        if character in '{}<>":, \n=':
            found += [now, character] if now else [character]
            now = ""
        else:
            now += character
    return [*found, now] if now else found


def test_facts_of_every_record_meet_what_the_suite_expects():
    facts = [CHECKS.record_facts(record) for record in RECORDS]
    assert {fact["numbers"] for fact in facts} == {"each of the five numbers once"}
    assert {(fact["problems"], fact["receipts"]) for fact in facts} == {(1, 1)}
    assert [fact["due_tool"] for fact in facts] == [due(facts_of(record)).name for record in RECORDS]


@pytest.mark.parametrize(
    ("policy", "ticket"),
    [(None, None), (5, "x"), ("", ""), ("Refunds up to $60 within 4 weeks.", "My order 482."), ([], {})],
)
def test_facts_of_a_broken_record_never_raise(policy, ticket):
    broken = {"id": "a", "policy": policy, "ticket": ticket}
    assert CHECKS.record_facts(broken)["numbers"] == "not each of the five numbers once"
    assert CHECKS.split_class(broken) is None
    assert CHECKS.record_facts({}).keys() == CHECKS.record_facts(RECORDS[0]).keys()
