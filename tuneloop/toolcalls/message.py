"""A reply as the assistant message that it is to later turns: in OpenAI's form, calls apart from text and reasoning.

Messages are streamed, so no character may change its part because of what comes later: reasoning is what a reply
that begins with its opening marker (or whose prompt wrote that) says before the first closing one, and any other
marker stays in the text. What counts as a call is the reader's business alone.
"""

from __future__ import annotations

import json
from typing import Any

from tuneloop.toolcalls.contract import Fault, Reasoning, ToolCall

CALL_MARKERS = ("<tool_call>", "</tool_call>")
"""What the dialects that allow prose around a call write around it. The others make the whole reply the call."""
WHOLE_CALL = ("{", "```json", "<|python_tag|>")
"""How a reply begins that may be a call as a whole."""


def assistant_message(
    text: str, reading: ToolCall | Fault | None, reasoning: Reasoning | None, call_id: str
) -> dict[str, Any]:
    """The message for a reply `text` that was read as `reading` (None: calls were not looked for). A valid call
    becomes `tool_calls`, with its arguments as JSON text; every other reply stays text, as it was written."""
    thought, answer = parted(text, reasoning)
    message: dict[str, Any] = {"role": "assistant", "content": answer.strip()}
    if thought:
        message["reasoning_content"] = thought.strip()
    if isinstance(reading, ToolCall):
        function = {"name": reading.name, "arguments": json.dumps(reading.arguments, ensure_ascii=False)}
        message["content"] = _prose(answer, reasoning) or None
        message["tool_calls"] = [{"id": call_id, "type": "function", "function": function}]
    return message


def parted(text: str, reasoning: Reasoning | None) -> tuple[str, str]:
    """What a reply, or the beginning of one, says in its reasoning and after it, without the markers between."""
    if reasoning is None:
        return "", text
    if not reasoning.opened_by_prompt:
        begun = text.lstrip()
        if not begun.startswith(reasoning.open):
            return "", text
        text = begun[len(reasoning.open) :]
    thought, _, answer = text.partition(reasoning.close)
    return thought, answer


def certain(text: str, reasoning: Reasoning | None, tools: bool, marked: bool) -> tuple[str, str]:
    """Of a reply that begins with `text`, what is sure to begin its message's `reasoning_content` and `content`,
    whatever follows. `tools`: calls are looked for; `marked`: in a dialect that writes `CALL_MARKERS`."""
    if reasoning is not None and not reasoning.opened_by_prompt and _may_become(text.lstrip(), reasoning.open):
        return "", ""
    thought, answer = parted(text, reasoning)
    if reasoning is not None and not answer:
        thought = _without_begun(thought, [reasoning.close])
    if tools and marked:
        answer = _without_begun(answer.partition(CALL_MARKERS[0])[0], CALL_MARKERS[:1])
    elif tools:
        begun = answer.lstrip()
        if any(begun.startswith(mark) or _may_become(begun, mark) for mark in WHOLE_CALL):
            answer = ""
        elif reasoning is not None:
            # A call may be all that follows a stray marker.
            answer = _without_begun(answer.partition(reasoning.close)[0], [reasoning.close])
    return thought.strip(), answer.strip()


def _prose(answer: str, reasoning: Reasoning | None) -> str:
    """What stands around the call."""
    opening, closing = CALL_MARKERS
    if opening in answer:
        return (answer.partition(opening)[0] + answer.rpartition(closing)[2]).strip()
    if reasoning is None or answer.lstrip().startswith(WHOLE_CALL):
        return ""
    before, marker, _ = answer.rpartition(reasoning.close)
    return (before + marker).strip()


def _may_become(text: str, marker: str) -> bool:
    return len(text) < len(marker) and marker.startswith(text)


def _without_begun(text: str, markers: list[str] | tuple[str, ...]) -> str:
    """`text` but for an end that may be the beginning of a marker."""
    return text[: len(text) - begun(text, markers)]


def begun(text: str, markers: list[str] | tuple[str, ...]) -> int:
    """How many characters at the end of `text` may be the beginning of one of the markers."""
    return max((n for m in markers for n in range(1, min(len(m), len(text) + 1)) if text.endswith(m[:n])), default=0)
