"""Asking a policy: records in, scored replies out. The one path that training, evaluation, games
and the browser board share: same template, same tools, same limits, same reading of the reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuneloop.policies.policy import Policy
from tuneloop.rollout.contract import Engine, FinishReason, Reply, Sampling
from tuneloop.rollout.reply_table import hash_of_ids, reply_row
from tuneloop.rollout.trajectory import Trajectory
from tuneloop.tasks.contract import Outcome, Record, Task, scored
from tuneloop.toolcalls import Fault, ToolCall, load_dialect, read_reply

READINGS_KEPT = 100_000


@dataclass(frozen=True)
class Answer:
    """One episode: its last reply with what was read from it, and what the episode earned. `trajectory` has all turns;
    None: there was one, on the record's own prompt. `by_agent`: the agent said what it earned, not the task."""

    reply: Reply
    text: str
    reading: ToolCall | Fault
    outcome: Outcome
    trajectory: Trajectory | None = None
    by_agent: bool = False

    @property
    def length(self) -> int:
        """Tokens that the policy sampled."""
        return len(self.reply.ids) if self.trajectory is None else self.trajectory.length

    @property
    def finish_reason(self) -> FinishReason:
        """Of the last reply."""
        return self.reply.finish_reason

    @property
    def fault(self) -> str | None:
        """What ended the episode that was not the policy's doing; such an episode is not trained on."""
        return None if self.trajectory is None else self.trajectory.fault


class Asker:
    """A policy behind an engine, facing one task. Prompts are tokenized once a record."""

    def __init__(self, policy: Policy, engine: Engine, task: Task):
        self.policy, self.engine, self.task = policy, engine, task
        self.dialect = load_dialect(policy.card.dialect)
        self._prompts: dict[str, list[int]] = {}
        self._readings: dict[tuple[int, ...], tuple[str, ToolCall | Fault]] = {}

    @property
    def single(self) -> Asker:
        """The asker that gets single replies to records: what the held-out evaluation wants."""
        return self

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Every reason code that an answer can have."""
        return self.task.outcomes

    @property
    def reward_range(self) -> tuple[float, float]:
        return self.task.reward_range

    def prompt(self, record: Record, max_new_tokens: int) -> list[int]:
        key = record["id"]
        if key not in self._prompts:
            self._prompts[key] = self.policy.prompt_ids(self.task.messages(record), self.task.tools)
        self.policy.require_room(self._prompts[key], max_new_tokens, f"record {key}")
        return self._prompts[key]

    def ask(self, records: Sequence[Record], seeds: Sequence[Sequence[int]], sampling: Sampling) -> list[list[Answer]]:
        """For record b one answer a seed in `seeds[b]`."""
        prompts = [self.prompt(record, sampling.max_new_tokens) for record in records]
        groups = self.engine.generate(prompts, seeds, sampling)
        return [[self._answer(record, reply) for reply in group] for record, group in zip(records, groups)]

    def _answer(self, record: Record, reply: Reply) -> Answer:
        text, reading = self.read(reply)
        return Answer(reply, text, reading, scored(self.task, record, reading, text, reply.finish_reason))

    def read(self, reply: Reply) -> tuple[str, ToolCall | Fault]:
        """The reply's text and what it says."""
        # A trained policy repeats itself: most replies were read before. The text does not depend on the record.
        key = tuple(reply.ids)
        if key not in self._readings:
            if len(self._readings) >= READINGS_KEPT:
                self._readings.clear()
            text = self.policy.decode(reply.ids)
            # A reply that the limit cut is read like any other: what it lacks is its own fault.
            reading = read_reply(text, self.dialect, self.task.tools, self.policy.card.reasoning)
            self._readings[key] = (text, reading)
        return self._readings[key]

    def row(self, record: Record, sample: int, answer: Answer, **kind: Any) -> dict[str, Any]:
        """The reply table's row; `kind` is the column that differs: `decoding`, or `step`."""
        return reply_row(self.task, record, sample, answer, hash_of_ids(self.prompt(record, 0)), **kind)
