"""A second opinion on every reply: outcome and reward from the shown ticket and the text alone.

Nothing here is shared with the code that it checks (`tickets`, `wordings`, `rules`, `reward`, the reader of replies),
and the ways are different: a ticket is not matched against its wording but searched for key words and numbers, and
the call that is due is found from the last rule to the first, each overruling those after it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tuneloop.tasks.second_reader import Tools, second_reading
from tuneloop.toolcalls.contract import Reasoning

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

_ORDERS = range(100, 1000)
TOOLS: Tools = {
    "issue_refund": {
        "order": _ORDERS,
        "amount": range(1, 10**300),
        "reason": frozenset({"damaged", "wrong_item", "missing"}),
    },
    "ask_for_receipt": {"order": _ORDERS},
    "escalate": {"order": _ORDERS, "reason": frozenset({"safety", "over_limit"})},
    "close_ticket": {"order": _ORDERS, "reason": frozenset({"solved", "too_late"})},
}

KEYWORDS = {
    "damaged": r"broken|cracked|damaged",
    "wrong_item": r"wrong (?:size|colour)|not what",
    "missing": r"never came|missing|lost in the post",
    "hurt": r"\bfire\b|shock|burned",
    "solved": r"works now|fine after all|does its job",
}
NO_RECEIPT = r"no receipt|receipt is (?:lost|gone)"


@dataclass(frozen=True)
class Told:
    """What the shown text tells. Every number of a record is told once; `problems` are those of `KEYWORDS` found."""

    limit: int
    window: int
    order: int
    paid: int
    weeks: int
    receipt: bool
    problems: tuple[str, ...]


def told(shown: str) -> Told | None:
    """What `shown` (policy, ` | `, ticket) tells; None where a number is not there exactly once."""
    policy, _, ticket = shown.partition(" | ")
    searches = (
        (r"\$([0-9]+)", policy),
        (r"([0-9]+) weeks", policy),
        (r"(?<![0-9$])([0-9]{3})(?![0-9])", ticket),
        (r"\$([0-9]+)", ticket),
        (r"([0-9]+) weeks ago", ticket),
    )
    found = [re.findall(pattern, text) for pattern, text in searches]
    if any(len(numbers) != 1 for numbers in found):
        return None
    limit, window, order, paid, weeks = (int(numbers[0]) for numbers in found)
    problems = tuple(name for name, pattern in KEYWORDS.items() if re.search(pattern, ticket))
    return Told(limit, window, order, paid, weeks, re.search(NO_RECEIPT, ticket) is None, problems)


def due(told: Told) -> tuple[str, int | None, str | None]:
    """Tool, amount and reason code of the one right call."""
    problem = told.problems[0]
    answer: tuple[str, int | None, str | None] = ("issue_refund", told.paid, problem)
    if told.limit < told.paid:
        answer = ("escalate", None, "over_limit")
    if not told.receipt:
        answer = ("ask_for_receipt", None, None)
    if told.window < told.weeks:
        answer = ("close_ticket", None, "too_late")
    if problem == "hurt":
        answer = ("escalate", None, "safety")
    if problem == "solved":
        answer = ("close_ticket", None, "solved")
    return answer


def oracle(shown: str, text: str, reasoning: Reasoning | None, dialect: str) -> tuple[str, float]:
    """Outcome and reward of the reply `text` to the ticket `shown` (policy, ` | `, ticket, as records are worded).

    Never raises for any text. Raises UserError for a dialect that it cannot read.
    """
    found = second_reading(text, reasoning, dialect, TOOLS)
    outcome = found if isinstance(found, str) else judge(shown, *found)
    return outcome, REWARDS[outcome]


def judge(shown: str, tool: str, arguments: dict[str, int | str]) -> str:
    """The outcome of a valid call."""
    facts = told(shown)
    if facts is None or not facts.problems:
        raise ValueError(f"no ticket: {shown!r}")
    wanted, amount, reason = due(facts)
    if arguments["order"] != facts.order:
        return "other_order"
    if tool != wanted:
        return "undue_refund" if tool == "issue_refund" else "other_tool"
    if (arguments.get("amount"), arguments.get("reason")) == (amount, reason):
        return "right"
    return "other_reason" if arguments.get("amount") == amount else "other_amount"
