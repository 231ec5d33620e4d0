"""A ticket as facts and as text: writing one from the other, and reading it back."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from tuneloop.tasks.desk.wordings import ITEMS, PROBLEMS, RECEIPTS, WORDINGS

ORDERS, AMOUNTS, WEEKS = range(100, 1000), range(10, 100), range(2, 10)
"""What order numbers, dollars (paid, and the policy's limit) and weeks (since, and the policy's window) can be."""

POLICY = "Refunds up to ${limit} within {window} weeks."


@dataclass(frozen=True)
class Facts:
    """What a ticket and its policy say. `problem`: a key of `PROBLEMS`."""

    order: int
    paid: int
    weeks: int
    receipt: bool
    problem: str
    limit: int
    window: int


@dataclass(frozen=True)
class Phrases:
    """Which of the words that mean the same: numbers into `PROBLEMS[problem]`, `RECEIPTS[receipt]` and `ITEMS`."""

    problem: int
    receipt: int
    item: int


def policy_text(facts: Facts) -> str:
    """The refund policy as the record shows it."""
    return POLICY.format(limit=facts.limit, window=facts.window)


def slots(facts: Facts, phrases: Phrases) -> dict[str, str]:
    """What a wording's slots are filled with."""
    return {
        "order": str(facts.order),
        "paid": f"${facts.paid}",
        "weeks": f"{facts.weeks} weeks ago",
        "item": ITEMS[phrases.item],
        "problem": PROBLEMS[facts.problem][phrases.problem],
        "receipt": RECEIPTS[facts.receipt][phrases.receipt],
    }


def ticket_text(facts: Facts, phrases: Phrases, wording: int) -> str:
    """The ticket as wording number `wording` puts it."""
    return WORDINGS[wording].format(**slots(facts, phrases))


def wording_of(ticket: str) -> int | None:
    """The number of the wording that `ticket` is worded by, None if it is none of them."""
    match = _match(ticket)
    return None if match is None else match[0]


def read(policy: str, ticket: str) -> Facts | None:
    """The facts of a policy and a ticket; None for texts that are not worded like a record's."""
    rule, match = _policy().fullmatch(policy), _match(ticket)
    if rule is None or match is None:
        return None
    found = match[1]
    facts = Facts(
        order=int(found["order"]),
        paid=int(found["paid"]),
        weeks=int(found["weeks"]),
        receipt=found["receipt"] in RECEIPTS[True],
        problem=next(name for name, phrases in PROBLEMS.items() if found["problem"] in phrases),
        limit=int(rule["limit"]),
        window=int(rule["window"]),
    )
    allowed = (
        (facts.order, ORDERS),
        (facts.paid, AMOUNTS),
        (facts.limit, AMOUNTS),
        (facts.weeks, WEEKS),
        (facts.window, WEEKS),
    )
    return facts if all(value in values for value, values in allowed) else None


@cache
def _match(ticket: str) -> tuple[int, dict[str, str]] | None:
    for number, pattern in enumerate(_patterns()):
        match = pattern.fullmatch(ticket)
        if match is not None:
            return number, match.groupdict()
    return None


@cache
def _policy() -> re.Pattern[str]:
    return re.compile(
        re.escape(POLICY).replace(r"\{limit\}", "(?P<limit>[1-9][0-9])").replace(r"\{window\}", "(?P<window>[1-9])")
    )


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    def either(phrases: list[str]) -> str:
        return "|".join(map(re.escape, phrases))

    fillings = {
        "order": "(?P<order>[1-9][0-9]{2})",
        "paid": r"\$(?P<paid>[1-9][0-9])",
        "weeks": "(?P<weeks>[1-9]) weeks ago",
        "item": f"(?P<item>{either(list(ITEMS))})",
        "problem": f"(?P<problem>{either([p for phrases in PROBLEMS.values() for p in phrases])})",
        "receipt": f"(?P<receipt>{either([p for phrases in RECEIPTS.values() for p in phrases])})",
    }
    patterns = []
    for wording in WORDINGS:
        parts = re.split(r"\{(\w+)\}", wording)
        patterns.append(re.compile("".join(fillings[p] if i % 2 else re.escape(p) for i, p in enumerate(parts))))
    return tuple(patterns)
