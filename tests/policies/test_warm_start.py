"""The warm start, and what its demonstrations may teach."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import scipy.stats
import torch
from policies.tiny_models import VOCABULARY, drawn, logprobs, qwen3
from tasks.brute_force import open_boards

from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.warm_start import warm_start
from tuneloop.tasks import load_task
from tuneloop.tasks.contract import Demonstration
from tuneloop.tasks.tictactoe.board import best_squares, finishing_squares, free_squares
from tuneloop.tasks.tictactoe.generator import from_rows

TASK = load_task("tictactoe")


def examples(count: int) -> list[tuple[list[int], list[int]]]:
    """Replies that count upwards from their prompt's last token, of 1 to 4 tokens."""
    return [([7, i % 9, i % 20], [(i % 20) + 1 + t for t in range(1 + i % 4)]) for i in range(count)]


def test_the_first_loss_is_the_mean_over_reply_tokens_of_transformers_losses() -> None:
    model = drawn(qwen3)
    batch = examples(6)
    with torch.no_grad():
        expected = -torch.cat([logprobs(model, *example) for example in batch]).mean()
    (loss,) = warm_start(DenseDecoder(model), batch, batch_size=6, lr=1e-3)
    assert loss == pytest.approx(expected.item(), rel=1e-6)


def test_a_pattern_is_learned() -> None:
    # Uniform guessing costs log(40) = 3.7 nats a token.
    losses = warm_start(DenseDecoder(qwen3().float()), examples(16 * 80), batch_size=16, lr=2e-2)
    assert losses[0] == pytest.approx(np.log(VOCABULARY), rel=0.02)
    assert np.mean(losses[-10:]) < 0.2


COUNT = 12_000
RECORDS = TASK.generate(300, 5)
Preferred = Callable[[str], list[int]]


@pytest.fixture(scope="module")
def shown() -> list[Demonstration]:
    return TASK.demonstrations(RECORDS, COUNT, 11, lambda call: json.dumps(call.arguments))


def board_of(demonstration: Demonstration) -> str:
    return from_rows(demonstration.record["board"])


def squares(shown: Sequence[Demonstration]) -> list[tuple[str, int]]:
    """Board and square of every demonstration that ends in one well-formed call."""
    pairs = []
    for demonstration in shown:
        try:
            square = json.loads(demonstration.content)["square"]
        except (ValueError, KeyError):
            continue
        if isinstance(square, int):
            pairs.append((board_of(demonstration), square))
    return pairs


def chance_of_uniform(pairs: Sequence[tuple[str, int]], preferred: Preferred) -> float:
    """p-value that the square is drawn from 1–9 with equal chances whatever the preferred squares are.

    Squares are numbered anew with the preferred ones first; among boards with equally many of them
    every new number must be equally frequent (Pearson's chi-square, 8 degrees of freedom each).
    """
    counts: dict[int, np.ndarray] = defaultdict(lambda: np.zeros(9))
    for board, square in pairs:
        good = preferred(board)
        order = [*good, *(s for s in range(1, 10) if s not in good)]
        counts[len(good)][order.index(square)] += 1
    tables = [table for table in counts.values() if table.sum() >= 45]
    statistic = sum(((table - table.mean()) ** 2 / table.mean()).sum() for table in tables)
    return float(scipy.stats.chi2.sf(statistic, 8 * len(tables)))


@pytest.mark.parametrize(
    "preferred",
    [best_squares, free_squares, lambda board: finishing_squares(board, "X"), lambda b: finishing_squares(b, "O")],
    ids=["best", "free", "winning", "blocking"],
)
def test_demonstrated_squares_know_nothing_of_the_board(shown: list[Demonstration], preferred: Preferred) -> None:
    # Which squares are best is only defined on boards that a game can reach.
    pairs = squares([d for d in shown if preferred is not best_squares or d.record in RECORDS])
    assert len(pairs) > 0.8 * (COUNT if preferred is not best_squares else 0.2 * COUNT)
    assert chance_of_uniform(pairs, preferred) > 0.001

    # The same test would notice if one demonstration in ten chose a preferred square on purpose.
    hinted = [(b, preferred(b)[0] if i % 10 == 0 and preferred(b) else s) for i, (b, s) in enumerate(pairs)]
    assert chance_of_uniform(hinted, preferred) < 1e-4


def test_demonstrated_reasoning_names_only_squares_that_complete_a_line(shown: list[Demonstration]) -> None:
    for demonstration in shown[:500]:
        *rambling, mine, theirs = demonstration.reasoning.split("\n")
        for line, name, mark in ((mine, "mine:", "X"), (theirs, "theirs:", "O")):
            expected = [str(s) for s in finishing_squares(board_of(demonstration), mark)] or ["none"]
            assert line.split() == [name, *expected]
        assert not any(character.isdigit() for line in rambling for character in line)


def test_no_board_is_shown_that_another_record_could_hold(shown: list[Demonstration]) -> None:
    # All 2201 boards that a record can hold, listed by the tests of the task; those not given may be held out.
    possible = set(open_boards())
    given = {from_rows(record["board"]) for record in RECORDS}
    boards = {board_of(demonstration) for demonstration in shown}
    assert boards & possible <= given
    assert len(boards & given) > 250


def test_demonstrations_repeat_for_the_same_seed_only() -> None:
    once, again, other = (TASK.demonstrations(RECORDS, 50, seed, lambda call: str(call)) for seed in (1, 1, 2))
    assert once == again != other
