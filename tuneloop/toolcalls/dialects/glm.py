"""GLM-4.5 to 4.7 and Ling 3.0: a name and pairs of keys and bare values between the markers.

    <tool_call>choose_square
    <arg_key>square</arg_key>
    <arg_value>5</arg_value>
    </tool_call>

(The chat templates of zai-org/GLM-4.5 and inclusionAI/Ling-3.0; GLM-4.7 leaves out the line breaks.)
White space around the name and between the tags is free; inside `<arg_key>` and `<arg_value>`
every character counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tuneloop.toolcalls.contract import Dialect, Fault, Tool, ToolCall, Written
from tuneloop.toolcalls.json_calls import tools_text
from tuneloop.toolcalls.markers import between
from tuneloop.toolcalls.strict_json import WHITESPACE
from tuneloop.toolcalls.text_values import typed, value_text

OPENING, CLOSING = "<tool_call>", "</tool_call>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"
RESERVED = (OPENING, CLOSING, KEY, KEY_END, VALUE, VALUE_END)


def find(text: str) -> Written | Fault:
    body = between(text, OPENING, CLOSING)
    if isinstance(body, Fault):
        return body
    name, *pieces = body.split(KEY)
    name = name.strip(WHITESPACE)
    if not name or any(character in name for character in "<>" + WHITESPACE):
        return Fault("bad_arguments", f"no tool name after {OPENING}")
    return Written(name, lambda schema: typed(_pairs(pieces), schema))


def _pairs(pieces: Sequence[str]) -> Iterator[tuple[str, str]]:
    for piece in pieces:
        key, closed, rest = piece.partition(KEY_END)
        rest = rest.strip(WHITESPACE)
        value = rest[len(VALUE) : -len(VALUE_END)]
        whole = closed and rest == f"{VALUE}{value}{VALUE_END}"
        if not whole or any(marker in value for marker in RESERVED):
            raise ValueError(f"not {KEY}…{KEY_END}{VALUE}…{VALUE_END}")
        yield key, value


def render(call: ToolCall) -> str:
    """Raises ValueError for an argument that holds one of the dialect's own tags."""
    pairs = "".join(
        f"{KEY}{key}{KEY_END}\n{VALUE}{value_text(value, RESERVED)}{VALUE_END}\n"
        for key, value in call.arguments.items()
    )
    return f"{OPENING}{call.name}\n{pairs}{CLOSING}"


def system_text(tools: Sequence[Tool]) -> str:
    return (
        f"{tools_text(tools)}\n"
        f"Write a call as\n{OPENING}tool name\n{KEY}argument name{KEY_END}\n{VALUE}value{VALUE_END}\n{CLOSING}"
    )


DIALECT = Dialect("glm", find, render, system_text)
