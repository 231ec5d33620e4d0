"""Requests that are computed token by token: who comes in, who leaves, whom a fault takes along."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from serving.running import serve

from tuneloop.rollout.contract import Drawn, Reply, Sampling
from tuneloop.serving.errors import ApiError
from tuneloop.serving.in_flight import Job
from tuneloop.serving.scheduler import Scheduler

POISON = 13


class TokenByToken:
    """An engine whose reply to a seed is that seed, again and again up to the limit; a step raises while a reply to
    POISON is in flight. `steps`: how many it may take; `begun`: seeds in the order in which they were begun."""

    def __init__(self, places: int = 100):
        self.places, self.steps, self.version = places, threading.Semaphore(0), 0
        self.begun: list[int] = []
        self.flying: dict[int, list[Any]] = {}
        self.old = 0

    def stepping(self) -> TokenByToken:
        return self

    def generate(self, *_: Any) -> list[list[Reply]]:
        raise AssertionError("whole batches were asked for")

    def weights_changed(self) -> None:
        self.version += 1

    def fits(self, tokens: int, replies: int) -> bool:
        return not self.flying or len(self.flying) < self.places

    def admit(self, prompt: Sequence[int], seeds: Sequence[int], sampling: Sampling) -> int:
        if prompt == [0]:
            raise ValueError("no such token")
        if not self.flying:
            self.old = self.version
        self.begun += seeds
        self.flying[len(self.begun)] = [list(seeds), 0, sampling.max_new_tokens]
        return len(self.begun)

    def step(self) -> list[Drawn]:
        if not self.flying:
            return []
        assert self.steps.acquire(timeout=10)
        if any(POISON in seeds for seeds, _, _ in self.flying.values()):
            raise RuntimeError("a kernel failed")
        found = []
        for ticket, entry in list(self.flying.items()):
            entry[1] += 1
            last = "length" if entry[1] == entry[2] else None
            found += [Drawn(ticket, i, seed, -float(entry[1]), last) for i, seed in enumerate(entry[0])]
            if last:
                del self.flying[ticket]
        return found

    def cancel(self, ticket: int) -> None:
        self.flying.pop(ticket, None)

    def clear(self) -> None:
        self.flying.clear()

    def current(self) -> bool:
        return self.old == self.version


@pytest.fixture
def engine() -> Iterator[TokenByToken]:
    made = TokenByToken(places=2)
    yield made
    made.steps.release(1000)


@pytest.fixture
def scheduler(engine: TokenByToken) -> Iterator[Scheduler]:
    made = Scheduler(engine, capacity=3)
    yield made
    engine.steps.release(1000)
    made.close()


def until(condition: Any) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("waited in vain")


def job(seed: int, limit: int = 3, **more: Any) -> Job:
    return Job([1], [seed], Sampling(limit, **more))


def test_a_request_enters_while_another_is_being_written_whatever_its_settings(scheduler, engine) -> None:
    long = scheduler.submit(job(1, 5))
    engine.steps.release(2)
    until(lambda: engine.flying and next(iter(engine.flying.values()))[1] == 2)
    short = scheduler.submit(job(2, 1, temperature=0.5))
    engine.steps.release(2)
    assert short.result(10) == [Reply([2], [-1.0], "length")]
    assert not long.done()
    engine.steps.release(1)
    assert long.result(10)[0].ids == [1] * 5


def test_a_request_that_is_given_up_while_it_is_written_frees_its_place_for_the_next(scheduler, engine) -> None:
    first, second, third = (scheduler.submit(job(seed)) for seed in (1, 2, 3))
    until(lambda: engine.begun == [1, 2])
    assert first.cancel()
    engine.steps.release(1)
    until(lambda: engine.begun == [1, 2, 3])
    engine.steps.release(5)
    assert [f.result(10)[0].ids for f in (second, third)] == [[2] * 3, [3] * 3]


def test_a_full_queue_refuses(scheduler, engine) -> None:
    running = [scheduler.submit(job(seed)) for seed in (1, 2)]
    until(lambda: engine.begun == [1, 2])
    waiting = [scheduler.submit(job(seed)) for seed in (3, 4, 5)]
    with pytest.raises(ApiError) as refused:
        scheduler.submit(job(6))
    assert refused.value.status == 429
    engine.steps.release(20)
    assert [f.result(10)[0].ids[0] for f in running + waiting] == [1, 2, 3, 4, 5]


def test_a_fault_ends_the_request_that_it_comes_back_with_and_no_token_is_heard_twice(scheduler, engine) -> None:
    heard: list[int] = []
    good = job(1, 4)
    good.listener = lambda drawn: heard.extend(one.token for one in drawn)
    replies = scheduler.submit(good)
    engine.steps.release(2)
    until(lambda: len(heard) == 2)
    bad = scheduler.submit(job(POISON))
    engine.steps.release(20)
    with pytest.raises(ApiError, match="a kernel failed") as failed:
        bad.result(10)
    assert failed.value.status == 500
    assert replies.result(10) == [Reply([1] * 4, [-1.0, -2.0, -3.0, -4.0], "length")]
    assert heard == [1] * 4
    assert scheduler.submit(job(7)).result(10)[0].ids == [7] * 3


def test_what_the_engine_refuses_is_a_fault_of_that_request_alone(scheduler, engine) -> None:
    engine.steps.release(20)
    with pytest.raises(ApiError, match="no such token"):
        scheduler.submit(Job([0], [1], Sampling(3))).result(10)
    assert scheduler.submit(job(2)).result(10)[0].ids == [2] * 3


def test_weights_that_change_end_a_reply_that_is_being_sent_and_begin_the_others_again(scheduler, engine) -> None:
    sent = job(1)
    sent.listener = lambda drawn: None
    half_sent, unseen = scheduler.submit(sent), scheduler.submit(job(2))
    engine.steps.release(1)
    until(lambda: len(engine.flying) == 2 and all(entry[1] for entry in engine.flying.values()))
    engine.weights_changed()
    engine.steps.release(20)
    with pytest.raises(ApiError, match="weights changed"):
        half_sent.result(10)
    assert unseen.result(10) == [Reply([2] * 3, [-1.0, -2.0, -3.0], "length")]
    assert engine.begun[-1] == 2


def test_closing_answers_what_waits_and_finishes_what_is_written(engine) -> None:
    scheduler = Scheduler(engine, capacity=3)
    running = [scheduler.submit(job(seed)) for seed in (1, 2)]
    until(lambda: engine.begun == [1, 2])
    waiting = scheduler.submit(job(3))
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    with pytest.raises(ApiError) as refused:
        waiting.result(10)
    assert refused.value.status == 503
    engine.steps.release(20)
    closing.join(10)
    assert not closing.is_alive()
    assert [f.result(0)[0].ids for f in running] == [[1] * 3, [2] * 3]


@pytest.fixture
def url(tiny_policy: Path, engine: TokenByToken) -> Iterator[str]:
    with serve(tiny_policy, engine, capacity=3) as url:
        yield url
        engine.steps.release(1000)


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def test_a_stream_sends_a_token_before_the_next_one_is_computed(url: str, engine: TokenByToken, asked: Any) -> None:
    # Token 40 of nano's byte alphabet is a letter; the engine repeats a reply's seed.
    given = {"messages": asked["messages"], "model": "nano", "max_tokens": 3, "seed": 40, "stream": True}
    engine.steps.release(1)
    with httpx.stream("POST", f"{url}/chat/completions", json=given, timeout=10) as answer:
        heard = events(answer.iter_lines())
        assert next(heard)["choices"][0]["delta"]["role"] == "assistant"
        for _ in range(3):
            (choice,) = next(heard)["choices"]
            assert len(choice["delta"]["content"]) == 1
            engine.steps.release(1)
        assert next(heard)["choices"][0]["finish_reason"] == "length"


def test_a_client_that_leaves_in_the_middle_of_a_stream_frees_its_place(
    url: str, engine: TokenByToken, asked: Any
) -> None:
    given = {"messages": asked["messages"], "model": "nano", "max_tokens": 200, "seed": 40, "stream": True}
    engine.steps.release(2)
    with httpx.stream("POST", f"{url}/chat/completions", json=given, timeout=10) as answer:
        next(events(answer.iter_lines()))
        assert len(engine.flying) == 1

    def gone() -> bool:
        engine.steps.release(1)
        return not engine.flying

    until(gone)
    # Long before its last token.
    engine.steps.release(5)
    client = OpenAI(base_url=url, api_key="none", max_retries=0)
    answer = client.chat.completions.create(**(asked | {"max_tokens": 2}), seed=41)
    assert answer.usage.completion_tokens == 2


def test_a_fault_before_the_first_token_of_a_stream_is_a_500_and_later_ones_an_event(
    url: str, engine: TokenByToken, asked: Any
) -> None:
    given = {"messages": asked["messages"], "model": "nano", "max_tokens": 50, "seed": POISON, "stream": True}
    engine.steps.release(2)
    assert httpx.post(f"{url}/chat/completions", json=given, timeout=10).status_code == 500
    engine.steps.release(1)
    with httpx.stream("POST", f"{url}/chat/completions", json=given | {"seed": 40}, timeout=10) as answer:
        heard = events(answer.iter_lines())
        next(heard)
        engine.weights_changed()
        engine.steps.release(5)
        *_, last = heard
        assert last["error"]["code"] == "engine_fault"
