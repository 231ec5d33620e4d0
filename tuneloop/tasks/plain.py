"""The plain way to write a task: a file of records, a tool or an output schema, the messages, a reward function.

    TASK = plain_task(__file__, tools=[…], messages=messages, reward=reward, outcomes={"wrong": 0.0, "right": 1.0})

in `tuneloop/tasks/<name>/__init__.py` is a whole task; `records.jsonl` lies beside it. Everything else that the loop
wants of a task (`tuneloop.tasks.contract.Task`) follows from these. docs/your-task.md has the way there.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Literal

from tuneloop.artifacts import compact_json
from tuneloop.errors import UserError
from tuneloop.tasks.contract import Demonstration, Message, Outcome, Record
from tuneloop.tasks.plain_arguments import quoted, random_call
from tuneloop.tasks.plain_parts import (
    FAULTS,
    answer_tool,
    measures_of,
    ordered_outcomes,
    require_names,
    require_tools,
)
from tuneloop.tasks.plain_records import answer_of, checked_record, read_records, texts_of
from tuneloop.tasks.plain_reward import HIGHEST, LOWEST, Reply, Reward, raised, relative, rewarded
from tuneloop.tasks.reference import expected
from tuneloop.toolcalls.contract import Fault, Tool, ToolCall

__all__ = ["Outcome", "PlainTask", "Reply", "plain_task", "tool"]

CALLS_A_RECORD = 8
"""Made-up calls a record, from which demonstrations are drawn and which the player at random makes."""


def tool(name: str, description: str, properties: Mapping[str, Mapping[str, Any]]) -> Tool:
    """The definition of a tool that wants every one of `properties` (JSON Schemas by name) and nothing else."""
    parameters = {
        "type": "object",
        "properties": {key: dict(schema) for key, schema in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def plain_task(
    file: str,
    *,
    messages: Callable[[Record], list[Message]],
    reward: Reward,
    tools: Sequence[Tool] | None = None,
    output: Mapping[str, Any] | None = None,
    outcomes: Mapping[str, float] | None = None,
    measures: Mapping[str, Collection[str]] | None = None,
    records: str = "records.jsonl",
) -> PlainTask:
    """A task from its parts. `file` is the `__file__` of the task's `__init__.py`: its folder is the task's name.

    `tools`: what a reply may call, exactly once (see `tool`); or `output`, the JSON Schema of an object: replies then
    call a tool `answer` whose arguments are the object.
    `reward(record, reply)`: a number from −1 to 1, or an `Outcome` with one of the names in `outcomes`. Only readable
    replies come to it; all others earn −1.
    `outcomes`: names for rewards, each with the least reward that it stands for; without them every readable reply
    is `scored`. `measures`: names for sets of outcomes, of which the report gives shares; without them `valid` (every
    readable reply) and the name of the highest outcome.

    Raises UserError for parts that do not fit together; the file of records is read when it is first needed.
    """
    name = Path(file).parent.name
    try:
        if (tools is None) == (output is None):
            raise UserError("give plain_task either tools or an output schema")
        named = {"scored": LOWEST} if outcomes is None else ordered_outcomes(outcomes)
        yes = measures_of(named) if measures is None else {key: frozenset(codes) for key, codes in measures.items()}
        require_names(named, yes)
        definitions = list(tools) if output is None else [answer_tool(output)]
        require_tools(definitions)
    except UserError as error:
        raise UserError(f"task {name}: {error}") from None
    return PlainTask(Path(file).parent, definitions, messages, reward, named, yes, records)


class PlainTask:
    """What `plain_task` makes; see `tuneloop.tasks.contract.Task` for what each member means."""

    games = None
    episodes = None
    reward_range = (LOWEST, HIGHEST)

    def __init__(
        self,
        folder: Path,
        tools: Sequence[Tool],
        messages: Callable[[Record], list[Message]],
        reward: Reward,
        scores: Mapping[str, float],
        measures: Mapping[str, frozenset[str]],
        records: str,
    ):
        self.name, self.tools, self.measures = folder.name, tools, measures
        self.scores = scores
        """The outcomes of readable replies, worst first, each with its least reward."""
        self.outcomes = (*FAULTS, *scores)
        self.path = folder / records
        self._messages, self._reward = messages, reward

    @cached_property
    def records(self) -> dict[str, Record]:
        """Every record of the file, by id."""
        return read_records(self.path, self.tools)

    @property
    def fields(self) -> list[str]:
        return list(next(iter(self.records.values())))

    def generate(self, count: int, seed: int) -> list[Record]:
        records = list(self.records.values())
        if not 1 <= count <= len(records):
            raise UserError(
                f"boards.count: {count} records asked for, and {relative(self.path)} has {len(records)}; "
                f"set boards.count to {len(records)} for all of them"
            )
        chosen = Random(seed).sample(range(len(records)), count)
        return [records[place] for place in sorted(chosen)]

    def extra_records(self) -> list[Record]:
        return []

    def validate(self, record: Any, where: str) -> Record:
        return checked_record(record, self.fields, self.tools, where)

    def split_key(self, record: Record) -> str:
        return record["id"] if record.get("group") is None else f"group {record['group']}"

    def stratum(self, record: Record) -> str:
        return record.get("stratum") or "all"

    def show(self, record: Record) -> str:
        return compact_json(record)

    def parse(self, text: str) -> Record:
        """Also takes the id of a record of the file."""
        if text in self.records:
            return self.records[text]
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            some = f"{relative(self.path)} (such as {', '.join(list(self.records)[:3])})"
            raise UserError(f"record {text[:80]!r}: is no id in {some} and no JSON") from None
        return self.validate(record, "record")

    def messages(self, record: Record) -> list[Message]:
        try:
            found = self._messages(record)
        except (Exception, SystemExit) as error:
            raise UserError(f"task {self.name}: messages of record {record['id']} raised {raised(error)}") from None
        if not (isinstance(found, list) and found and all(map(_is_message, found))):
            raise UserError(
                f"task {self.name}: messages of record {record['id']} gave {str(found)[:120]!r}; it must give a list "
                'of {"role": "system" or "user" or "assistant", "content": a text}'
            )
        return found

    def score(self, record: Record, reading: ToolCall | Fault) -> Outcome:
        return self.score_reply(record, reading, "")

    def score_reply(
        self, record: Record, reading: ToolCall | Fault, text: str, finish_reason: Literal["stop", "length"] = "stop"
    ) -> Outcome:
        """`score` for a reward that may look at the whole reply."""
        if isinstance(reading, Fault):
            return Outcome(reading.name, LOWEST)
        reply = Reply(text, reading.name, reading.arguments, finish_reason)
        try:
            return rewarded(self._reward, record, reply, self.scores)
        except UserError as error:
            raise UserError(f"task {self.name}: {error}") from None

    def demonstrations(
        self, records: Sequence[Record], count: int, seed: int, render: Callable[[ToolCall], str]
    ) -> list[Demonstration]:
        """Reasoning that quotes the input, and a call that is made up: to look at the record, and what a valid call
        looks like; never which one is right."""
        random = Random(seed)
        calls = self.made_up(records, seed)
        found = []
        for _ in range(count):
            record = random.choice(records)
            found.append(Demonstration(record, quoted(texts_of(record)), render(random.choice(calls[record["id"]]))))
        return found

    def made_up(self, records: Sequence[Record], seed: int) -> dict[str, list[ToolCall]]:
        """Calls at random, valid for the schema, by record id. Where a schema cannot be met by chance, the answers of
        whichever of `records`."""
        known = [call for record in records if (call := answer_of(record, self.tools)) is not None]
        return {
            record["id"]: [
                random_call(self.tools, random, texts_of(record), known)
                # Drawn from the id: the same calls whatever other records there are.
                for random in [Random(f"{seed}/{zlib.crc32(record['id'].encode())}")]
                for _ in range(CALLS_A_RECORD)
            ]
            for record in records
        }

    def reference_players(self, records: Sequence[Record]) -> dict[str, dict[str, float]]:
        """A player who answers anything valid (`CALLS_A_RECORD` seeded calls a record); where records have answers,
        one who always gives the commonest of the file, and one who gives the record's own."""
        calls = self.made_up(records, seed=0)
        players = {"anything valid": [self.score(record, call) for record in records for call in calls[record["id"]]]}
        common = Counter(
            compact_json([call.name, call.arguments])
            for record in self.records.values()
            if (call := answer_of(record, self.tools)) is not None
        ).most_common(1)
        if common:
            always = ToolCall(*json.loads(common[0][0]))
            players["always the commonest answer"] = [self.score(record, always) for record in records]
        answers = [(record, answer_of(record, self.tools)) for record in records]
        if all(call is not None for _, call in answers):
            players["the known answer"] = [self.score(record, call) for record, call in answers]
        # Each player has equally many answers to every record, so one row of them all has the same mean.
        return {player: expected([earned], self.measures) for player, earned in players.items()}


def _is_message(message: Any) -> bool:
    roles: Iterable[str] = ("system", "user", "assistant", "tool")
    return isinstance(message, dict) and message.get("role") in roles and isinstance(message.get("content"), str)
