"""Requests of many clients, computed together token by token: who is in flight, and what becomes of them.

One thread uses it. Where a step fails nobody knows on whose account, so everybody in flight is computed again,
alone: the same seed gives the same tokens, of which clients get those that they do not have yet.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from tuneloop.rollout.contract import Drawn, FinishReason, Reply, Sampling, Stepping
from tuneloop.serving.errors import engine_fault

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Job:
    """One prompt and its replies, one a seed. `listener` hears of the tokens as they are drawn, where they are drawn
    one by one, on another thread; what it raises ends the job."""

    prompt: list[int]
    seeds: Sequence[int]
    sampling: Sampling
    replies: Future[list[Reply]] = field(default_factory=Future)
    listener: Callable[[Sequence[Drawn]], None] | None = None


@dataclass(eq=False)
class _Flight:
    job: Job
    ids: list[list[int]]
    logprobs: list[list[float]]
    reasons: list[FinishReason | None]
    again: list[int]
    """By reply: tokens drawn since it was begun (anew)."""

    @staticmethod
    def of(job: Job) -> _Flight:
        n = len(job.seeds)
        return _Flight(job, [[] for _ in range(n)], [[] for _ in range(n)], [None] * n, [0] * n)


class InFlight:
    """The requests that `stepping` computes."""

    def __init__(self, stepping: Stepping):
        self.stepping = stepping
        self._flights: dict[int, _Flight] = {}
        self._suspects: deque[_Flight] = deque()
        self._alone = False

    def __bool__(self) -> bool:
        return bool(self._flights or self._suspects)

    def fits(self, job: Job) -> bool:
        tokens = len(job.prompt) + job.sampling.max_new_tokens
        return not self._alone and self.stepping.fits(tokens, len(job.seeds))

    def admit(self, job: Job) -> None:
        self._begin(_Flight.of(job))

    def tidy(self) -> None:
        """Forgets those whose clients left, and begins again what old weights began."""
        try:
            self._drop_cancelled()
            if self._flights and not self.stepping.current():
                self._begin_with_new_weights()
        except Exception as error:
            self._failed(error)

    def step(self) -> None:
        """One more token for everybody; answers those that are done."""
        try:
            if not self._flights:
                self._alone = bool(self._suspects)
                if self._suspects:
                    self._begin(self._suspects.popleft())
            by_ticket: dict[int, list[Drawn]] = {}
            for one in self.stepping.step():
                by_ticket.setdefault(one.ticket, []).append(one)
            for ticket, tokens in by_ticket.items():
                self._take(ticket, tokens)
        except Exception as error:
            self._failed(error)

    def _begin(self, flight: _Flight) -> None:
        job = flight.job
        flight.again = [0] * len(job.seeds)
        try:
            self._flights[self.stepping.admit(job.prompt, job.seeds, job.sampling)] = flight
        except Exception as error:
            log.exception("the engine refused a request")
            _fail(job, error)

    def _take(self, ticket: int, drawn: Sequence[Drawn]) -> None:
        flight, new = self._flights[ticket], []
        for one in drawn:
            i = one.index
            flight.again[i] += 1
            if flight.again[i] > len(flight.ids[i]):
                flight.ids[i].append(one.token)
                flight.logprobs[i].append(one.logprob)
                flight.reasons[i] = one.finish_reason
                new.append(one)
        job = flight.job
        if job.listener and new:
            try:
                job.listener(new)
            except Exception as error:
                self.stepping.cancel(ticket)
                del self._flights[ticket]
                _fail(job, error)
                return
        if all(flight.reasons):
            del self._flights[ticket]
            if job.replies.set_running_or_notify_cancel():
                job.replies.set_result([Reply(*one) for one in zip(flight.ids, flight.logprobs, flight.reasons)])

    def _drop_cancelled(self) -> None:
        for ticket in [t for t, flight in self._flights.items() if flight.job.replies.cancelled()]:
            self.stepping.cancel(ticket)
            del self._flights[ticket]
        self._suspects = deque(flight for flight in self._suspects if not flight.job.replies.cancelled())

    def _failed(self, error: Exception) -> None:
        log.error("the engine failed on a step of %d requests", len(self._flights), exc_info=error)
        flights = list(self._flights.values())
        self._flights.clear()
        self.stepping.clear()
        if len(flights) == 1:
            _fail(flights[0].job, error)
        else:
            self._suspects.extend(flights)
            self._alone = True

    def _begin_with_new_weights(self) -> None:
        """A reply of which the client has the beginning cannot go on with other weights; others begin again."""
        flights = [*self._flights.values(), *self._suspects]
        self._flights.clear()
        self._suspects.clear()
        self.stepping.clear()
        for flight in flights:
            if flight.job.listener and any(flight.ids):
                _fail(flight.job, RuntimeError("the policy's weights changed while the reply was being written"))
            else:
                self._begin(_Flight.of(flight.job))


def _fail(job: Job, error: Exception) -> None:
    if job.replies.set_running_or_notify_cancel():
        job.replies.set_exception(engine_fault(error))
