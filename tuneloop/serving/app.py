"""The HTTP application: routes, key, error shapes, clients that leave."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tuneloop.policies.policy import Policy
from tuneloop.serving.chat import Completion, Defaults, ask_engine, complete
from tuneloop.serving.choices import choice_json
from tuneloop.serving.errors import ApiError, bad_request
from tuneloop.serving.request import ChatRequest, parse_request
from tuneloop.serving.scheduler import Scheduler
from tuneloop.serving.stream import LiveResponse, LiveStream, extension, whole_stream

BODY_LIMIT = 4 * 2**20
"""Bytes of a request."""
CLIENT_LEFT = 499
"""For the log only: nobody reads this answer."""

log = logging.getLogger(__name__)

T = TypeVar("T")
Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True)
class Served:
    """A policy behind an endpoint. `name`: the id of the one model; `key`: None lets everybody in."""

    policy: Policy
    scheduler: Scheduler
    name: str
    defaults: Defaults
    key: str | None = None
    created: int = 0
    adapted: Callable[[ChatRequest], ChatRequest] = lambda asked: asked
    """What a request is taken for, where the client does not decide everything (`tuneloop.agents`)."""


def make_app(served: Served) -> Starlette:
    """The ASGI application; `served.scheduler` stays the caller's to close."""

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_model(served)]})

    async def model(request: Request) -> Response:
        _require_model(served, request.path_params["name"])
        return JSONResponse(_model(served))

    async def chat(request: Request) -> Response:
        asked = served.adapted(parse_request(await _body(request)))
        _require_model(served, asked.model)
        policy, scheduler, defaults = served.policy, served.scheduler, served.defaults
        head = _head(served)
        if asked.stream and asked.takes_any_reply:
            stream = LiveStream(policy, scheduler, asked, ask_engine(policy, defaults, asked))
            try:
                await _unless_left(request, stream.begun())
            except BaseException:
                stream.leave()
                raise
            return LiveResponse(stream, head)
        found = await _unless_left(request, complete(policy, scheduler, defaults, asked))
        if asked.stream:
            return StreamingResponse(whole_stream(policy, asked, found, head), media_type="text/event-stream")
        return JSONResponse(_answer(policy, asked, found, head))

    routes = [
        Route("/v1/models", _guarded(served, models), methods=["GET"]),
        Route("/v1/models/{name:path}", _guarded(served, model), methods=["GET"]),
        Route("/v1/chat/completions", _guarded(served, chat), methods=["POST"]),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _no_such_route})


def _guarded(served: Served, endpoint: Endpoint) -> Endpoint:
    """Checks the key first; turns whatever goes wrong into one answer to this one client."""

    async def guarded(request: Request) -> Response:
        try:
            _require_key(served.key, request)
            return await endpoint(request)
        except ApiError as error:
            return error.response()
        except ClientDisconnect:
            return Response(status_code=CLIENT_LEFT)
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path)
            return ApiError(500, "the server failed on this request; its log says how", "server_error").response()

    return guarded


def _require_key(key: str | None, request: Request) -> None:
    if key is None:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("latin-1"), key.encode()):
        raise ApiError(401, "the API key is missing or wrong", "invalid_request_error", code="invalid_api_key")


def _require_model(served: Served, name: str) -> None:
    if name != served.name:
        message = f"the model {name[:80]!r} does not exist; this server has {served.name!r}"
        raise ApiError(404, message, "invalid_request_error", "model", "model_not_found")


async def _body(request: Request) -> bytes:
    # A page in a browser can send other types to any address without asking first.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise bad_request("the content type must be application/json")
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > BODY_LIMIT:
            raise bad_request(f"the body exceeds {BODY_LIMIT} bytes", code="body_too_large")
    return b"".join(parts)


async def _unless_left(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives; cancels it, and with it what waits in the queue, as soon as the client hangs up."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _head(served: Served) -> dict[str, Any]:
    name = f"chatcmpl-{uuid.uuid4().hex}"
    return {"id": name, "created": int(time.time()), "model": served.name, "system_fingerprint": None}


def _answer(policy: Policy, asked: ChatRequest, found: Completion, head: dict[str, Any]) -> dict[str, Any]:
    choices = [choice_json(policy, asked, i, choice) for i, choice in enumerate(found.choices)]
    more = extension(asked, found.prompt)
    return {**head, "object": "chat.completion", "choices": choices, "usage": found.usage(), **more}


def _model(served: Served) -> dict[str, Any]:
    return {"id": served.name, "object": "model", "created": served.created, "owned_by": "tuneloop"}


async def _no_such_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    message = f"{request.method} {request.url.path}: {error.detail if isinstance(error, HTTPException) else error}"
    return ApiError(status, message, "invalid_request_error").response()
