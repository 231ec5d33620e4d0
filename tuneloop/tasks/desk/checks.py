"""What the data checks know of the desk (see `tuneloop.checks.contract.TaskChecks`).

Like the oracle, this shares nothing with the code that words and reads tickets: facts are found by key words, and a
wording is what is left of a ticket when all that varies is taken out of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tuneloop.tasks.desk.oracle import NO_RECEIPT, REWARDS, due, oracle, told

if TYPE_CHECKING:
    from great_expectations.expectations import Expectation

__all__ = [
    "RECORD_COLUMNS",
    "REWARDS",
    "generated_id",
    "oracle",
    "record_expectations",
    "record_facts",
    "split_class",
]

RECORD_COLUMNS: dict[str, tuple[type, ...]] = {"id": (str,), "policy": (str,), "ticket": (str,)}

ITEM = r"\b(?:kettle|lamp|chair|radio|clock|jacket|toaster|fan)\b"
PROBLEM = (
    r"(?:came|arrived|was|is|never|got|caught|gave|burned|works|does)\b"
    r"(?: the| still| its| me| my| a)*(?: in the)?(?: (?:broken|cracked|damaged|wrong size|wrong colour|came|missing"
    r"|fire|shock|hand|now|job again|not what I ordered|lost in the post|fine after all))"
)
HAS_RECEIPT = r"have the receipt|receipt is (?:attached|enclosed)"


def generated_id(number: int) -> str:
    return f"generated-{number:05d}"


def record_facts(record: Mapping[str, Any]) -> dict[str, Any]:
    """`numbers`: whether policy and ticket tell each of their five numbers exactly once. The rest is None unless they
    do: the numbers, `problems` (how many kinds of things happened), `receipts` (how often a receipt is spoken of) and
    `due_tool`."""
    names = ("order", "paid", "limit", "weeks_ago", "window", "problems", "receipts", "due_tool")
    found = _told(record)
    if found is None:
        return {"numbers": "not each of the five numbers once"} | dict.fromkeys(names)
    ticket = record["ticket"]
    return {
        "numbers": "each of the five numbers once",
        "order": found.order,
        "paid": found.paid,
        "limit": found.limit,
        "weeks_ago": found.weeks,
        "window": found.window,
        "problems": len(found.problems),
        "receipts": len(re.findall(f"{NO_RECEIPT}|{HAS_RECEIPT}", ticket)),
        "due_tool": due(found)[0] if found.problems else None,
    }


def record_expectations() -> dict[str, Expectation]:
    import great_expectations.expectations as gxe

    def between(column: str, low: int, high: int) -> Expectation:
        return gxe.ExpectColumnValuesToBeBetween(column=column, min_value=low, max_value=high)

    return {
        "every_number_once": gxe.ExpectColumnValuesToBeInSet(
            column="numbers", value_set=["each of the five numbers once"]
        ),
        "order_of_three_digits": between("order", 100, 999),
        "paid_two_digits": between("paid", 10, 99),
        "limit_two_digits": between("limit", 10, 99),
        "weeks_one_digit": between("weeks_ago", 2, 9),
        "window_one_digit": between("window", 2, 9),
        "one_thing_happened": between("problems", 1, 1),
        "one_word_on_the_receipt": between("receipts", 1, 1),
        "one_tool_is_due": gxe.ExpectColumnValuesToBeInSet(
            column="due_tool", value_set=["issue_refund", "ask_for_receipt", "escalate", "close_ticket"]
        ),
    }


def split_class(record: Mapping[str, Any]) -> str | None:
    """The ticket with marks in place of numbers, item, what happened and the receipt: its wording."""
    if _told(record) is None:
        return None
    text = re.sub(r"[0-9]+", "#", record["ticket"])
    text = re.sub(f"I have no receipt|my receipt is lost|the receipt is gone|(?:I|my|the) (?:{HAS_RECEIPT})", "%", text)
    return re.sub(PROBLEM, "!", re.sub(ITEM, "@", text))


def _told(record: Mapping[str, Any]) -> Any:
    texts = [record.get(key) for key in ("policy", "ticket")]
    return told(" | ".join(texts)) if all(isinstance(text, str) for text in texts) else None
