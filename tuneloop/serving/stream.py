"""A completion as server-sent events: chunks of one object type, each choice's deltas in turn, then `[DONE]`.

The engine computes whole replies, so the first chunk comes when the last token is known: the form is that of a
stream, the waiting is not shorter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def chunks(completion: Mapping[str, Any], include_usage: bool) -> Iterator[str]:
    """The events of `completion`, a `chat.completion` object."""
    head = {key: completion[key] for key in ("id", "created", "model", "system_fingerprint")}
    head["object"] = "chat.completion.chunk"
    head |= {"usage": None} if include_usage else {}
    for entry in completion["choices"]:
        message = entry["message"]
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        if "reasoning_content" in message:
            deltas.append({"reasoning_content": message["reasoning_content"]})
        if message["content"]:
            deltas.append({"content": message["content"]})
        for i, call in enumerate(message.get("tool_calls", [])):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            opening = call | {"index": i, "function": {"name": name, "arguments": ""}}
            deltas += [{"tool_calls": [opening]}, {"tool_calls": [{"index": i, "function": {"arguments": arguments}}]}]
        index = entry["index"]
        for delta in deltas:
            yield _event(
                head | {"choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]}
            )
        last = {key: value for key, value in entry.items() if key != "message"} | {"delta": {}}
        extension = {"tuneloop": completion["tuneloop"]} if "tuneloop" in completion else {}
        yield _event(head | extension | {"choices": [last]})
    if include_usage:
        yield _event(head | {"choices": [], "usage": completion["usage"]})
    yield "data: [DONE]\n\n"


def _event(chunk: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
