"""Hermes 2/3, Qwen2.5, Qwen3 and many fine-tunes: a JSON object between markers.

    <tool_call>
    {"name": "choose_square", "arguments": {"square": 5}}
    </tool_call>

(The chat templates of NousResearch/Hermes-3 and Qwen/Qwen3.) White space inside the markers is free,
prose around them is allowed, a bare JSON object is no call.
"""

from __future__ import annotations

from collections.abc import Sequence

from tuneloop.toolcalls.contract import Dialect, Fault, Tool, ToolCall, Written
from tuneloop.toolcalls.json_calls import call_in, object_text, tools_text
from tuneloop.toolcalls.markers import between

OPENING, CLOSING = "<tool_call>", "</tool_call>"


def find(text: str) -> Written | Fault:
    body = between(text, OPENING, CLOSING)
    return body if isinstance(body, Fault) else call_in(body, "arguments")


def render(call: ToolCall) -> str:
    text = object_text(call, "arguments")
    # In JSON a `<` is always inside a string, where it may be escaped: a marker stays readable.
    if OPENING in text or CLOSING in text:
        text = text.replace("<", "\\u003c")
    return f"{OPENING}\n{text}\n{CLOSING}"


def system_text(tools: Sequence[Tool]) -> str:
    return (
        f"{tools_text(tools)}\n"
        f'Write a call as\n{OPENING}\n{{"name": <tool name>, "arguments": <JSON object>}}\n{CLOSING}'
    )


DIALECT = Dialect("hermes", find, render, system_text)
