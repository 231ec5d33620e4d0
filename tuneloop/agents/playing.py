"""The thread on which agents run, all episodes of a batch at once, and how each of them ends."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from tuneloop.agents.door import Door
from tuneloop.agents.function import Agent
from tuneloop.errors import UserError
from tuneloop.tasks.contract import Task

LOOK = 0.5
"""Seconds between two looks at an episode's clock, at most."""
DAY = 86400.0
GRACE = 1.0
"""Seconds that an agent has to clean up once it is cancelled."""


class Blocked(Exception):
    """An agent keeps the thread to itself. `door`: whose it is; None: that cannot be told."""

    def __init__(self, door: Door | None, where: str):
        super().__init__(where)
        self.door, self.where = door, where


class Playground:
    """An event loop on a thread of its own."""

    def __init__(self, url: str, agent: Agent, task: Task, timeout: float, leave: Callable[[Door], None]):
        """`timeout`: seconds that an episode may take without the engine. `leave` is told of every episode that has
        ended."""
        self.url, self.agent, self.task, self.timeout, self.leave = url, agent, task, timeout, leave
        self.returned: dict[str, Any] = {}
        self._beat = time.monotonic()
        self._stalled = 0.0  # seconds in which no episode could go on: nobody's own
        self._client: AsyncOpenAI | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name="agents", daemon=True)
        self._thread.start()

    def play(self, doors: Sequence[Door]) -> None:
        """Begin these episodes. What each returned is in `returned`, by key, as soon as `leave` was told."""
        self._beat = time.monotonic()
        for door in doors:
            asyncio.run_coroutine_threadsafe(self._play(door), self._loop)

    def watch(self) -> None:
        """Raises Blocked where the thread has not gone on for longer than an episode may take."""
        if time.monotonic() - self._beat > self.timeout + LOOK:
            raise Blocked(*self._running())

    def close(self) -> None:
        """End what still runs. A thread that is blocked is left to itself."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.create_task, self._end())
        if time.monotonic() - self._beat <= self.timeout + LOOK:
            self._thread.join(timeout=5 * GRACE)

    def _work(self) -> None:
        self._loop.create_task(self._heart())
        self._loop.run_forever()
        self._loop.close()

    async def _heart(self) -> None:
        while True:
            await asyncio.sleep(LOOK / 5)
            now = time.monotonic()
            if now - self._beat > LOOK:
                self._stalled += now - self._beat
            self._beat = now

    async def _end(self) -> None:
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=GRACE)
        if self._client is not None:
            await self._client.close()
        self._loop.stop()

    async def _play(self, door: Door) -> None:
        task, before = asyncio.ensure_future(self._run(door)), self._stalled
        try:
            while not task.done() and door.fault is None:
                left = self.timeout - door.own_seconds() + self._stalled - before
                if left <= 0:
                    door.end("timed_out", f"took more than rollout.agent_timeout={self.timeout:g} s without the policy")
                    break
                await asyncio.wait({task}, timeout=min(max(left, 0.01), LOOK))
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=GRACE)
            elif not task.cancelled() and (error := task.exception()):
                door.end("raised", _described(error))
            elif not task.cancelled():
                self.returned[door.key] = task.result()
            else:
                door.end("raised", "cancelled itself")
        finally:
            self.leave(door)

    async def _run(self, door: Door) -> Any:
        if self._client is None:
            # Refused requests come back at once, and there is one clock: an agent that wants to try again, or not to
            # wait, says so itself.
            self._client = AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=DAY)
        try:
            # A copy: what an agent does to its record must not reach the next episode.
            return await self.agent(self._client.with_options(api_key=door.key), deepcopy(door.record), self.task)
        except (SystemExit, KeyboardInterrupt) as error:  # which asyncio would let end the thread
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    def _running(self) -> tuple[Door | None, str]:
        """Whose code is on the thread at this moment, and where."""
        top = frame = sys._current_frames().get(self._thread.ident)
        where = "" if top is None else f"{_short(top.f_code.co_filename)}, line {top.f_lineno}"
        while frame is not None and frame.f_code is not Playground._run.__code__:
            frame = frame.f_back
        return (None if frame is None else frame.f_locals["door"]), where


def _described(error: BaseException) -> str:
    """The error and the last line of the agent's own code that it came through."""
    own = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
    own = [f for f in own if not f.filename.startswith(str(Path(__file__).parent)) and "/asyncio/" not in f.filename]
    where = f" ({_short(own[-1].filename)}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}{where}"


def _short(name: str) -> str:
    path = Path(name)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else name


def refuse_blocking(blocked: Blocked) -> UserError:
    """What ends the run: an agent that holds up all others, and where it does."""
    whose = "an episode" if blocked.door is None else f"the episode on record {blocked.door.record['id']}"
    return UserError(
        f"rollout.agent: {whose} blocks the thread that all episodes share ({blocked.where}); wait with await (for "
        "other code: await asyncio.to_thread(…))"
    )
