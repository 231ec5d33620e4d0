"""One sampled reply as a choice of a chat completion: message, finish reason, log-probabilities, token ids."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tuneloop.policies.policy import Policy
from tuneloop.rollout.contract import Reply
from tuneloop.serving.request import ChatRequest
from tuneloop.toolcalls import Fault, Reasoning, ToolCall, load_dialect, read_reply
from tuneloop.toolcalls.message import assistant_message

READINGS_KEPT = 10_000
"""A trained policy repeats itself, and a schema takes longer to hold a call against than HTTP takes to carry it."""


@dataclass(frozen=True)
class Choice:
    """`reply`: what was sampled, up to the token that completed a stop sequence. `reading`: None where calls were not
    looked for. `draws`: replies that were drawn until `tool_choice` was met."""

    reply: Reply
    text: str
    message: dict[str, Any]
    finish_reason: str
    reading: ToolCall | Fault | None
    draws: int = 1


def read_choice(policy: Policy, request: ChatRequest, reply: Reply, draws: int = 1) -> Choice:
    """The reply read as the request wants it: cut at its stop sequences, then by the policy's own dialect.

    A valid call (exactly one, of a tool that was given, whose arguments fit its schema) becomes `tool_calls`; every
    other reply stays text, as it was written. "length" is said of every reply that the limit cut, with a call or not.
    """
    reply, text = _stopped(policy, reply, request.stop)
    reasoning, reading = policy.card.reasoning, None
    finish_reason = str(reply.finish_reason)
    if request.tools:
        reading = _reading(text, policy.card.dialect, request.tools_text, reasoning)
        if isinstance(reading, ToolCall) and finish_reason == "stop":
            finish_reason = "tool_calls"
    message = assistant_message(text, reading, reasoning, f"call_{secrets.token_hex(12)}")
    return Choice(reply, text, message, finish_reason, reading, draws)


@lru_cache(READINGS_KEPT)
def _reading(text: str, dialect: str, tools: str, reasoning: Reasoning | None) -> ToolCall | Fault:
    return read_reply(text, load_dialect(dialect), json.loads(tools), reasoning)


def meets(request: ChatRequest, choice: Choice) -> bool:
    """Whether the reply holds the call that `tool_choice` asks for."""
    if request.named:
        return isinstance(choice.reading, ToolCall) and choice.reading.name == request.tool_choice
    return request.tool_choice != "required" or isinstance(choice.reading, ToolCall)


def choice_json(policy: Policy, request: ChatRequest, index: int, choice: Choice) -> dict[str, Any]:
    """The entry of `choices`; in a stream its last chunk has the same keys, with a delta for the message."""
    entry = {"index": index, "message": choice.message, "finish_reason": choice.finish_reason}
    entry["logprobs"] = {"content": _token_logprobs(policy, choice.reply)} if request.logprobs else None
    return entry | ({"tuneloop": _extension(choice)} if request.extension else {})


def _extension(choice: Choice) -> dict[str, Any]:
    """What a trainer needs: what the policy really sampled, never tokenized again."""
    fault = choice.reading if isinstance(choice.reading, Fault) else None
    return {
        "token_ids": choice.reply.ids,
        "logprobs": choice.reply.logprobs,
        "text": choice.text,
        "finish_reason": choice.reply.finish_reason,
        "fault": None if fault is None else {"name": fault.name, "detail": fault.detail},
        "draws": choice.draws,
    }


def _stopped(policy: Policy, reply: Reply, stop: Sequence[str]) -> tuple[Reply, str]:
    """The reply up to the token that completes the first stop sequence, and its text before that sequence: what an
    engine that looks at every token would have sampled, because a token does not depend on those after it."""
    text = policy.decode(reply.ids)
    places = [place for place in (text.find(s) for s in stop) if place >= 0]
    if not places:
        return reply, text
    low, high = 1, len(reply.ids)  # tokens that hold a whole stop sequence: more of them hold it too
    while low < high:
        middle = (low + high) // 2
        part = settled(policy.decode(reply.ids[:middle]))
        low, high = (low, middle) if any(s in part for s in stop) else (middle + 1, high)
    part = policy.decode(reply.ids[:low])
    first = min(place for place in (part.find(s) for s in stop) if place >= 0)
    return Reply(reply.ids[:low], reply.logprobs[:low], "stop"), part[:first]


def settled(text: str) -> str:
    """A text whose tokens go on, without the marks that stand for bytes of an unfinished character."""
    return text.rstrip("\ufffd")


def _token_logprobs(policy: Policy, reply: Reply) -> list[dict[str, Any]]:
    """One entry a sampled token, the end token included. A token that is part of a character has no bytes here."""
    entries = []
    for token_id, logprob in zip(reply.ids, reply.logprobs):
        token = policy.tokenizer.decode([token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        raw = None if "\ufffd" in token else list(token.encode())
        entries.append({"token": token, "logprob": logprob, "bytes": raw, "top_logprobs": []})
    return entries
