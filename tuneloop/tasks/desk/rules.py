"""The rules of the desk: which call a ticket is due, and the rule that says so."""

from __future__ import annotations

from collections.abc import Callable

from tuneloop.tasks.desk.tickets import Facts
from tuneloop.toolcalls.contract import ToolCall

CASES: dict[str, Callable[[Facts], bool]] = {
    "solved": lambda facts: facts.problem == "solved",
    "safety": lambda facts: facts.problem == "hurt",
    "too late": lambda facts: facts.weeks > facts.window,
    "no receipt": lambda facts: not facts.receipt,
    "over the limit": lambda facts: facts.paid > facts.limit,
    "refund": lambda facts: True,
}
"""The rules in their order: the first that holds decides."""


def case(facts: Facts) -> str:
    """The rule that decides."""
    return next(name for name, holds in CASES.items() if holds(facts))


def due(facts: Facts) -> ToolCall:
    """The one right call."""
    order = {"order": facts.order}
    match case(facts):
        case "solved":
            return ToolCall("close_ticket", order | {"reason": "solved"})
        case "safety":
            return ToolCall("escalate", order | {"reason": "safety"})
        case "too late":
            return ToolCall("close_ticket", order | {"reason": "too_late"})
        case "no receipt":
            return ToolCall("ask_for_receipt", order)
        case "over the limit":
            return ToolCall("escalate", order | {"reason": "over_limit"})
    return ToolCall("issue_refund", order | {"amount": facts.paid, "reason": facts.problem})
