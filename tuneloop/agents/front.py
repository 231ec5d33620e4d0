"""The agents' endpoint: `tuneloop.serving` with a key for every episode, which opens its door and no other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from starlette.types import ASGIApp, Receive, Scope, Send

from tuneloop.agents.door import AT_THE_DOOR, Door
from tuneloop.agents.rounds import Rounds, too_many
from tuneloop.policies.policy import Policy
from tuneloop.serving.app import Served, make_app
from tuneloop.serving.errors import ApiError
from tuneloop.serving.request import ChatRequest
from tuneloop.serving.server import defaults_of, running

REQUESTS_A_TURN = 4
"""Requests that are refused as they stand may be put right: so many for every reply that an episode may ask for."""


@contextmanager
def endpoint(policy: Policy, rounds: Rounds, doors: dict[str, Door]) -> Iterator[str]:
    """The base URL, on 127.0.0.1, for as long as this is open. `doors`, by key, may change meanwhile."""
    name = policy.card.source

    def adapted(asked: ChatRequest) -> ChatRequest:
        # There is one model, whatever name an agent has for it.
        return replace(AT_THE_DOOR.get().adapted(asked), model=name)

    served = Served(policy, rounds, name, defaults_of(policy.card), adapted=adapted)
    with running(_front(make_app(served), doors)) as url:
        yield url


def _front(app: ASGIApp, doors: dict[str, Door]) -> ASGIApp:
    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            door = doors.get(_key(scope))
            refusal = None
            if door is None:
                message = "this key is of no episode that goes on; use the client that the agent was given"
                refusal = ApiError(401, message, "invalid_request_error", code="invalid_api_key")
            else:
                AT_THE_DOOR.set(door)
                door.asked += scope["method"] == "POST"
                if door.fault == "flooded" or door.asked > REQUESTS_A_TURN * door.most_turns:
                    refusal = too_many(door)
            if refusal is not None:
                await refusal.response()(scope, receive, send)
                return
        await app(scope, receive, send)

    return front


def _key(scope: Scope) -> str:
    headers = {name.lower(): value for name, value in scope["headers"]}
    scheme, _, key = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
