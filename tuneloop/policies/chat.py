"""What a chat template can do, found out by rendering it, and conversations for templates that know no tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from tuneloop.errors import UserError
from tuneloop.tasks.contract import Message
from tuneloop.toolcalls import Dialect, ToolCall, dialect_names

_PROBE = {
    "type": "function",
    "function": {"name": "probe_of_tools", "description": "", "parameters": {"type": "object", "properties": {}}},
}
_ANSWER = "probe of answers"


def render_chat(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    *,
    thinking: bool,
    reply_follows: bool = True,
) -> str:
    """The conversation as the template writes it. Raises UserError where there is no template or it refuses."""
    try:
        return tokenizer.apply_chat_template(
            list(messages),
            tools=list(tools),
            add_generation_prompt=reply_follows,
            tokenize=False,
            enable_thinking=thinking,
        )
    except (TemplateError, ValueError) as error:
        raise UserError(f"policy: its chat template cannot write this conversation ({error})") from None


def knows_tools(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the template writes the tools that it is given."""
    text = render_chat(tokenizer, [{"role": "user", "content": "Hello."}], [_PROBE], thinking=True)
    return _PROBE["function"]["name"] in text


def turn_end(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The token that the template writes where an answer ends; None if that is no token of its own."""
    messages = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": _ANSWER}]
    text = render_chat(tokenizer, messages, [], thinking=False, reply_follows=False)
    after = tokenizer(text.rpartition(_ANSWER)[2].lstrip(), add_special_tokens=False)["input_ids"]
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return after[0] if after and after[0] in special else None


def guess_dialect(tokenizer: PreTrainedTokenizerBase) -> str:
    """The dialect whose marks the template's text shows; `plain` where the template knows no tools.

    Raises UserError that lists the dialects where the text shows none or several.
    """
    if not knows_tools(tokenizer):
        return "plain"
    text = json.dumps(tokenizer.chat_template)
    marks = {
        "glm": "<arg_key>" in text,
        "qwen3_coder": "<function=" in text,
        "llama": "<|python_tag|>" in text and "parameters" in text,
        "hermes": "<tool_call>" in text
        and "arguments" in text
        and "<arg_key>" not in text
        and "<function=" not in text,
    }
    found = [name for name, shown in marks.items() if shown]
    if len(found) != 1:
        said = f"shows the marks of {' and '.join(found)}" if found else "shows the marks of none that is known"
        raise UserError(
            f"policy.dialect: the chat template {said}; set it to how the model writes tool calls: "
            f"{', '.join(dialect_names())}"
        )
    return found[0]


def without_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], dialect: Dialect) -> list[Message]:
    """The same conversation for a template that knows no tools: the dialect describes them in the system
    message, calls are written as the policy writes them, and a tool's answer is a user message."""
    told = [_spelled_out(message, dialect) for message in messages]
    if not tools:
        return told
    description = dialect.system_text([dict(tool) for tool in tools])
    if told and told[0]["role"] == "system":
        return [{**told[0], "content": f"{told[0]['content']}\n\n{description}"}, *told[1:]]
    return [{"role": "system", "content": description}, *told]


def _spelled_out(message: Message, dialect: Dialect) -> Message:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = [dialect.render(_call(entry)) for entry in message.get("tool_calls") or ()]
    if not calls:
        return message
    said = [message["content"]] if message.get("content") else []
    return {"role": message["role"], "content": "\n".join([*said, *calls])}


def _call(entry: Mapping[str, Any]) -> ToolCall:
    function = entry.get("function", entry)
    arguments = function["arguments"]
    return ToolCall(function["name"], json.loads(arguments) if isinstance(arguments, str) else dict(arguments))
