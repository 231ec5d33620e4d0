"""Outcome and reward of one reply to a ticket."""

from __future__ import annotations

from tuneloop.tasks.contract import Outcome
from tuneloop.tasks.desk.rules import due
from tuneloop.tasks.desk.tickets import Facts
from tuneloop.toolcalls.contract import Fault, ToolCall

REWARDS = {
    "no_call": -1.0,
    "several_calls": -1.0,
    "wrong_tool": -1.0,
    "bad_arguments": -1.0,
    "other_order": -1.0,
    "undue_refund": -0.8,
    "other_tool": -0.4,
    "other_amount": 0.2,
    "other_reason": 0.5,
    "right": 1.0,
}
"""Every outcome, worst first. `wrong_tool`: there is no such tool. `other_order`: a valid call about somebody else's
order; `undue_refund`: money back that the rules do not grant; `other_tool`: a tool that is not due; `other_amount`
and `other_reason`: the tool that is due with the wrong dollars, or the right ones and the wrong reason code."""

MEASURES = {
    "right_tool": frozenset({"other_amount", "other_reason", "right"}),
    "right": frozenset({"right"}),
}
"""The outcomes that count as the tool that is due, and as the whole call that is due."""


def call_outcome(facts: Facts, call: ToolCall) -> Outcome:
    """The outcome of a valid call."""
    wanted = due(facts)
    if call.arguments["order"] != facts.order:
        name = "other_order"
    elif call.name != wanted.name:
        name = "undue_refund" if call.name == "issue_refund" else "other_tool"
    elif call.arguments.get("amount") != wanted.arguments.get("amount"):
        name = "other_amount"
    elif call.arguments.get("reason") != wanted.arguments.get("reason"):
        name = "other_reason"
    else:
        name = "right"
    return Outcome(name, REWARDS[name])


def score(facts: Facts, reading: ToolCall | Fault) -> Outcome:
    """The outcome of a reply that was read as `reading`."""
    if isinstance(reading, Fault):
        return Outcome(reading.name, REWARDS[reading.name])
    return call_outcome(facts, reading)
