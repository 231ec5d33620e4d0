"""A real HTTP server that answers as endpoints do, and what it answers."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any, dict[str, str]]


def call(square: Any, name: str = "choose_square") -> dict[str, Any]:
    arguments = square if isinstance(square, str) else json.dumps({"square": square})
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def completion(*calls: Any, content: str | None = None, tokens: int | None = 12, **message: Any) -> dict[str, Any]:
    """A response as OpenAI documents it ("The chat completion object")."""
    message = {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {}), **message}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    usage = {} if tokens is None else {"usage": {"prompt_tokens": 90, "completion_tokens": tokens}}
    return {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], **usage}


def free_square(body: dict[str, Any]) -> int:
    """The first free square of the board in the prompt, which names them `1X 2. 3O`."""
    return int(re.search(r"(\d)\.", body["messages"][-1]["content"])[1])


def first_free(body: dict[str, Any], _number: int) -> Answer:
    return 200, completion(call(free_square(body))), {}


class Endpoint:
    """Answers every request with what `answer(body, number of the request)` says: status, JSON or text, headers."""

    def __init__(self) -> None:
        self.answer: Callable[[dict[str, Any], int], Answer] = first_free
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.open = self.most_open = 0
        self.lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with endpoint.lock:
                    endpoint.bodies.append(body)
                    endpoint.keys.add(self.headers["authorization"])
                    number = len(endpoint.bodies)
                    endpoint.open += 1
                    endpoint.most_open = max(endpoint.open, endpoint.most_open)
                try:
                    status, content, headers = endpoint.answer(body, number)
                finally:
                    with endpoint.lock:
                        endpoint.open -= 1
                data = (content if isinstance(content, str) else json.dumps(content)).encode()
                self.send_response(404 if self.path != "/v1/chat/completions" else status)
                for name, value in ({"content-length": str(len(data))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # clients that hang up are part of the tests
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
