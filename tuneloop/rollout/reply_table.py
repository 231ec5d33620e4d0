"""The reply table: one row a reply, with the same first columns whoever was asked."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol

from tuneloop.rollout.contract import FinishReason
from tuneloop.tasks.contract import Outcome, Record, Task
from tuneloop.toolcalls import Fault, ToolCall, calls_as_json


class Answered(Protocol):
    """What a row tells of an answer. `length`: sampled tokens, None where nobody counted them."""

    @property
    def text(self) -> str: ...
    @property
    def reading(self) -> ToolCall | Fault: ...
    @property
    def outcome(self) -> Outcome: ...
    @property
    def length(self) -> int | None: ...
    @property
    def finish_reason(self) -> FinishReason: ...


def reply_row(
    task: Task,
    record: Record,
    sample: int,
    answer: Answered,
    prompt_hash: str,
    *,
    step: int | None = None,
    decoding: str | None = None,
) -> dict[str, Any]:
    """The row of the `sample`th answer to `record`, its columns in the table's order. Tables of training have `step`,
    those of an evaluation `decoding` ("greedy" or "sampled")."""
    return {
        **({} if step is None else {"step": step}),
        "id": record["id"],
        "board": task.show(record),
        "stratum": task.stratum(record),
        "cluster": task.split_key(record),
        **({} if decoding is None else {"decoding": decoding}),
        "sample": sample,
        "prompt_hash": prompt_hash,
        "text": answer.text,
        "call": calls_as_json(answer.reading),
        "outcome": answer.outcome.name,
        "reward": answer.outcome.reward,
        "length": answer.length,
        "finish_reason": answer.finish_reason,
    }


def hash_of_ids(prompt: Sequence[int]) -> str:
    """The column `prompt_hash` of a prompt that the policy got as token ids."""
    return hash_of_text(" ".join(map(str, prompt)))


def hash_of_text(prompt: str) -> str:
    """The column `prompt_hash`: 16 hex digits."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]
