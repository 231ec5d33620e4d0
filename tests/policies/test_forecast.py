"""The forecast for a run on a CPU: what is counted, and that it says nothing where there is nothing to say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tuneloop.policies.card import PolicyCard
from tuneloop.policies.forecast import Lengths, forecast, hours, lengths, matmul_rate
from tuneloop.policies.nano import nano_tokenizer
from tuneloop.policies.policy import Policy
from tuneloop.tasks import load_task

TASK = load_task("tictactoe")


def test_the_work_is_what_a_hand_count_gives(tiny_params: Callable) -> None:
    """2 operations a parameter and token forward, 6 forward and backward; with one parameter and 1/3600 operations
    a second, hours are operations. A prompt has 10 tokens of its own, a reply 5."""
    params = tiny_params(
        {"policy.warm_start.updates": 3, "policy.warm_start.batch_size": 2, "evaluate.samples": 2, "evaluate.games": 1}
        | {"train.steps": 2, "train.boards_per_step": 3, "train.oversample": 2, "train.group_size": 4}
        | {"train.epochs_per_step": 1, "train.kl_coefficient": 0.1}
    )
    found = hours(params, 1, Lengths(10, 5), heldout=7, rate=1 / 3600)
    assert found == {
        "warm start": 6 * (3 * 2 * 15),
        # 7 records with 1 + 2 + 2 replies before and 1 + 2 after; 2 sides × 3 opponents × 4 moves, before and after.
        "evaluation": 2 * (7 * (10 + 25) + 7 * (10 + 15) + 2 * 24 * 15),
        # A step rolls out 6 boards of 10 + 20 tokens, and scores (for the KL term) and trains on 3 of them.
        "training": 2 * (2 * 6 * 30 + 2 * 3 * 30 + 6 * 3 * 30),
    }


def test_lengths_leave_out_what_all_prompts_share() -> None:
    tokenizer, card = nano_tokenizer([], 300), PolicyCard("x", "hermes", None, thinking=True)
    records = TASK.generate(5, 1)
    prompts = [Policy(None, tokenizer, card).prompt_ids(TASK.messages(record), TASK.tools) for record in records]
    shared = 0
    while len({tuple(prompt[: shared + 1]) for prompt in prompts}) == 1:
        shared += 1
    expected = sum(len(prompt) - shared for prompt in prompts) / 5
    assert lengths(tokenizer, card, TASK, records, 64) == Lengths(pytest.approx(expected), 32)
    assert 0 < expected < min(map(len, prompts)) / 2


def test_hours_are_told_and_minutes_are_not() -> None:
    line = forecast({"warm start": 0.25, "training": 20.0}, 134_515_008, 80e9)
    assert "at least 20.2 hours (warm start 0.2, training 20.0): 135 M parameters at the 80 GFLOP/s" in line
    assert forecast({"training": 0.1}, 1_000_000, 80e9) is None


def test_the_measured_rate_is_a_computers() -> None:
    assert 1e8 < matmul_rate(0.05) < 1e14
