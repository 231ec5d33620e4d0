"""Calls written as one JSON object with a name and an object of arguments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tuneloop.toolcalls.contract import Fault, Tool, ToolCall, Written
from tuneloop.toolcalls.strict_json import WHITESPACE, decode, decode_first, nesting


def call_in(text: str, arguments_key: str) -> Written | Fault:
    """The call that `text` is: a JSON object with exactly the keys "name" and `arguments_key`."""
    try:
        return _written(decode(text), arguments_key)
    except ValueError as error:
        return _broken(error)


def whole_reply(text: str, arguments_key: str) -> Written | Fault:
    """The call that a reply without markers consists of.

    Only a reply that begins with `{` and ends with the `}` that closes it is an attempt at a call.
    Two objects in a row (nothing but white space, commas or semicolons between them) are several
    calls; an object with other text after it is no call.
    """
    text = text.strip(WHITESPACE)
    if not (text.startswith("{") and text.endswith("}")):
        return Fault("no_call", "the reply is not one JSON object")
    if nesting(text)[1] > 0:
        return Fault("no_call", "the JSON object never closes")
    try:
        value, rest = decode_first(text)
    except ValueError as error:
        return _broken(error)
    if rest:
        if rest.lstrip(WHITESPACE + ",;").startswith("{"):
            return Fault("several_calls", "a second JSON object after the first")
        return Fault("no_call", f"text after the JSON object: {rest[:20]!a}")
    return _written(value, arguments_key)


def object_text(call: ToolCall, arguments_key: str) -> str:
    """`call` as JSON, spaced as chat templates write it."""
    return json.dumps({"name": call.name, arguments_key: call.arguments}, ensure_ascii=False, allow_nan=False)


def tools_text(tools: Sequence[Tool]) -> str:
    """The tools for a system message, one JSON object a line."""
    lines = (json.dumps(tool["function"], ensure_ascii=False, allow_nan=False) for tool in tools)
    return "You can call these tools:\n" + "\n".join(lines)


def _written(value: Any, arguments_key: str) -> Written | Fault:
    if not (
        isinstance(value, dict)
        and value.keys() == {"name", arguments_key}
        and isinstance(value["name"], str)
        and isinstance(value[arguments_key], dict)
    ):
        return Fault("bad_arguments", f'not an object of exactly "name" (text) and "{arguments_key}" (object)')
    return Written(value["name"], lambda _schema: value[arguments_key])


def _broken(error: ValueError) -> Fault:
    return Fault("bad_arguments", f"not usable JSON: {error}"[:200])
