"""The queue in front of an engine: who is computed with whom, who is refused, who is dropped."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError

import pytest

from tuneloop.rollout.contract import Reply, Sampling
from tuneloop.serving.errors import ApiError
from tuneloop.serving.scheduler import BATCH_REPLIES, Job, Scheduler

GREEDY = Sampling(4, greedy=True)
POISON = 666


class GatedEngine:
    """Answers every seed with one token, that seed, as soon as the gate is open; fails on a prompt that holds
    POISON. `calls`: the prompts and sampling of every call."""

    def __init__(self) -> None:
        self.gate, self.entered = threading.Event(), threading.Semaphore(0)
        self.calls: list[tuple[list[list[int]], Sampling]] = []

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Reply]]:
        self.calls.append(([list(p) for p in prompts], sampling))
        self.entered.release()
        assert self.gate.wait(10)
        if any(POISON in prompt for prompt in prompts):
            raise RuntimeError("poisoned")
        return [[Reply([s], [0.0], "stop") for s in group] for group in seeds]

    def weights_changed(self) -> None: ...


@pytest.fixture
def engine() -> Iterator[GatedEngine]:
    made = GatedEngine()
    yield made
    made.gate.set()


@pytest.fixture
def scheduler(engine: GatedEngine) -> Iterator[Scheduler]:
    made = Scheduler(engine, capacity=4)
    yield made
    engine.gate.set()
    made.close()


def occupy(scheduler: Scheduler, engine: GatedEngine):
    """Returns when the engine is at work, so that what comes next has to wait."""
    first = scheduler.submit(Job([0], [0], GREEDY))
    assert engine.entered.acquire(timeout=10)
    return first


def test_what_waits_with_equal_sampling_is_one_call_and_the_oldest_goes_first(scheduler, engine) -> None:
    occupy(scheduler, engine)
    warm = Sampling(4, temperature=0.5)
    jobs = [Job([i], [i, 10 * i], sampling) for i, sampling in enumerate([GREEDY, warm, GREEDY, warm], 1)]
    futures = [scheduler.submit(job) for job in jobs]
    engine.gate.set()
    assert [[r.ids for r in f.result(10)] for f in futures] == [[[i], [10 * i]] for i in range(1, 5)]
    assert engine.calls[1:] == [([[1], [3]], GREEDY), ([[2], [4]], warm)]


def test_a_call_holds_whole_requests_up_to_its_limit(scheduler, engine) -> None:
    occupy(scheduler, engine)
    half = [0] * (BATCH_REPLIES // 2)
    futures = [scheduler.submit(Job([i], half, GREEDY)) for i in range(1, 4)]
    engine.gate.set()
    assert [len(f.result(10)) for f in futures] == [len(half)] * 3
    assert [prompts for prompts, _ in engine.calls[1:]] == [[[1], [2]], [[3]]]


def test_a_full_queue_refuses_and_a_cancelled_request_frees_its_place(scheduler, engine) -> None:
    occupy(scheduler, engine)
    waiting = [scheduler.submit(Job([i], [i], GREEDY)) for i in range(1, 5)]
    with pytest.raises(ApiError) as refused:
        scheduler.submit(Job([5], [5], GREEDY))
    assert refused.value.status == 429
    assert waiting[1].cancel()
    last = scheduler.submit(Job([6], [6], GREEDY))
    engine.gate.set()
    assert last.result(10)[0].ids == [6]
    # The cancelled one was never computed.
    assert sorted(p for prompts, _ in engine.calls for (p,) in prompts) == [0, 1, 3, 4, 6]


def test_a_request_that_the_engine_fails_on_takes_no_other_with_it(scheduler, engine) -> None:
    occupy(scheduler, engine)
    good, bad, other = (scheduler.submit(Job(prompt, [7], GREEDY)) for prompt in ([1], [POISON], [2]))
    engine.gate.set()
    assert (good.result(10)[0].ids, other.result(10)[0].ids) == ([7], [7])
    with pytest.raises(ApiError, match="poisoned") as failed:
        bad.result(10)
    assert failed.value.status == 500


def test_closing_answers_what_waits_and_refuses_what_comes(engine) -> None:
    scheduler = Scheduler(engine, capacity=4)
    running = occupy(scheduler, engine)
    waiting, given_up = (scheduler.submit(Job([i], [i], GREEDY)) for i in (1, 2))
    given_up.cancel()
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    with pytest.raises(ApiError) as refused:
        waiting.result(10)
    assert refused.value.status == 503
    with pytest.raises(CancelledError):
        given_up.result(10)
    with pytest.raises(ApiError):
        scheduler.submit(Job([3], [3], GREEDY))
    engine.gate.set()
    closing.join(10)
    assert running.result(10)[0].ids == [0]
