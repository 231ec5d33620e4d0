"""How long a run on a CPU is going to take, said before it starts.

Counted as in Kaplan et al. (arXiv 2001.08361, section 2.1): 2 floating-point operations a parameter and token
forward, 4 more backward. Divided by a measured rate of matrix products, so it is what the run takes at best.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import fmean

import torch
from transformers import PreTrainedTokenizerBase

from tuneloop.params import Params
from tuneloop.policies.card import PolicyCard
from tuneloop.policies.policy import Policy
from tuneloop.tasks.contract import Record, Task

SHOWN_FROM = 0.5
"""Hours from which a forecast is worth a line."""
SAMPLE = 200
"""Records that token counts are averaged over."""


@dataclass(frozen=True)
class Lengths:
    """Mean tokens: of a prompt without what all prompts share (that is computed once), and of a reply."""

    prompt: float
    reply: float


def lengths(
    tokenizer: PreTrainedTokenizerBase, card: PolicyCard, task: Task, records: Sequence[Record], limit: int
) -> Lengths:
    """Measured on some prompts; replies are taken to be half of `limit` tokens."""
    policy = Policy(None, tokenizer, card)
    prompts = [policy.prompt_ids(task.messages(record), task.tools) for record in records[:SAMPLE]]
    shared = len(list(takewhile(lambda column: len(set(column)) == 1, zip(*prompts))))
    return Lengths(fmean(map(len, prompts)) - shared, limit / 2)


def hours(params: Params, parameters: int, length: Lengths, heldout: int, rate: float) -> dict[str, float]:
    """By part of the loop, for `heldout` held-out records and `rate` operations a second."""
    start, train, evaluate = params.policy.warm_start, params.train, params.evaluate

    def tokens(boards: int, replies: int) -> float:
        return boards * (length.prompt + replies * length.reply)

    # Whole games (about four moves each) come on top of the records: as X and as O, three opponents.
    asked = tokens(heldout, 1 + 2 * evaluate.samples) + tokens(heldout, 1 + evaluate.samples)
    asked += 2 * tokens(2 * 3 * 4 * evaluate.games, 1)
    rolled = tokens(train.boards_per_step * train.oversample, train.group_size)
    trained = tokens(train.boards_per_step, train.group_size)
    scored = (train.old_logprobs == "trainer") + (train.kl_coefficient > 0)
    work = {
        "warm start": 6 * tokens(start.updates * start.batch_size, 1),
        "evaluation": 2 * asked,
        "training": train.steps * (2 * rolled + 2 * scored * trained + 6 * train.epochs_per_step * trained),
    }
    return {part: parameters * operations / rate / 3600 for part, operations in work.items()}


def matmul_rate(seconds: float = 0.5) -> float:
    """Operations a second in float32 products of a language model's shapes, with the threads torch has now."""
    a, b = torch.ones(512, 1024), torch.ones(1024, 1024)
    a @ b  # the first one sets up threads
    started, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - started) < seconds:
        a @ b
        count += 1
    return count * 2 * 512 * 1024 * 1024 / passed


def forecast(parts: dict[str, float], parameters: int, rate: float) -> str | None:
    """A line for people, or None for a run that is over soon."""
    total = sum(parts.values())
    if total < SHOWN_FROM:
        return None
    each = ", ".join(f"{part} {value:.1f}" for part, value in parts.items())
    return (
        f"on this CPU the whole loop takes at least {total:.1f} hours ({each}): {parameters / 1e6:.0f} M parameters at "
        f"the {rate / 1e9:.0f} GFLOP/s measured just now. A GPU takes minutes; a lower train.steps is shorter. "
        "An interrupted training continues where it was."
    )
