"""Asks the server at argv[1] through litellm, in a process in which every other address is out of reach; prints the
answer as JSON, and the addresses that were tried."""

import json
import socket
import sys

tried: list[str] = []
real_connect, real_lookup = socket.socket.connect, socket.getaddrinfo


def connect(self: socket.socket, address: object) -> None:
    if str(address[0]) != "127.0.0.1":
        tried.append(str(address))
        raise OSError("no network")
    real_connect(self, address)


def lookup(host: object, *args: object, **kwargs: object) -> object:
    if host not in ("127.0.0.1", b"127.0.0.1"):
        tried.append(str(host))
        raise OSError("no network")
    return real_lookup(host, *args, **kwargs)


socket.socket.connect, socket.getaddrinfo = connect, lookup

import litellm  # noqa: E402

options = json.load(sys.stdin)
call = options | {"model": "openai/nano", "api_base": sys.argv[1], "api_key": "none", "num_retries": 0}
answer = litellm.completion(**call)
(choice,) = answer.choices
pieces = [chunk.choices[0].delta.tool_calls or [] for chunk in litellm.completion(**call, stream=True)]
print(
    json.dumps(
        {
            "arguments": choice.message.tool_calls[0].function.arguments,
            "finish_reason": choice.finish_reason,
            "streamed": "".join(c.function.arguments or "" for calls in pieces for c in calls),
            "tokens": answer.usage.completion_tokens,
            "tried": tried,
        }
    )
)
