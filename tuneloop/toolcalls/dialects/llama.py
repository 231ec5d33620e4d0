"""Llama 3.1 to 3.3: the whole reply is one JSON object, with "parameters" for the arguments.

    {"name": "choose_square", "parameters": {"square": 5}}

(The chat template of meta-llama/Llama-3.1-8B-Instruct.) `<|python_tag|>` may stand before it. As
nothing else marks a call, an object with prose around it is none.
"""

from __future__ import annotations

from collections.abc import Sequence

from tuneloop.toolcalls.contract import Dialect, Fault, Tool, ToolCall, Written
from tuneloop.toolcalls.json_calls import object_text, tools_text, whole_reply
from tuneloop.toolcalls.strict_json import WHITESPACE

PYTHON_TAG = "<|python_tag|>"


def find(text: str) -> Written | Fault:
    return whole_reply(text.strip(WHITESPACE).removeprefix(PYTHON_TAG), "parameters")


def render(call: ToolCall) -> str:
    return object_text(call, "parameters")


def system_text(tools: Sequence[Tool]) -> str:
    return (
        f"{tools_text(tools)}\n"
        'Write a call as the whole reply, nothing else: {"name": <tool name>, "parameters": <JSON object>}'
    )


DIALECT = Dialect("llama", find, render, system_text)
