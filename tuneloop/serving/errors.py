"""What a client is told when there is no reply: OpenAI's error shape.

{"error": {"message": …, "type": …, "param": …, "code": …}}
"""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse


class ApiError(Exception):
    """Ends one request, with this HTTP status and this text; never the server."""

    def __init__(self, status: int, message: str, type: str, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.type, self.param, self.code = status, message, type, param, code

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        headers = {"Retry-After": "1"} if self.status in (429, 503) else None
        return JSONResponse(self.body(), self.status, headers)


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request cannot be answered as it is; `param` is the field at fault."""
    return ApiError(400, message, "invalid_request_error", param, code)


def queue_full(capacity: int) -> ApiError:
    """429: more requests wait than the server holds."""
    message = f"the queue is full: {capacity} requests are waiting; try again later"
    return ApiError(429, message, "rate_limit_error", code="queue_full")


def engine_fault(reason: BaseException) -> ApiError:
    """500: the engine raised `reason`."""
    return ApiError(500, f"the engine failed on this request: {reason}"[:500], "server_error", code="engine_fault")


def closing() -> ApiError:
    """503: no request is taken any more."""
    return ApiError(503, "the server is shutting down", "server_error", code="closing")
