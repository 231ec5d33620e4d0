"""Seeded tickets, all different. Every rule decides about as often as its weight says, every wording serves equally
often (but for one), and whatever does not decide is drawn at random."""

from __future__ import annotations

from random import Random

from tuneloop.errors import UserError
from tuneloop.tasks.contract import Record
from tuneloop.tasks.desk.rules import case
from tuneloop.tasks.desk.tickets import AMOUNTS, ORDERS, WEEKS, Facts, Phrases, policy_text, ticket_text
from tuneloop.tasks.desk.wordings import ITEMS, PROBLEMS, RECEIPTS, WORDINGS

WEIGHTS = {"solved": 1, "safety": 1, "too late": 1, "no receipt": 2, "over the limit": 1, "refund": 3}
"""How often each rule is to decide: each tool is due for 2 of 9 tickets, a refund for 3."""

POSSIBLE = (
    len(WORDINGS)
    * len(ORDERS)
    * len(AMOUNTS) ** 2
    * len(WEEKS) ** 2
    * len(ITEMS)
    * sum(map(len, PROBLEMS.values()))
    * sum(map(len, RECEIPTS.values()))
)
"""Different tickets under different policies: wordings × orders × dollars paid × limits × weeks × windows × phrases."""


def generate(count: int, seed: int) -> list[Record]:
    """`count` different records `{"id": "generated-00000", "policy": …, "ticket": …}`.

    Raises UserError if `count` is not a whole number from 1 to `POSSIBLE`.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= POSSIBLE:
        raise UserError(
            f"boards.count: {count!r} tickets asked for, but it must be a whole number from 1 to {POSSIBLE}: "
            f"no more different tickets exist"
        )
    random = Random(seed)
    order = list(range(len(WORDINGS)))
    seen: dict[tuple[str, str], None] = {}
    while len(seen) < count:
        place = len(seen) % len(WORDINGS)
        if place == 0:
            random.shuffle(order)
        facts = draw_facts(random)
        text = ticket_text(facts, draw_phrases(random), order[place])
        seen.setdefault((policy_text(facts), text))
    return [
        {"id": f"generated-{number:05d}", "policy": policy, "ticket": ticket}
        for number, (policy, ticket) in enumerate(seen)
    ]


def draw_facts(random: Random) -> Facts:
    """Facts on which a rule decides that was drawn first, by `WEIGHTS`."""
    wanted = random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    while True:
        facts = Facts(
            order=random.choice(ORDERS),
            paid=random.choice(AMOUNTS),
            weeks=random.choice(WEEKS),
            receipt=random.random() < 0.5,
            problem=random.choice(list(PROBLEMS)),
            limit=random.choice(AMOUNTS),
            window=random.choice(WEEKS),
        )
        if case(facts) == wanted:
            return facts


def draw_phrases(random: Random) -> Phrases:
    """Words at random, all with equal chances."""
    return Phrases(problem=random.randrange(3), receipt=random.randrange(3), item=random.randrange(len(ITEMS)))
