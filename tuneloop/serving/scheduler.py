"""Requests of many clients, computed together. One thread owns the engine.

An engine that computes token by token (`tuneloop.rollout.contract.Steppable`) takes requests in between its steps,
whatever their sampling settings, and those whose clients leave are gone at the next step.

Any other computes whole batches: the thread takes all the requests that wait with the sampling settings of the
oldest one, as one call. While that call runs, others gather. Clients that were answered together ask again almost
together. Taking the first of them at once would compute batches of one and of all the others in turn, so the thread
waits until arrivals pause, for a small share of the time that a batch takes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from concurrent.futures import Future

from tuneloop.rollout.contract import Engine, Reply, Steppable
from tuneloop.serving.errors import closing, engine_fault, queue_full
from tuneloop.serving.in_flight import InFlight, Job

BATCH_REPLIES = 1024
"""Replies in one call of the engine, whole requests, at least one."""
PAUSE_SHARE, SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 0.002, 0.05
"""Arrivals have paused when none came for this share of the last batch's time, within these bounds (s)."""
PAUSES = 4
"""Arrivals that do not pause are waited for this many pauses."""

log = logging.getLogger(__name__)


class Scheduler:
    """The queue in front of an engine, and the thread that computes."""

    def __init__(self, engine: Engine, capacity: int):
        """`capacity`: requests that may wait, those being computed not counted."""
        self.engine, self.capacity = engine, capacity
        self._queue: deque[Job] = deque()
        self._changed = threading.Condition()
        self._arrivals, self._closed = 0, False
        self._pause = SHORTEST_PAUSE
        work = self._work_in_steps if isinstance(engine, Steppable) else self._work_in_batches
        self._thread = threading.Thread(target=work, name="engine", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> Future[list[Reply]]:
        """The job's replies, later. Cancelling the future frees its place. Raises ApiError: 429 where
        the queue is full, 503 when the server closes. The future raises ApiError 500 where the engine did."""
        with self._changed:
            if self._closed:
                raise closing()
            if len(self._queue) >= self.capacity:
                raise queue_full(self.capacity)
            self._queue.append(job)
            self._arrivals += 1
            self._changed.notify()
        job.replies.add_done_callback(lambda _: self._forget(job))
        return job.replies

    def waiting(self) -> int:
        """Requests in the queue."""
        with self._changed:
            return len(self._queue)

    def close(self) -> None:
        """Refuse what waits, and end the thread after what it computes."""
        with self._changed:
            self._closed = True
            left = list(self._queue)
            self._queue.clear()
            self._changed.notify()
        for job in left:
            if job.replies.set_running_or_notify_cancel():
                job.replies.set_exception(closing())
        self._thread.join()

    def _forget(self, job: Job) -> None:
        with self._changed:
            if job in self._queue:
                self._queue.remove(job)

    def _work_in_steps(self) -> None:
        flying = InFlight(self.engine.stepping())
        while True:
            with self._changed:
                while not (self._queue or self._closed or flying):
                    self._changed.wait()
                if self._closed and not flying:
                    return
            flying.tidy()
            while job := self._next_that_fits(flying):
                flying.admit(job)
            flying.step()

    def _next_that_fits(self, flying: InFlight) -> Job | None:
        with self._changed:
            if not self._queue or not flying.fits(self._queue[0]):
                return None
            return self._queue.popleft()

    def _work_in_batches(self) -> None:
        while batch := self._next_batch():
            started = time.monotonic()
            self._compute(batch)
            pause = PAUSE_SHARE * (time.monotonic() - started)
            self._pause = min(max(pause, SHORTEST_PAUSE), LONGEST_PAUSE)

    def _next_batch(self) -> list[Job]:
        """The next call's jobs; none when the server closes."""
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._changed.wait()
            for _ in range(PAUSES):
                seen = self._arrivals
                time.sleep(self._pause)
                if self._arrivals == seen:
                    break
            with self._changed:
                if self._closed:
                    return []
                batch = self._taken()
            # A job that its client gave up in this instant is not computed.
            batch = [job for job in batch if job.replies.set_running_or_notify_cancel()]
            if batch:
                return batch

    def _taken(self) -> list[Job]:
        batch: list[Job] = []
        left: deque[Job] = deque()
        replies = 0
        for job in self._queue:
            fits = not batch or replies + len(job.seeds) <= BATCH_REPLIES
            if fits and (not batch or job.sampling == batch[0].sampling):
                batch.append(job)
                replies += len(job.seeds)
            else:
                left.append(job)
        self._queue = left
        return batch

    def _compute(self, batch: list[Job]) -> None:
        try:
            groups = self.engine.generate([j.prompt for j in batch], [j.seeds for j in batch], batch[0].sampling)
        except Exception as error:
            log.exception("the engine failed on a batch of %d requests", len(batch))
            if len(batch) == 1:
                batch[0].replies.set_exception(engine_fault(error))
                return
            # One request that the engine cannot compute must not take the others with it.
            for job in batch:
                self._compute([job])
            return
        for job, group in zip(batch, groups):
            job.replies.set_result(group)
