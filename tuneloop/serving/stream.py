"""A completion as server-sent events, while it is being written: chunks of one object type, then `[DONE]`.

Where the engine computes whole replies, or a reply is drawn until it holds the call that `tool_choice` asks for, the
chunks come when the replies are known.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tuneloop.policies.policy import Policy
from tuneloop.rollout.contract import Drawn
from tuneloop.serving.chat import Asked, Completion
from tuneloop.serving.deltas import Entry, GrowingChoice
from tuneloop.serving.errors import ApiError
from tuneloop.serving.in_flight import Job
from tuneloop.serving.request import ChatRequest
from tuneloop.serving.scheduler import Scheduler

Head = Mapping[str, Any]
"""What all chunks of a stream have: `id`, `created`, `model`, `system_fingerprint`."""


class LiveStream:
    """One request whose replies are sent as they are drawn. Raises ApiError where the queue is full or closing."""

    def __init__(self, policy: Policy, scheduler: Scheduler, request: ChatRequest, asked: Asked):
        self.policy, self.request, self.asked = policy, request, asked
        self.choices = [GrowingChoice(policy, request, i) for i in range(request.n)]
        self._drawn: asyncio.Queue[Sequence[Drawn]] = asyncio.Queue()
        self._first: Sequence[Drawn] = ()
        loop = asyncio.get_running_loop()
        job = Job(asked.prompt, asked.seeds, asked.sampling)
        job.listener = lambda drawn: loop.call_soon_threadsafe(self._drawn.put_nowait, drawn) and None
        self._replies = asyncio.wrap_future(scheduler.submit(job))
        # Behind all tokens: both come to the loop in the order in which the engine's thread sent them.
        self._replies.add_done_callback(lambda _: self._drawn.put_nowait(()))

    async def begun(self) -> None:
        """Waits for the first token. Raises ApiError where there will be none."""
        self._first = await self._drawn.get()
        if not self._first:
            self._replies.result()

    def leave(self) -> None:
        """Nobody listens any more: frees the place."""
        self._replies.cancel()

    async def events(self, head: Head) -> AsyncIterator[str]:
        yield _event(head, self.request, [choice.opening() for choice in self.choices])
        try:
            drawn = self._first
            while True:
                for entry in self._entries(drawn):
                    yield _event(head, self.request, [entry], self._extension(entry))
                if all(choice.choice is not None for choice in self.choices):
                    break
                drawn = await self._drawn.get()
        except ApiError as error:
            yield f"data: {json.dumps(error.body())}\n\n"
            return
        completion = Completion(self.asked.prompt, [choice.choice for choice in self.choices])
        for text in _ending(head, self.request, completion):
            yield text

    def _entries(self, drawn: Sequence[Drawn]) -> list[Entry]:
        if drawn:
            by_index: dict[int, list[Drawn]] = {}
            for one in drawn:
                by_index.setdefault(one.index, []).append(one)
            return [entry for i, mine in by_index.items() for entry in self.choices[i].more(mine)]
        return [entry for choice, reply in zip(self.choices, self._replies.result()) for entry in choice.whole(reply)]

    def _extension(self, entry: Entry) -> dict[str, Any]:
        return extension(self.request, self.asked.prompt) if entry["finish_reason"] else {}


class LiveResponse(StreamingResponse):
    """Frees the stream's place however it ends."""

    def __init__(self, stream: LiveStream, head: Head):
        super().__init__(stream.events(head), media_type="text/event-stream")
        self.stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.stream.leave()


def whole_stream(policy: Policy, request: ChatRequest, found: Completion, head: Head) -> Iterator[str]:
    """The events of a completion that is known."""
    growing = [GrowingChoice(policy, request, i) for i in range(request.n)]
    yield _event(head, request, [choice.opening() for choice in growing])
    for mine, choice in zip(growing, found.choices):
        for entry in mine.finish(choice):
            more = extension(request, found.prompt) if entry["finish_reason"] else {}
            yield _event(head, request, [entry], more)
    yield from _ending(head, request, found)


def extension(request: ChatRequest, prompt: Sequence[int]) -> dict[str, Any]:
    """What tuneloop adds for a client that asks for it: the ids of the prompt."""
    return {"tuneloop": {"prompt_token_ids": prompt}} if request.extension else {}


def _ending(head: Head, request: ChatRequest, found: Completion) -> Iterator[str]:
    if request.include_usage:
        yield _event(head, request, [], {"usage": found.usage()})
    yield "data: [DONE]\n\n"


def _event(head: Head, request: ChatRequest, choices: list[Entry], more: Mapping[str, Any] = {}) -> str:
    usage = {"usage": None} if request.include_usage else {}
    chunk = {**head, "object": "chat.completion.chunk", **usage, **more, "choices": choices}
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
