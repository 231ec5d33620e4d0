"""What reading a reply gives: one valid tool call, or the reason why there is none; and what a
dialect (the way one model family writes calls) is to the rest of the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

FaultName = Literal["no_call", "several_calls", "wrong_tool", "bad_arguments"]

Tool = dict[str, Any]
"""An OpenAI-style definition: `{"type": "function", "function": {"name": …, "parameters": …}}`."""


@dataclass(frozen=True)
class ToolCall:
    """A call as the policy wrote it (`name`, `arguments` decoded by the dialect)."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """Why a reply holds no usable call; `detail` is for people."""

    name: FaultName
    detail: str


@dataclass(frozen=True)
class Reasoning:
    """The markers around a policy's reasoning. `opened_by_prompt`: the prompt already wrote
    `open`, so the reply starts inside the reasoning."""

    open: str
    close: str
    opened_by_prompt: bool = False


@dataclass(frozen=True)
class Written:
    """The one call in a reply, before it is known whether its tool exists.

    `decode(schema)` gives the arguments. Only dialects whose values carry no types look at the
    tool's JSON Schema for that. Raises ValueError with the reason where there is nothing to decode.
    """

    name: str
    decode: Callable[[Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Dialect:
    """How one model family writes a tool call.

    `find(text)` finds the one call in a reply without its reasoning, and never raises; whether the
    tool exists and the arguments fit is the reader's business.
    `render(call)` is the text that a policy should write for `call`: reading it gives `call` back.
    `system_text(tools)` goes into the system message where a chat template has no tools support.
    """

    name: str
    find: Callable[[str], Written | Fault]
    render: Callable[[ToolCall], str]
    system_text: Callable[[Sequence[Tool]], str]

    def history(self, call: ToolCall) -> dict[str, Any]:
        """The entry of an assistant message's `tool_calls` for a chat template.

        Arguments are a mapping; `tuneloop.toolcalls.history` turns them into JSON text for a template that
        wants that. A template without tools support has no place for the entry: there the message's
        content is `render(call)`.
        """
        return {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
