"""What an endpoint's response holds, read as strictly as a policy's text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from evaluation.fake_endpoint import call, completion

from tuneloop.evaluation.endpoint_message import message_of, read_message, text_of
from tuneloop.tasks import load_task
from tuneloop.toolcalls import Fault, ToolCall, load_dialect

TASK = load_task("tictactoe")
NESTED = '{"square": ' + "[" * 100_000 + "]" * 100_000 + "}"


@pytest.mark.parametrize(
    ("answer", "reads"),
    [
        (completion(call(5)), 5),
        (completion(call(' {"square": 5}\n'), content="I take the centre."), 5),
        (completion(call(5), reasoning_content="perhaps choose_square(1)"), 5),
        (completion(call(5) | {"type": None}), 5),
        (completion(content="choose_square(5)"), "no_call"),
        (
            completion(content='<tool_call>\n{"name": "choose_square", "arguments": {"square": 5}}\n</tool_call>'),
            "no_call",
        ),
        (
            completion(content=None, reasoning_content='{"name": "choose_square", "arguments": {"square": 5}}'),
            "no_call",
        ),
        (completion(content=None, tool_calls=None), "no_call"),
        (completion(content=None, tool_calls=[]), "no_call"),
        (completion(content=None, function_call={"name": "choose_square", "arguments": '{"square": 5}'}), "no_call"),
        (completion(call(5), call(5)), "several_calls"),
        (completion(call(5), "nonsense"), "several_calls"),
        (completion(call(5, "choose_squares")), "wrong_tool"),
        (completion("nonsense"), "wrong_tool"),
        (completion({"type": "function", "function": {"name": 5, "arguments": "{}"}}), "wrong_tool"),
        (completion({"type": "function", "function": {"name": "choose_square"}}), "bad_arguments"),
        (completion({"function": {"name": "choose_square", "arguments": {"square": 5}}}), "bad_arguments"),
        (completion(call("5")), "bad_arguments"),
        (completion(call("")), "bad_arguments"),
        (completion(call("[5]")), "bad_arguments"),
        (completion(call("null")), "bad_arguments"),
        (completion(call('{"square": "5"}')), "bad_arguments"),
        (completion(call('{"square": 5.0}')), "bad_arguments"),
        (completion(call('{"square": 5e0}')), "bad_arguments"),
        (completion(call('{"square": true}')), "bad_arguments"),
        (completion(call('{"square": NaN}')), "bad_arguments"),
        (completion(call('{"square": 0}')), "bad_arguments"),
        (completion(call('{"square": 10}')), "bad_arguments"),
        (completion(call('{"square": ' + "9" * 9_999 + "}")), "bad_arguments"),
        (completion(call('{"square": 5, "square": 5}')), "bad_arguments"),
        (completion(call('{"square": 5, "why": ""}')), "bad_arguments"),
        (completion(call('{"square": 5} {"square": 5}')), "bad_arguments"),
        (completion(call('{"square": 5')), "bad_arguments"),
        (completion(call(NESTED)), "bad_arguments"),
        (completion(call('{"sq\\ud800": 5}')), "bad_arguments"),
    ],
)
def test_parsed_calls_are_read_as_strictly_as_text(answer: dict[str, Any], reads: int | str) -> None:
    message = message_of(json.dumps(answer))
    reading = read_message(message, TASK.tools, None, None)
    assert reading == ToolCall("choose_square", {"square": reads}) if isinstance(reads, int) else reading.name == reads
    text_of(message).encode()


def test_text_is_read_in_a_dialect_only_where_one_is_named() -> None:
    hermes = load_dialect("hermes")
    message = message_of(json.dumps(completion(content=hermes.render(ToolCall("choose_square", {"square": 5})))))
    assert read_message(message, TASK.tools, hermes, None) == ToolCall("choose_square", {"square": 5})
    assert isinstance(read_message(message, TASK.tools, None, None), Fault)


@pytest.mark.parametrize("body", ["", "<html>", "[]", "{}", '{"choices": []}', '{"choices": [{}]}', "[" * 200_000])
def test_a_body_that_is_no_completion_is_no_reply_of_the_model(body: str) -> None:
    with pytest.raises(ValueError):
        message_of(body)
