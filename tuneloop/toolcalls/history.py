"""The calls of earlier turns, in the form that a chat template takes.

The published templates disagree about a call's arguments: those of GLM and Qwen3-Coder iterate over a mapping, those
of Llama 3 and Qwen2.5 write one with `tojson` (which would quote a text once more), DeepSeek's joins a JSON text to
other text, Qwen3's takes either. So the template is tried.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from tuneloop.errors import UserError
from tuneloop.toolcalls.contract import ToolCall

Messages = Sequence[Mapping[str, Any]]
Form = Literal["mapping", "text"]

PROBE = ToolCall("probe_of_history", {"key_of_probe": "value of probe"})


def history_form(render: Callable[[Messages], str]) -> Form:
    """In which form a template takes a call's arguments; a mapping where it takes either. `render` writes
    messages with it. Raises UserError for a template that writes neither as it should."""
    for form in ("mapping", "text"):
        entry = {"type": "function", "function": {"name": PROBE.name, "arguments": PROBE.arguments}}
        messages = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "", "tool_calls": [entry]}]
        try:
            text = render(in_form(messages, form))
        except (UserError, TypeError, ValueError):  # it joined a mapping to text, or iterated over a text
            continue
        # Written as Python writes a mapping, or quoted a second time.
        spoilt = "'key_of_probe'" in text or '\\"key_of_probe' in text
        if not spoilt and all(part in text for part in (PROBE.name, *PROBE.arguments, *PROBE.arguments.values())):
            return form
    raise UserError(
        "policy: its chat template does not write the calls of earlier messages; use a revision or a template that does"
    )


def in_form(messages: Messages, form: Form) -> list[dict[str, Any]]:
    """The same messages, the arguments of every call a mapping or a JSON text."""
    return [
        {**message, "tool_calls": [_entry(entry, form) for entry in message["tool_calls"]]}
        if message.get("tool_calls")
        else dict(message)
        for message in messages
    ]


def _entry(entry: Mapping[str, Any], form: Form) -> dict[str, Any]:
    function = entry["function"]
    arguments = function["arguments"]
    if form == "text" and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    elif form == "mapping" and isinstance(arguments, str):
        arguments = json.loads(arguments)
    return {**entry, "function": {**function, "arguments": arguments}}
