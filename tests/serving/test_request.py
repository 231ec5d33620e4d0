"""What the server makes of a request's body, before any policy is asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tuneloop.serving.errors import ApiError
from tuneloop.serving.request import parse_request

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
SAY = {"role": "user", "content": "Hello."}
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def parse(**changes: Any):
    return parse_request(json.dumps({"model": "m", "messages": [SAY], **changes}).encode())


def tool(schema: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "add", "parameters": schema}}]


DEEP: dict[str, Any] = {"type": "object"}
for _ in range(200):
    DEEP = {"type": "object", "properties": {"x": DEEP}}


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
        ({"messages": [SAY, {"role": "system", "content": "Late."}]}, "messages.1.role"),
        ({"messages": [SAY, {"role": "tool", "tool_call_id": "call_9", "content": "1"}]}, "messages.1.tool_call_id"),
        ({"messages": [SAY | {"tool_calls": [CALL]}]}, "messages.0.tool_calls"),
        (
            {
                "messages": [
                    SAY,
                    {"role": "assistant", "tool_calls": [CALL | {"function": CALL["function"] | {"arguments": "["}}]},
                ]
            },
            "messages.1.tool_calls",
        ),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"n": "2"}, "n"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"top_logprobs": 2, "logprobs": True}, "top_logprobs"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tools": tool({"type": "nonsense"})}, "tools.0.function.parameters"),
        (
            {"tools": tool({"type": "object", "properties": {"a": {"$ref": "http://else/where"}}})},
            "tools.0.function.parameters",
        ),
        ({"tools": tool({"$ref": "#"})}, "tools.0.function.parameters"),
        ({"tools": tool(DEEP)}, "tools.0.function.parameters"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "sub"}}}, "tool_choice"),
        ({"best_of": 3}, "best_of"),
    ],
)
def test_a_parameter_that_cannot_be_honoured_is_refused_by_name(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse(**changes)
    assert (refused.value.status, refused.value.type) == (400, "invalid_request_error")
    assert refused.value.param is not None
    assert refused.value.param.startswith(param)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"model": NaN}',
        b'{"seed": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}',
    ],
)
def test_a_body_that_is_no_json_object_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        parse_request(body)
    assert refused.value.status == 400


def test_null_says_nothing_and_neutral_values_are_taken() -> None:
    neutral = {"n": None, "seed": None, "stop": None, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}}
    more = {"response_format": {"type": "text"}, "user": "me", "top_logprobs": 0, "parallel_tool_calls": True}
    assert parse(**neutral, **more) == parse()


def test_leading_system_and_developer_messages_become_one() -> None:
    messages = [{"role": "system", "content": "A"}, {"role": "developer", "content": "B"}, SAY]
    assert parse(messages=messages).messages == [{"role": "system", "content": "A\n\nB"}, SAY]


def test_a_history_with_a_tools_answer_reaches_the_template_with_decoded_arguments() -> None:
    assistant = {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "annotations": []}
    answer = {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "2"}]}
    _, said, told = parse(messages=[SAY, assistant, answer], tools=[TOOL]).messages
    assert said["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert told == {"role": "tool", "content": "2", "tool_call_id": "call_1"}


def test_tools_are_kept_as_the_client_wrote_them_and_hidden_where_none_may_be_called() -> None:
    assert parse(tools=[TOOL]).tools == [TOOL]
    assert parse(tools=[TOOL]).tool_choice == "auto"
    assert parse(tools=[TOOL], tool_choice="none").tools == []
    assert parse().tool_choice == "none"
