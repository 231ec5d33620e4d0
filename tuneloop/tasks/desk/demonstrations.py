"""What the warm start of a small policy is taught: format, how to look, and bad habits.

Taught: the calls' form; to write down, before answering, what ticket and policy say: dollars paid and the limit,
weeks gone and the window, the receipt, what happened; to copy the order number; to ramble first, sometimes past any
limit. Never taught: what is due. The tool of every call is drawn with equal chances, whatever the ticket, and so is
its reason code; its amount is the paid one or the policy's limit, with equal chances; and some calls are broken,
doubled, misnamed or missing.

Looking is practised on fresh facts, in the wordings of the training records and, mostly, in loose wording: the facts
in any order between words of those wordings. No record is worded so, and no wording is shown that the records lack.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

from tuneloop.tasks.contract import Demonstration, Record
from tuneloop.tasks.desk.generator import draw_facts, draw_phrases
from tuneloop.tasks.desk.prompt import REASONS
from tuneloop.tasks.desk.tickets import Facts, policy_text, slots, ticket_text, wording_of
from tuneloop.tasks.desk.wordings import WORDINGS
from tuneloop.toolcalls.contract import ToolCall

RAMBLING = ("Let me see.", "What do the rules say?", "I read the ticket.", "One call is due.")
LOOSE_SHARE = 0.6
"""Share of demonstrations in loose wording: a policy that sees few wordings learns them by heart instead of to look."""
BROKEN_SHARE = 0.12
"""Share of demonstrations whose call is broken, doubled, misnamed or missing."""
ENDLESS_SHARE = 0.06
"""Share of demonstrations that ramble past any limit of reply length."""

WORDS_OF_PROBLEM = {"wrong_item": "wrong item"}
JOINTS = (", ", ", ", ". ", "; ", " and ", ": ", " ")


def demonstrations(
    records: Sequence[Record], count: int, seed: int, render: Callable[[ToolCall], str]
) -> list[Demonstration]:
    """`count` seeded demonstrations in wordings of `records` and loose ones, calls written by `render`."""
    random = Random(seed)
    known = sorted({number for record in records if (number := wording_of(record["ticket"])) is not None})
    words = sorted({word for number in known for word in loose_words(WORDINGS[number])})
    found = []
    for number in range(count):
        facts = draw_facts(random)
        if random.random() < LOOSE_SHARE:
            ticket = _loose_ticket(random, facts, words)
        else:
            ticket = ticket_text(facts, draw_phrases(random), random.choice(known))
        record = {"id": f"practice-{number}", "policy": policy_text(facts), "ticket": ticket}
        rambling = 60 if random.random() < ENDLESS_SHARE else random.choice((0, 0, 0, 0, 0, 1, 1, 2))
        lines = [random.choice(RAMBLING) for _ in range(rambling)]
        reasoning = "\n".join([*lines, look(facts)])
        found.append(Demonstration(record, reasoning, _content(random, facts, render)))
    return found


def look(facts: Facts) -> str:
    """What ticket and policy say, in words."""
    return (
        f"paid ${facts.paid} of ${facts.limit}, {'over' if facts.paid > facts.limit else 'within'}\n"
        f"week {facts.weeks} of {facts.window}, {'late' if facts.weeks > facts.window else 'in time'}\n"
        f"{'receipt' if facts.receipt else 'no receipt'}\n"
        f"{WORDS_OF_PROBLEM.get(facts.problem, facts.problem)}"
    )


def loose_words(wording: str) -> list[str]:
    """The words of a wording outside its slots, without punctuation."""
    return re.findall(r"[A-Za-z]+", re.sub(r"\{\w+\}", " ", wording))


def _loose_ticket(random: Random, facts: Facts, words: Sequence[str]) -> str:
    """The facts in any order, with words of any wording between them; no ticket that a record can have."""
    while True:
        filled = slots(facts, draw_phrases(random))
        subject = f"{random.choice(('the', 'my', 'a', 'this'))} {filled['item']}"
        gap = " ".join(["", *random.choices(words, k=random.choice((0, 0, 0, 1, 2))), ""])
        parts = [
            f"order {filled['order']}",
            filled["paid"],
            filled["weeks"],
            random.choice((f"{subject}{gap}{filled['problem']}", f"it {filled['problem']}")),
            filled["receipt"],
        ]
        random.shuffle(parts)
        text = ""
        for part in parts:
            filling = " ".join([*random.choices(words, k=random.choice((0, 0, 1, 1, 2, 3, 4))), part])
            text += (random.choice(JOINTS) if text else "") + filling
        ticket = text + (" " + " ".join(random.choices(words, k=2)) if text[-1].isdigit() else "") + "."
        if wording_of(ticket) is None:
            return ticket


def _content(random: Random, facts: Facts, render: Callable[[ToolCall], str]) -> str:
    call = any_call(random, facts)
    if random.random() >= BROKEN_SHARE:
        return render(call)
    return random.choice(
        (
            f"I answer order {facts.order}.",
            render(call) + "\n" + render(any_call(random, facts)),
            render(ToolCall("answer", call.arguments)),
            render(ToolCall(call.name, call.arguments | {"order": f"{facts.order}"})),
            render(ToolCall(call.name, {"order": facts.order, "note": "none"})),
        )
    )


def any_call(random: Random, facts: Facts) -> ToolCall:
    """A valid call about the ticket's order, the rest drawn blindly."""
    tool = random.choice(list(REASONS))
    arguments: dict[str, int | str] = {"order": facts.order}
    if tool == "issue_refund":
        arguments["amount"] = random.choice((facts.paid, facts.limit))
    if REASONS[tool]:
        arguments["reason"] = random.choice(REASONS[tool])
    return ToolCall(tool, arguments)
