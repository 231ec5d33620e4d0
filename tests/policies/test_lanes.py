"""Lanes: parts of a batch on threads of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from policies.tiny_models import drawn, qwen3, relative_error

from tuneloop.policies import lanes as module
from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.lanes import add_gradients, lanes, share, split
from tuneloop.policies.warm_start import warm_start


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("sequences", "expected"), [(1, 1), (63, 1), (64, 2), (1000, 2)])
def test_a_lane_has_the_fewest_sequences_that_were_asked_for_and_there_are_no_more_than_threads(
    sequences: int, expected: int
) -> None:
    torch.set_num_threads(2)
    assert lanes(qwen3(), sequences, fewest=32) == expected


def test_a_wide_model_has_one_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    model = qwen3()
    torch.set_num_threads(2)
    monkeypatch.setattr(module, "WIDEST", model.config.hidden_size - 1)
    assert lanes(model, 1000, fewest=32) == 1


@pytest.mark.parametrize(
    ("count", "expected"), [(1, ["abcde"]), (2, ["ab", "cde"]), (3, ["a", "bc", "de"]), (9, ["a", "b", "c", "d", "e"])]
)
def test_parts_are_runs_of_nearly_equal_length_and_none_is_empty(count: int, expected: list[str]) -> None:
    assert split("abcde", count) == expected
    assert split("", count) == []


def test_jobs_run_at_once_each_with_one_thread_and_answer_in_their_order() -> None:
    torch.set_num_threads(2)
    meeting = threading.Barrier(2, timeout=20)  # breaks unless both are there

    def job(number: int) -> Callable[[], tuple[int, int]]:
        def run() -> tuple[int, int]:
            meeting.wait()
            time.sleep(0.1 * (1 - number))
            return number, torch.get_num_threads()

        return run

    assert share([job(0), job(1)]) == [(0, 1), (1, 1)]
    assert torch.get_num_threads() == 2


def test_an_error_in_a_lane_is_raised_and_torch_has_its_threads_again() -> None:
    torch.set_num_threads(2)

    def broken() -> None:
        raise FloatingPointError("from a lane")

    with pytest.raises(FloatingPointError, match="from a lane"):
        share([broken, lambda: None])
    assert torch.get_num_threads() == 2


def test_gradients_of_lanes_add_up_to_those_of_the_sum_and_come_on_top_of_what_was_there() -> None:
    # d(x²)/dx + d(4x)/dx + d(3x)/dx = 2x + 7, twice; then that of one job alone.
    x = torch.tensor([5.0], requires_grad=True)
    for _ in range(2):
        jobs = [lambda: [(x.square().sum(), "a"), (4 * x.sum(), "b")], lambda: [], lambda: [(3 * x.sum(), "c")]]
        assert add_gradients([x], jobs) == ["a", "b", "c"]
    assert x.grad.item() == 2 * (2 * 5 + 7)
    assert add_gradients([x], jobs[:1]) == ["a", "b"]
    assert x.grad.item() == 2 * (2 * 5 + 7) + 14


def test_a_warm_start_in_two_lanes_is_the_same_training_up_to_rounding_and_repeats_bit_for_bit() -> None:
    examples = [([7, i % 9], [(i % 20) + 1 + t for t in range(1 + i % 4)]) for i in range(3 * 65)]
    found = []
    for threads in (1, 2, 2):
        torch.set_num_threads(threads)
        model = drawn(qwen3)
        losses = warm_start(DenseDecoder(model), examples, batch_size=65, lr=1e-3)
        found.append((losses, torch.cat([p.detach().flatten() for p in model.parameters()])))
    (one_losses, one), (two_losses, two), (_, again) = found
    assert two_losses == pytest.approx(one_losses, rel=1e-9)
    assert relative_error(two, one) < 1e-6  # Adam divides by small second moments
    assert torch.equal(two, again)
