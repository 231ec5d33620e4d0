"""The engine behind the agents' server: it computes in rounds, so that what it computes depends on no clock.

A round begins when every episode that goes on waits for the engine, and holds all that they asked, in the order of
the episodes. An episode that keeps the others waiting for `PATIENCE` is left behind until it asks again. So agents
that do nothing slow between their requests get the same batches every time, bit for bit.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from tuneloop.agents.door import AT_THE_DOOR, Door
from tuneloop.errors import UserError
from tuneloop.rollout.contract import Engine, Reply
from tuneloop.rollout.trajectory import Turn
from tuneloop.serving.errors import ApiError, engine_fault
from tuneloop.serving.in_flight import Job

PATIENCE = 1.0
"""Seconds without anything happening after which a round begins without the episodes that do not wait for it."""
WATCH = 0.25
"""Seconds between two looks at what may have gone wrong meanwhile."""

log = logging.getLogger(__name__)

Asked = tuple[Door, int, Job]
"""Who asked, the number of the first reply, and what."""


class Rounds:
    """What `tuneloop.serving` takes for a scheduler, for requests that came through a `Door`."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self._live: set[Door] = set()
        self._asked: list[Asked] = []
        self._changed = threading.Condition()
        self._last = 0.0

    def join(self, doors: Sequence[Door]) -> None:
        """From now on rounds wait for these episodes."""
        with self._changed:
            self._live.update(doors)
            self._note()

    def leave(self, door: Door) -> None:
        """The episode has ended: what it still waits for is not computed."""
        with self._changed:
            self._live.discard(door)
            left = [job for d, _, job in self._asked if d is door]
            self._asked = [asked for asked in self._asked if asked[0] is not door]
            self._note()
        for job in left:
            if job.replies.set_running_or_notify_cancel():
                job.replies.set_exception(ended())

    def dismiss(self) -> set[Door]:
        """End all that have not ended, and say which."""
        with self._changed:
            live = set(self._live)
        for door in live:
            self.leave(door)
        return live

    def submit(self, job: Job) -> Future[list[Reply]]:
        """The job's replies, later. Raises ApiError 429 for an episode that has asked for too many."""
        door = AT_THE_DOOR.get()
        with self._changed:
            if door not in self._live:
                raise ended()
            first = door.promised
            if first + len(job.seeds) > door.most_turns:
                raise too_many(door)
            job.seeds = door.seeds(len(job.seeds))
            job.sampling = replace(door.sampling, max_new_tokens=job.sampling.max_new_tokens)
            door.wait()
            self._asked.append((door, first, job))
            self._note()
        job.replies.add_done_callback(lambda _: self._given_up(door, job))
        return job.replies

    def close(self) -> None:
        """Nothing to close: rounds are computed by whoever calls `run`."""

    def run(self, watch: Callable[[], None]) -> None:
        """Compute rounds on this thread until every episode has ended. `watch` is called now and then; what it raises
        ends the waiting."""
        while True:
            with self._changed:
                while not (batch := self._round()):
                    if not self._live:
                        return
                    self._changed.wait(WATCH)
                    watch()
            for jobs in batch:
                self._compute(jobs)

    def _note(self) -> None:
        self._last = time.monotonic()
        self._changed.notify_all()

    def _given_up(self, door: Door, job: Job) -> None:
        """A client that leaves frees its place."""
        if not job.replies.cancelled():
            return
        with self._changed:
            left = [asked for asked in self._asked if asked[2] is not job]
            if len(left) < len(self._asked):
                self._asked = left
                door.answered()
                self._note()

    def _round(self) -> list[list[Asked]]:
        """The calls of the next round, one for every kind of sampling; none while somebody is waited for."""
        if not self._asked:
            return []
        absent = [door for door in self._live if not door.pending and not door.slow]
        if absent:
            if time.monotonic() - self._last < PATIENCE:
                return []
            for door in absent:
                door.slow = True
        asked = sorted(self._asked, key=lambda one: (one[0].place, one[1]))
        self._asked = []
        taken = []
        for one in asked:
            if one[2].replies.set_running_or_notify_cancel():
                taken.append(one)
            else:  # its client left in this instant
                one[0].answered()
        kinds = dict.fromkeys(job.sampling for _, _, job in taken)
        return [[one for one in taken if one[2].sampling == kind] for kind in kinds]

    def _compute(self, asked: Sequence[Asked]) -> None:
        # Episodes of one record that ask the same are one group: its prompt is computed once.
        groups = [list(same) for _, same in itertools.groupby(asked, key=lambda one: (one[0].place[0], one[2].prompt))]
        prompts = [group[0][2].prompt for group in groups]
        seeds = [[seed for _, _, job in group for seed in job.seeds] for group in groups]
        try:
            found = self.engine.generate(prompts, seeds, asked[0][2].sampling)
        except UserError:
            raise
        except Exception as error:
            self._failed(asked, error)
            return
        with self._changed:
            for group, replies in zip(groups, found):
                rest = iter(replies)
                for door, _, job in group:
                    mine = [next(rest) for _ in job.seeds]
                    door.turns += [Turn(list(job.prompt), reply) for reply in mine]
                    door.answered()
                    job.replies.set_result(mine)
            self._note()

    def _failed(self, asked: Sequence[Asked], error: Exception) -> None:
        """One request that the engine cannot compute must not take the others with it."""
        log.error("the engine failed on a batch of %d requests: %s", len(asked), error)
        if len(asked) > 1:
            for one in asked:
                self._compute([one])
            return
        with self._changed:
            door, _, job = asked[0]
            door.answered()
            job.replies.set_exception(engine_fault(error))
            self._note()


def ended() -> ApiError:
    """410, for what an episode asks after its end."""
    return ApiError(410, "this episode has ended", "invalid_request_error", code="episode_ended")


def too_many(door: Door) -> ApiError:
    """429; the episode has ended."""
    door.end("flooded", f"asked for more than rollout.agent_turns={door.most_turns} replies")
    message = f"an episode has {door.most_turns} replies at most (rollout.agent_turns); this one has ended"
    return ApiError(429, message, "rate_limit_error", code="episode_flooded")
