"""What an OpenAI-compatible endpoint answered, and the one valid tool call in it.

An endpoint hands over calls that its server has parsed already: a name, and the arguments as JSON text. They are held
against the same rules as the reply of a policy (`tuneloop.toolcalls`): exactly one call, of a tool that exists, its
arguments strict JSON that fits the tool's schema. Nothing is converted on the way: 5.0 or "5" is no square.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tuneloop.artifacts import compact_json
from tuneloop.toolcalls import Dialect, Fault, Reasoning, Tool, ToolCall, read_reply
from tuneloop.toolcalls.schema import parameters_of, problem_with
from tuneloop.toolcalls.strict_json import decode


@dataclass(frozen=True)
class ParsedCall:
    """One entry of `message.tool_calls`; None for a part that is missing or not text."""

    name: str | None
    arguments: str | None


@dataclass(frozen=True)
class Message:
    """The assistant message of a response. Reasoning that the server split off is not kept."""

    content: str
    calls: tuple[ParsedCall, ...]
    finish_reason: Literal["stop", "length"]
    tokens: int | None
    """Tokens of the reply as the endpoint counts them (`usage.completion_tokens`, reasoning included); None where it
    does not say."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: dict[str, Any]) -> Message:
        return Message(**{**value, "calls": tuple(ParsedCall(**call) for call in value["calls"])})


def message_of(body: str) -> Message:
    """The message in the body of a response. Raises ValueError with the reason for a body that is not an OpenAI chat
    completion; whatever a call holds is no such reason: that is for `read_message` to judge."""
    try:
        completion = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError(f"not JSON: {body[:120]!a}") from None
    choices = completion.get("choices") if isinstance(completion, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        # Some routers answer 200 with an error object inside.
        raise ValueError(f"no choices[0].message: {body[:200]!a}")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise ValueError(f"tool_calls is not a list: {str(calls)[:80]!a}")
    usage = completion.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return Message(
        content=_text_of(message.get("content")),
        calls=tuple(map(_parsed, calls)),
        # "tool_calls", "content_filter" and the rest end a reply as well; only the limit cuts one.
        finish_reason="length" if choice.get("finish_reason") == "length" else "stop",
        tokens=tokens if type(tokens) is int and tokens >= 0 else None,
    )


def read_message(
    message: Message, tools: Sequence[Tool], dialect: Dialect | None, reasoning: Reasoning | None
) -> ToolCall | Fault:
    """The one valid call of `message`, or a Fault; never raises.

    Text without parsed calls is no call, unless a `dialect` is given: then the text is read as a policy's reply is.
    """
    if not message.calls:
        if dialect is None:
            return Fault("no_call", "the message has no tool_calls")
        return read_reply(message.content, dialect, tools, reasoning)
    if len(message.calls) > 1:
        return Fault("several_calls", f"{len(message.calls)} tool_calls")
    [call] = message.calls
    parameters = None if call.name is None else parameters_of(tools, call.name)
    if call.name is None or parameters is None:
        return Fault("wrong_tool", f"there is no tool {str(call.name)[:80]!a}")
    if call.arguments is None:
        return Fault("bad_arguments", "the arguments are not JSON text")
    try:
        arguments = decode(call.arguments)
    except ValueError as error:
        return Fault("bad_arguments", f"not usable JSON: {error}"[:200])
    if not isinstance(arguments, dict):
        return Fault("bad_arguments", "the arguments are not a JSON object")
    problem = problem_with(arguments, parameters)
    return ToolCall(call.name, arguments) if problem is None else Fault("bad_arguments", problem)


def text_of(message: Message) -> str:
    """The message for the `text` column of a reply table: what was said, and below it one line a parsed call with its
    arguments as they came. Always valid Unicode."""
    lines = [compact_json({"name": call.name, "arguments": call.arguments}) for call in message.calls]
    text = "\n".join([message.content, *lines] if message.content else lines)
    return text.encode("utf-8", "replace").decode("utf-8")


def _text_of(content: Any) -> str:
    if isinstance(content, list):  # content parts
        return "".join(_text_of(part.get("text")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _parsed(call: Any) -> ParsedCall:
    function = call.get("function") if isinstance(call, dict) else None
    function = function if isinstance(function, dict) else {}
    name, arguments = function.get("name"), function.get("arguments")
    return ParsedCall(
        name if isinstance(name, str) else None,
        arguments if isinstance(arguments, str) else None,
    )
