"""A customer-service desk: from a policy and a ticket, exactly one call of one of four tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tuneloop.errors import UserError
from tuneloop.tasks.contract import Demonstration, Games, Message, Outcome, Record
from tuneloop.tasks.desk import generator, players, prompt, reward, rules, tickets
from tuneloop.tasks.desk.demonstrations import demonstrations
from tuneloop.toolcalls.contract import Fault, ToolCall

BETWEEN = " | "
"""What stands between policy and ticket where both are on one line."""


class Desk:
    """The task object; see `tuneloop.tasks.contract.Task` for what each member means."""

    name = "desk"
    outcomes = tuple(reward.REWARDS)
    measures = reward.MEASURES
    reward_range = (min(reward.REWARDS.values()), max(reward.REWARDS.values()))
    tools = prompt.TOOLS
    games: Games | None = None

    def generate(self, count: int, seed: int) -> list[Record]:
        return generator.generate(count, seed)

    def extra_records(self) -> list[Record]:
        return []

    def validate(self, record: Any, where: str) -> Record:
        return validate(record, where)

    def split_key(self, record: Record) -> str:
        return f"wording {tickets.wording_of(record['ticket'])}"

    def stratum(self, record: Record) -> str:
        return rules.case(facts_of(record))

    def show(self, record: Record) -> str:
        return f"{record['policy']}{BETWEEN}{record['ticket']}"

    def parse(self, text: str) -> Record:
        policy, _, ticket = text.partition(BETWEEN)
        return validate({"id": text, "policy": policy, "ticket": ticket}, "board")

    def messages(self, record: Record) -> list[Message]:
        return prompt.messages(record["policy"], record["ticket"])

    def score(self, record: Record, reading: ToolCall | Fault) -> Outcome:
        return reward.score(facts_of(record), reading)

    def demonstrations(
        self, records: Sequence[Record], count: int, seed: int, render: Callable[[ToolCall], str]
    ) -> list[Demonstration]:
        return demonstrations(records, count, seed, render)

    def reference_players(self, records: Sequence[Record]) -> dict[str, dict[str, float]]:
        return players.reference_players([facts_of(record) for record in records], self.measures)


def facts_of(record: Record) -> tickets.Facts:
    """The facts of a record. Raises UserError for one that is not worded as this task words them, such as a record that
    was made before the wordings were changed."""
    facts = tickets.read(record["policy"], record["ticket"])
    if facts is None:
        raise UserError(
            f"record {record['id']}: policy or ticket is not worded as this task words them; make the records again "
            "(`dvc repro boards`)"
        )
    return facts


def validate(record: Any, where: str) -> Record:
    """A record of this task: an id, a policy and a ticket worded by one of the task's wordings."""

    def refuse(problem: str) -> UserError:
        return UserError(
            f'{where}: {problem}; a record looks like {{"id":"a","policy":"Refunds up to $60 within 4 weeks.",'
            '"ticket":"Hello, order 482: the lamp came broken. I paid $45 3 weeks ago and I have the receipt."}'
        )

    if not isinstance(record, dict) or not isinstance(record.get("id"), str) or not record["id"]:
        raise refuse('no "id" (a non-empty text)')
    for key in ("policy", "ticket"):
        if not isinstance(record.get(key), str):
            raise refuse(f'record {record["id"]}: no "{key}" (a text)')
    if tickets.read(record["policy"], record["ticket"]) is None:
        raise refuse(f"record {record['id']}: policy or ticket is not worded as this task words them")
    return record


TASK = Desk()
