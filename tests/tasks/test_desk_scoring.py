"""What calls earn at the desk: the rules spelled out once more, the rewards by cases, the reference players."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest

from tuneloop.tasks import load_task
from tuneloop.tasks.contract import Outcome
from tuneloop.tasks.desk import facts_of
from tuneloop.tasks.desk.pictures import picture
from tuneloop.tasks.desk.rules import case, due
from tuneloop.tasks.desk.tickets import Facts
from tuneloop.toolcalls import Fault, ToolCall

TASK = load_task("desk")
RECORDS = TASK.generate(600, 4)
REWARDS = {
    **dict.fromkeys(("no_call", "several_calls", "wrong_tool", "bad_arguments", "other_order"), -1.0),
    "undue_refund": -0.8,
    "other_tool": -0.4,
    "other_amount": 0.2,
    "other_reason": 0.5,
    "right": 1.0,
}
"""docs/desk.md, "Reward"."""

PROBLEMS = ("damaged", "wrong_item", "missing", "hurt", "solved")


def wanted(problem: str, late: bool, receipt: bool, over: bool) -> tuple[str, str | None]:
    """Tool and reason code, by the table that the rules in the system message span."""
    if problem in ("solved", "hurt"):
        return {"solved": ("close_ticket", "solved"), "hurt": ("escalate", "safety")}[problem]
    return {
        (False, True, False): ("issue_refund", problem),
        (False, True, True): ("escalate", "over_limit"),
        (False, False, False): ("ask_for_receipt", None),
        (False, False, True): ("ask_for_receipt", None),
    }.get((late, receipt, over), ("close_ticket", "too_late"))


def test_every_combination_of_facts_is_due_what_the_table_says():
    for problem, late, receipt, over in product(PROBLEMS, (False, True), (False, True), (False, True)):
        facts = Facts(482, 45, 5, receipt, problem, 44 if over else 45, 4 if late else 5)
        tool, reason = wanted(problem, late, receipt, over)
        arguments = {"order": 482} | ({"amount": 45} if tool == "issue_refund" else {})
        assert due(facts) == ToolCall(tool, arguments | ({"reason": reason} if reason else {}))


@pytest.mark.parametrize(
    ("paid", "limit", "weeks", "window", "rule"),
    [
        (45, 45, 4, 4, "refund"),
        (46, 45, 4, 4, "over the limit"),
        (45, 45, 5, 4, "too late"),
        (99, 10, 9, 2, "too late"),
        (39, 40, 2, 9, "refund"),
        (40, 39, 2, 9, "over the limit"),
    ],
)
def test_limits_are_inclusive(paid, limit, weeks, window, rule):
    assert case(Facts(482, paid, weeks, True, "damaged", limit, window)) == rule


REFUND = (
    "Refunds up to $60 within 4 weeks. | "
    "Hello, order 482: the lamp came broken. I paid $45 3 weeks ago and I have the receipt."
)
ESCALATE = REFUND.replace("up to $60", "up to $44")


@pytest.mark.parametrize(
    ("shown", "tool", "arguments", "outcome"),
    [
        (REFUND, "issue_refund", {"order": 482, "amount": 45, "reason": "damaged"}, "right"),
        (REFUND, "issue_refund", {"order": 482, "amount": 45, "reason": "missing"}, "other_reason"),
        (REFUND, "issue_refund", {"order": 482, "amount": 60, "reason": "damaged"}, "other_amount"),
        (REFUND, "issue_refund", {"order": 482, "amount": 60, "reason": "missing"}, "other_amount"),
        (REFUND, "issue_refund", {"order": 428, "amount": 45, "reason": "damaged"}, "other_order"),
        (REFUND, "escalate", {"order": 482, "reason": "over_limit"}, "other_tool"),
        (REFUND, "escalate", {"order": 999, "reason": "over_limit"}, "other_order"),
        (REFUND, "ask_for_receipt", {"order": 482}, "other_tool"),
        (ESCALATE, "escalate", {"order": 482, "reason": "over_limit"}, "right"),
        (ESCALATE, "escalate", {"order": 482, "reason": "safety"}, "other_reason"),
        (ESCALATE, "issue_refund", {"order": 482, "amount": 45, "reason": "damaged"}, "undue_refund"),
        (ESCALATE, "close_ticket", {"order": 482, "reason": "solved"}, "other_tool"),
    ],
)
def test_calls_on_one_ticket_by_hand(shown, tool, arguments, outcome):
    assert TASK.score(TASK.parse(shown), ToolCall(tool, arguments)) == Outcome(outcome, REWARDS[outcome])


@pytest.mark.parametrize("fault", ["no_call", "several_calls", "wrong_tool", "bad_arguments"])
def test_every_fault_is_its_own_outcome_and_costs_one(fault):
    assert TASK.score(RECORDS[0], Fault(fault, "why")) == Outcome(fault, -1.0)


def test_the_outcomes_are_listed_worst_first():
    assert TASK.outcomes == tuple(REWARDS)
    assert list(REWARDS.values()) == sorted(REWARDS.values())
    assert TASK.reward_range == (-1.0, 1.0)
    assert TASK.measures == {"right_tool": {"other_amount", "other_reason", "right"}, "right": {"right"}}


def test_the_player_of_any_tool_earns_what_fractions_give():
    """By hand, a tool with 1/4 each: where a refund is due, 3 others at −0.4, or the right dollars (1/2, and always
    where the limit is what was paid) and reason (1/3); elsewhere an undue refund at −0.8, two others at −0.4, and the
    right tool, with a reason of two or with none."""

    def worth(facts: Facts) -> Fraction:
        others, tool = Fraction(-4, 10), due(facts).name
        if tool == "issue_refund":
            dollars = Fraction(1, 1 if facts.paid == facts.limit else 2)
            paid = Fraction(1, 3) + Fraction(2, 3) * Fraction(1, 2)
            return (3 * others + dollars * paid + (1 - dollars) * Fraction(2, 10)) / 4
        hit = Fraction(1) if tool == "ask_for_receipt" else (1 + Fraction(1, 2)) / 2
        return (2 * others + Fraction(-8, 10) + hit) / 4

    expected = sum(worth(facts_of(record)) for record in RECORDS) / len(RECORDS)
    row = TASK.reference_players(RECORDS)["any tool"]
    assert row["reward"] == pytest.approx(float(expected), abs=1e-12)
    assert row["right_tool"] == pytest.approx(0.25, abs=1e-12)


def test_reference_players_belong_to_the_records_they_are_asked_about():
    refunds = [record for record in RECORDS if TASK.stratum(record) == "refund"]
    receipts = [record for record in RECORDS if TASK.stratum(record) == "no receipt"]
    assert set(TASK.reference_players(refunds)) - set(TASK.reference_players(receipts)) == {"always issue_refund"}
    assert TASK.reference_players(receipts)["always ask_for_receipt"]["right"] == 1.0
    assert TASK.reference_players(refunds)["words, not numbers"]["right"] == 1.0


def test_reading_words_alone_is_wrong_wherever_a_number_decides_and_best_possible_is_right_everywhere():
    table = TASK.reference_players(RECORDS)
    by_number = {"too late", "over the limit"}
    late_or_over = sum(TASK.stratum(record) in by_number for record in RECORDS) / len(RECORDS)
    assert table["words, not numbers"]["right"] == pytest.approx(1 - late_or_over)
    assert table["best possible"] == {"reward": 1.0, "right_tool": 1.0, "right": 1.0}


def test_a_picture_shows_ticket_and_call_as_text_and_the_call_that_is_due_where_it_is_another():
    record = TASK.parse(REFUND)
    right = {
        "call": '{"name":"issue_refund","arguments":{"order":482,"amount":45,"reason":"damaged"}}',
        "outcome": "right",
    }
    other = {"call": '{"name":"<b>","arguments":{"order":"<i>"}}', "outcome": "other_tool"}
    assert "issue_refund 482, 45, damaged</code>" in picture(record, right) and "due:" not in picture(record, right)
    assert "&lt;b&gt; &lt;i&gt;" in picture(record, other) and "due: <code>issue_refund 482" in picture(record, other)
    assert all(
        "no valid call" in picture(record, {"call": call, "outcome": "no_call"}) for call in (None, "[]", "{}", "x")
    )
