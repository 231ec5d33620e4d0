"""One episode's way to the engine: what it asked, what it got, and how long it has been about its own business."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from tuneloop.rollout.contract import Sampling, reply_seed
from tuneloop.rollout.trajectory import Turn
from tuneloop.serving.request import ChatRequest
from tuneloop.tasks.contract import Record

AT_THE_DOOR: ContextVar[Door] = ContextVar("at_the_door")
"""The door whose key the request at hand carries."""


@dataclass(eq=False)
class Door:
    """`place` orders episodes: the record's place in the batch and the sample. The engine samples with `sampling`,
    whatever a request asks, and with seeds of this episode and the number of its reply, so that nothing depends on
    who asks first. `fault`, once set, has ended the episode."""

    key: str
    record: Record
    place: tuple[int, int]
    seed: int
    sampling: Sampling
    most_turns: int
    turns: list[Turn] = field(default_factory=list)
    asked: int = 0
    """Requests that came, good and bad."""
    promised: int = 0
    """Replies that were asked for."""
    pending: int = 0
    """Requests that the engine has not answered."""
    slow: bool = False
    """Whether others no longer wait for it."""
    fault: str | None = None
    reason: str = ""
    spent: float = 0.0
    since: float = field(default_factory=time.monotonic)

    def seeds(self, count: int) -> list[int]:
        """Of the next `count` replies. The first of an episode has the episode's own, as a reply that is asked for
        without an agent has."""
        first, self.promised = self.promised, self.promised + count
        return [reply_seed(self.seed, "turn", t) if t else self.seed for t in range(first, first + count)]

    def adapted(self, request: ChatRequest) -> ChatRequest:
        """The request as training means it: the trainer's sampling, and a call that is asked for is not drawn for
        until it comes (the draws that are thrown away would make the reply another policy's)."""
        most = self.sampling.max_new_tokens
        return replace(
            request,
            seed=None,
            temperature=0.0 if self.sampling.greedy else self.sampling.temperature,
            top_p=self.sampling.top_p,
            top_k=self.sampling.top_k,
            max_tokens=min(request.max_tokens or most, most),
            tool_choice="auto" if request.tools else "none",
            named=False,
        )

    def wait(self) -> None:
        """A request is on its way to the engine: from here on time is the engine's."""
        if not self.pending:
            self.spent += time.monotonic() - self.since
        self.pending += 1
        self.slow = False

    def answered(self) -> None:
        self.pending -= 1
        if not self.pending:
            self.since = time.monotonic()

    def own_seconds(self) -> float:
        """How long the episode has taken without the engine."""
        return self.spent if self.pending else self.spent + time.monotonic() - self.since

    def end(self, fault: str, reason: str) -> None:
        """The first fault counts."""
        if self.fault is None:
            self.fault, self.reason = fault, reason
