"""The tables that a training writes, and the rows of two of them; those of the history are in `history`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuneloop.rollout.ask import Answer
from tuneloop.tasks.contract import Task


@dataclass
class Tables:
    """What training writes: the step history, evaluations, sampled replies, and times apart."""

    history: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    replies: list[dict[str, Any]] = field(default_factory=list)
    timings: list[dict[str, Any]] = field(default_factory=list)


def evaluation_row(step: int, summary: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """An evaluation after `step` steps. `summary`: what `tuneloop.evaluation.evaluate.summarise` made of it."""
    return {
        "step": step,
        "reward": summary["reward"],
        **{name: summary[name] for name in task.measures},
        "length": summary["length"]["all"],
        **({"faults": sum(summary["faults"].values())} if "faults" in summary else {}),
    }


def timing_row(
    step: int, rollout_seconds: float, train_seconds: float, answers: Sequence[Sequence[Answer]]
) -> dict[str, Any]:
    """What step `step` took, and how many replies and tokens it made of that; none where it did not roll out."""
    seconds = rollout_seconds + train_seconds
    tokens = sum(answer.length for group in answers for answer in group)
    return {
        "step": step,
        "rollout_seconds": round(rollout_seconds, 4),
        "train_seconds": round(train_seconds, 4),
        "replies_per_second": round(sum(map(len, answers)) / seconds, 1) if answers else None,
        "tokens_per_second": round(tokens / seconds, 1) if answers else None,
    }
