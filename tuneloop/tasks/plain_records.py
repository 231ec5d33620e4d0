"""The records of a plain task: a JSONL file, one object a line.

    {"id": "m-001", "message": "…", "answer": {"category": "billing"}, "group": "thread-17", "stratum": "short"}

`id` is a text of its own for every record. Four more names have a meaning, and none has to be there: `answer` (the
right arguments of the tool; with several tools `{"name": …, "arguments": …}`), `group` (records of one group land on
the same side of the held-out split), `stratum` (a label by which results are broken down), and nothing else: all
other fields are the input, in whatever form the task's `messages` and `reward` want them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuneloop.artifacts import read_jsonl
from tuneloop.errors import UserError
from tuneloop.tasks.contract import Record
from tuneloop.tasks.plain_reward import relative
from tuneloop.toolcalls.contract import Tool, ToolCall
from tuneloop.toolcalls.schema import parameters_of, problem_with

NOT_INPUT = ("id", "answer", "group", "stratum")

TAKEN = ("boards_has", "content", "equals_in_train", "expected_id", "form", "is_heldout", "line", "side")
"""Names of columns that the data checks add to the records."""


def read_records(path: Path, tools: Sequence[Tool]) -> dict[str, Record]:
    """The records of a file by id, in its order, every one with the fields of the first in the first's order.
    Raises UserError naming file and line for one that is not as the module says."""
    if not path.exists():
        raise UserError(f"{relative(path)}: is not there; write one JSON object a line, each with an id")
    records: dict[str, Record] = {}
    fields: tuple[str, ...] | None = None
    for number, row in enumerate(read_jsonl(path), 1):
        where = f"{relative(path)}, line {number}"
        fields = _fields(row, where) if fields is None else fields
        record = checked_record(row, fields, tools, where)
        if record["id"] in records:
            raise UserError(f"{where}: the id {record['id']!r} is in an earlier line too; every record needs its own")
        records[record["id"]] = {name: record[name] for name in fields}
    return records


def _fields(row: Mapping[str, Any], where: str) -> tuple[str, ...]:
    if taken := sorted(set(row) & set(TAKEN)):
        raise UserError(f"{where}: a field cannot be called {taken[0]}, the data checks use that name; rename it")
    if not set(row) - set(NOT_INPUT):
        raise UserError(f"{where}: has no field for the input beside {', '.join(row) or 'nothing'}")
    return ("id", *(name for name in row if name != "id"))


def checked_record(record: Any, fields: Sequence[str], tools: Sequence[Tool], where: str) -> Record:
    """`record` itself; UserError naming `where` for one with other fields or with a value that cannot be used."""
    if not isinstance(record, dict) or not isinstance(record.get("id"), str) or not record["id"].strip():
        raise UserError(f'{where}: has no "id" (a text that is not empty)')
    where = f"{where}: record {record['id']}"
    if set(record) != set(fields):
        raise UserError(
            f"{where} has the fields {', '.join(record)}, the first record of the file has {', '.join(fields)}; give "
            "all the same (null where one has nothing to say)"
        )
    for name in ("group", "stratum"):
        if not isinstance(record.get(name), str | None) or record.get(name) == "":
            raise UserError(f"{where}: {name!r} must be a text, or null (got {record[name]!r})")
    if not _finite(record):
        raise UserError(f"{where}: holds NaN or Infinity, which JSON does not know")
    if record.get("answer") is not None:
        answer_of(record, tools, where)
    return record


def answer_of(record: Record, tools: Sequence[Tool], where: str | None = None) -> ToolCall | None:
    """The record's right call; None where it has none. UserError for one that the tools do not allow."""
    answer = record.get("answer")
    if answer is None:
        return None
    where = f"record {record['id']}" if where is None else where
    call = None
    if isinstance(answer, dict) and len(tools) == 1:
        call = ToolCall(tools[0]["function"]["name"], answer)
    elif isinstance(answer, dict) and set(answer) == {"name", "arguments"} and isinstance(answer["arguments"], dict):
        call = ToolCall(answer["name"], answer["arguments"])
    if call is None:
        form = '{"name": …, "arguments": {…}}' if len(tools) > 1 else "an object of the tool's arguments"
        raise UserError(f"{where}: 'answer' must be {form}, or null (got {str(answer)[:80]!r})")
    schema = parameters_of(tools, call.name)
    problem = f"there is no tool {call.name!r}" if schema is None else problem_with(call.arguments, schema)
    if problem is not None:
        raise UserError(f"{where}: 'answer' is nothing that a reply could say: {problem}")
    return call


def texts_of(record: Record) -> list[str]:
    """Every text in the input fields, nested ones too, in order."""
    return [text for name, value in record.items() if name not in NOT_INPUT for text in _texts(value)]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _finite(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)
