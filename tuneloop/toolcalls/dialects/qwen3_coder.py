"""Qwen3-Coder and Qwen3.5: tags inside the markers, values as bare text.

    <tool_call>
    <function=choose_square>
    <parameter=square>
    5
    </parameter>
    </function>
    </tool_call>

(The chat template of Qwen/Qwen3-Coder.) One line break after `<parameter=…>` and one before
`</parameter>` belong to the format and are optional; all else between them is the value. White space
between the tags is free. Values other than strings are JSON (`true`, not `True`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tuneloop.toolcalls.contract import Dialect, Fault, Tool, ToolCall, Written
from tuneloop.toolcalls.json_calls import tools_text
from tuneloop.toolcalls.markers import between
from tuneloop.toolcalls.strict_json import WHITESPACE
from tuneloop.toolcalls.text_values import typed, value_text

OPENING, CLOSING = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
RESERVED = (OPENING, CLOSING, FUNCTION, FUNCTION_END, PARAMETER, PARAMETER_END)


def find(text: str) -> Written | Fault:
    body = between(text, OPENING, CLOSING)
    if isinstance(body, Fault):
        return body
    if body.count(FUNCTION) > 1:
        return Fault("several_calls", f"{body.count(FUNCTION)} times {FUNCTION}…>")
    body = body.strip(WHITESPACE)
    if not (body.startswith(FUNCTION) and body.endswith(FUNCTION_END)):
        return Fault("bad_arguments", f"not {FUNCTION}…>…{FUNCTION_END}")
    name, named, inner = body[len(FUNCTION) : -len(FUNCTION_END)].partition(">")
    if not named:
        return Fault("bad_arguments", f"{FUNCTION} names no tool")
    return Written(name, lambda schema: typed(_parameters(inner), schema))


def _parameters(inner: str) -> Iterator[tuple[str, str]]:
    before, *pieces = inner.split(PARAMETER)
    if before.strip(WHITESPACE) or FUNCTION_END in inner:
        raise ValueError(f"text that is no {PARAMETER}…> in the call")
    for piece in pieces:
        key, named, value = piece.rstrip(WHITESPACE).partition(">")
        if not (named and value.endswith(PARAMETER_END) and value.count(PARAMETER_END) == 1):
            raise ValueError(f"not {PARAMETER}…>…{PARAMETER_END}")
        yield key, value.removesuffix(PARAMETER_END).removeprefix("\n").removesuffix("\n")


def render(call: ToolCall) -> str:
    """Raises ValueError for an argument that holds one of the dialect's own tags."""
    parameters = "".join(
        f"{PARAMETER}{key}>\n{value_text(value, RESERVED)}\n{PARAMETER_END}\n" for key, value in call.arguments.items()
    )
    return f"{OPENING}\n{FUNCTION}{call.name}>\n{parameters}{FUNCTION_END}\n{CLOSING}"


def system_text(tools: Sequence[Tool]) -> str:
    return (
        f"{tools_text(tools)}\n"
        f"Write a call as\n{OPENING}\n{FUNCTION}tool name>\n{PARAMETER}argument name>\nvalue\n{PARAMETER_END}\n"
        f"{FUNCTION_END}\n{CLOSING}"
    )


DIALECT = Dialect("qwen3_coder", find, render, system_text)
