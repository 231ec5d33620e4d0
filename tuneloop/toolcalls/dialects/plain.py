"""For models whose chat template knows no tools: the whole reply is one JSON object.

    {"name": "choose_square", "arguments": {"square": 5}}

It may stand in one fence that opens with ```json, as chat models like to write it. As nothing else
marks a call, an object with prose around it is none.
"""

from __future__ import annotations

from collections.abc import Sequence

from tuneloop.toolcalls.contract import Dialect, Fault, Tool, ToolCall, Written
from tuneloop.toolcalls.json_calls import object_text, tools_text, whole_reply
from tuneloop.toolcalls.strict_json import WHITESPACE

FENCE, FENCE_END = "```json", "```"


def find(text: str) -> Written | Fault:
    text = text.strip(WHITESPACE)
    if text.startswith(FENCE) and text.endswith(FENCE_END):
        text = text[len(FENCE) : -len(FENCE_END)]
    return whole_reply(text, "arguments")


def render(call: ToolCall) -> str:
    return object_text(call, "arguments")


def system_text(tools: Sequence[Tool]) -> str:
    return (
        f"{tools_text(tools)}\n"
        'Write a call as the whole reply, nothing else: {"name": <tool name>, "arguments": <JSON object>}'
    )


DIALECT = Dialect("plain", find, render, system_text)
