"""Whatever a policy writes: the pieces of a stream add up to the message that is answered without one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuneloop.policies.policy import Policy
from tuneloop.rollout.contract import Drawn, Reply
from tuneloop.serving.choices import read_choice
from tuneloop.serving.deltas import GrowingChoice
from tuneloop.serving.request import ChatRequest
from tuneloop.toolcalls import Reasoning, ToolCall, dialect_names, load_dialect

TOOL = {
    "type": "function",
    "function": {
        "name": "say",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
}
CALLS = [load_dialect(name).render(ToolCall("say", {"text": word})) for name in dialect_names() for word in ("é🙂", "")]
MARKS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "```json",
    "```",
    "{",
    "}",
    "STOP",
    "END",
]
SPLIT = st.sampled_from(MARKS + CALLS).flatmap(lambda text: st.integers(1, len(text)).map(lambda n: (text, n)))
PIECES = st.one_of(
    st.sampled_from(MARKS),
    # In two pieces a marker is no token of its own, and its beginning comes alone.
    SPLIT.map(lambda cut: (cut[0][: cut[1]], cut[0][cut[1] :])),
    SPLIT.map(lambda cut: cut[0][: cut[1]]),
    st.sampled_from(CALLS),
    st.sampled_from([" ", "\n", "\u00a0", "word", "🙂", "é", "\ufffd"]),
    st.text(max_size=3),
)
REASONING = [None, Reasoning("<think>", "</think>"), Reasoning("<think>", "</think>", opened_by_prompt=True)]
STOPS = st.sampled_from([(), ("STOP",), ("</tool_call>",), ("word", "STOP"), ("🙂", "\n\n"), ("é",)])


def request(stop: tuple[str, ...], tools: bool) -> ChatRequest:
    nothing: dict[str, Any] = dict.fromkeys(["seed", "temperature", "top_p", "top_k", "max_tokens"])
    flags = {"named": False, "logprobs": False, "stream": True, "include_usage": False, "extension": False}
    own = {"tools": [TOOL] if tools else [], "tool_choice": "auto", "stop": stop}
    return ChatRequest(model="nano", messages=[], n=1, **own, **nothing, **flags)


def streamed(growing: GrowingChoice, reply: Reply, at_once: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The message that the deltas add up to, and the last entry. No delta may be empty."""
    count, entries = len(reply.ids), []
    drawn = [
        Drawn(0, 0, token, logp, reply.finish_reason if i + 1 == count else None)
        for i, (token, logp) in enumerate(zip(reply.ids, reply.logprobs))
    ]
    for start in range(0, count, at_once):
        entries += growing.more(drawn[start : start + at_once])
    *parts, last = entries
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for part in parts:
        ((key, value),) = part["delta"].items()
        assert value and part["finish_reason"] is None
        message[key] = message[key] + (
            [{k: v for k, v in value[0].items() if k != "index"}] if key == "tool_calls" else value
        )
    return message, last


def tokens(policy: Policy, text: str | int | tuple[str, str]) -> list[int]:
    if isinstance(text, int):
        return [text]
    if isinstance(text, tuple):
        return [token for part in text for token in tokens(policy, part)]
    return policy.tokenizer(text, add_special_tokens=False).input_ids


def without_ids(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [call["function"] for call in calls]


@pytest.mark.parametrize("dialect", dialect_names())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(st.one_of(PIECES, st.integers(3, 258)), min_size=1, max_size=8),
    reasoning=st.sampled_from(REASONING),
    stop=STOPS,
    tools=st.booleans(),
    at_once=st.integers(1, 3),
    end=st.sampled_from(["stop", "length"]),
)
def test_the_pieces_add_up_to_the_whole_message(
    policy: Policy,
    dialect: str,
    pieces: list[str | int | tuple[str, str]],
    reasoning: Any,
    stop: tuple,
    tools: bool,
    at_once: int,
    end: Any,
) -> None:
    policy = replace(policy, card=replace(policy.card, dialect=dialect, reasoning=reasoning))
    # A number is a token of nano's byte alphabet: most are no character by themselves.
    ids = [token for piece in pieces for token in tokens(policy, piece)]
    ids = [*ids, policy.end_ids[0]] if end == "stop" or not ids else ids
    reply = Reply(ids, [-0.5] * len(ids), end)
    asked = request(stop, tools)
    expected = read_choice(policy, asked, reply)
    growing = GrowingChoice(policy, asked, 0)
    message, last = streamed(growing, reply, at_once)
    assert message["content"] == (expected.message["content"] or "")
    assert message["reasoning_content"] == expected.message.get("reasoning_content", "")
    assert without_ids(message["tool_calls"]) == without_ids(expected.message.get("tool_calls", []))
    assert last["finish_reason"] == expected.finish_reason
    assert growing.choice.reply == expected.reply


def pieces_of(policy: Policy, text: str, stop: tuple[str, ...] = (), tools: bool = True) -> list[tuple[str, str]]:
    growing, found = GrowingChoice(policy, request(stop, tools), 0), []
    for token in tokens(policy, text):
        for entry in growing.more([Drawn(0, 0, token, 0.0, None)]):
            found += entry["delta"].items()
    return found


def test_text_comes_before_the_reply_is_whole(policy: Policy) -> None:
    pieces = pieces_of(policy, "<think>I look, then move.</think> I take 5.\n<tool_call>")
    assert "".join(text for key, text in pieces if key == "reasoning_content") == "I look, then move."
    assert "".join(text for key, text in pieces if key == "content") == "I take 5."
    assert len(pieces) > 3


def test_what_may_begin_a_stop_sequence_waits_and_the_sequence_is_never_sent(policy: Policy) -> None:
    sent = "".join(text for _, text in pieces_of(policy, "zqzqSTO", ("STOP",), tools=False))
    assert sent == "zqzq"
    sent = "".join(text for _, text in pieces_of(policy, "zqzqSTOzz", ("STOP",), tools=False))
    assert sent == "zqzqSTOzz"
    assert "STOP" not in str(pieces_of(policy, "zqzqSTOPzz", ("STOP",), tools=False))
