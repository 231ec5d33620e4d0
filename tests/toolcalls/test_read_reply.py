"""Hostile replies, dialect by dialect: what counts as the one valid call, and which fault the rest is."""

from __future__ import annotations

import time

import pytest
from replies import JSON, MARKED, TEXT, THINK, VALID, hermes, llama, plain, read

from tuneloop.tasks.tictactoe.prompt import TOOLS
from tuneloop.toolcalls import Fault, ToolCall, calls_as_json, dialect_names, load_dialect, read_reply


@pytest.mark.parametrize("name", dialect_names())
def test_the_plain_case_is_read(name):
    assert read(name, VALID[name]) == 5
    assert read(name, f"\n  {VALID[name]}\n") == 5


# Every way in which other readers let something pass as a square, or end with an exception.
BAD_ARGUMENTS = {
    "a float": '{"square": 3.9}',
    "a whole float": '{"square": 5.0}',
    "an exponent": '{"square": 5e0}',
    "true": '{"square": true}',
    "null": '{"square": null}',
    "a text": '{"square": "3"}',
    "a fullwidth digit in a text": '{"square": "３"}',
    "a digit with spaces in a text": '{"square": " 3 "}',
    "a bare fullwidth digit": '{"square": ３}',
    "a plus sign": '{"square": +3}',
    "a leading zero": '{"square": 05}',
    "hexadecimal": '{"square": 0x5}',
    "too large for a float": '{"square": 1e400}',
    "too small for a float": '{"square": -1e400}',
    "NaN": '{"square": NaN}',
    "Infinity": '{"square": Infinity}',
    "minus Infinity": '{"square": -Infinity}',
    "a number of 5,000 digits": '{"square": ' + "5" * 5000 + "}",
    "a nest of 20,000 brackets": '{"square": ' + "[" * 20_000 + "]" * 20_000 + "}",
    "a nest of 20,000 braces": '{"square": ' + '{"a":' * 20_000 + "1" + "}" * 20_001,
    "a list": '{"square": [5]}',
    "an object": '{"square": {"value": 5}}',
    "zero": '{"square": 0}',
    "ten": '{"square": 10}',
    "minus one": '{"square": -1}',
    "minus zero": '{"square": -0}',
    "no argument": "{}",
    "another key": '{"Square": 5}',
    "an extra key": '{"square": 5, "why": "center"}',
    "the key twice": '{"square": 5, "square": 5}',
    "the key twice, once escaped": '{"square": 4, "squar\\u0065": 5}',
    "arguments as a list": "[5]",
    "arguments as a number": "5",
    "arguments as null": "null",
    "arguments as JSON in a text": '"{\\"square\\": 5}"',
    "a trailing comma": '{"square": 5,}',
    "single quotes": "{'square': 5}",
    "a comment": '{"square": 5 /* center */}',
    "a raw NUL": '{"square": 5\0}',
    "a no-break space": '{"square":\u00a05}',
    "a lone surrogate": '{"square": "\ud800"}',
    "an escaped lone surrogate": '{"square": "\\ud800"}',
}

UNCLOSED = {
    "an unclosed nest of 20,000 brackets": '{"square": ' + "[" * 20_000 + "}",
    "a missing brace": '{"square": 5',
    "a text without its end": '{"square": "5}',
}


@pytest.mark.parametrize("name", JSON)
@pytest.mark.parametrize("arguments", BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS.keys())
def test_bad_arguments_in_json(name, arguments):
    assert read(name, JSON[name](arguments)) == "bad_arguments"


@pytest.mark.parametrize("arguments", UNCLOSED.values(), ids=UNCLOSED.keys())
def test_json_that_never_closes_is_bad_between_markers_and_no_call_without(arguments):
    assert read("hermes", hermes(arguments)) == "bad_arguments"
    assert read("llama", llama(arguments)) == "no_call"
    assert read("plain", plain(arguments)) == "no_call"


BAD_VALUES = [
    "3.9", "5.0", "5e0", "true", "True", "null", '"5"', "５", "+5", "05", "0x5", "1e400", "-1e400", "NaN", "Infinity",
    "5" * 5000, "[" * 20_000, "[5]", '{"square": 5}', "0", "10", "-1", "", " ", "five", "5 x", " 5", "5 ", "\t5", "5\r",
    "5\n\n", "\n\n5", "5,", "5;", "5\0", "\u00a05", "\ud800", "5</parameter", "<5>",
]  # fmt: skip


@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("value", BAD_VALUES, ids=lambda value: ascii(value[:20]))
def test_bad_values_in_text(name, value):
    assert read(name, TEXT[name](value)) == "bad_arguments"


@pytest.mark.parametrize("name", VALID)
@pytest.mark.parametrize("tool", ["choose_squares", "Choose_square", "choose", "chооse_square", "tool.choose_square"])
def test_a_call_of_a_tool_that_there_is_not(name, tool):
    """(The fourth name has Cyrillic о.) Comes before the arguments are held against a schema."""
    assert read(name, VALID[name].replace("choose_square", tool)) == "wrong_tool"
    assert read(name, VALID[name].replace("choose_square", tool).replace("5", "99")) == "wrong_tool"


WRONG_SHAPES = [
    "{}", '{"name": "choose_square"}', '{"KEY": {"square": 5}}', '{"name": 5, "KEY": {"square": 5}}',
    '{"name": null, "KEY": {"square": 5}}', '{"name": ["choose_square"], "KEY": {"square": 5}}',
    '{"name": "choose_square", "KEY": {"square": 5}, "id": 1}', '{"name": "other", "KEY": 5}',
    '{"name": "choose_square", "Arguments": {"square": 5}}',
    '{"name": "choose_square", "name": "choose_square", "KEY": {"square": 5}}',
    '{"function": {"name": "choose_square", "KEY": {"square": 5}}}', '{"name": "choose_square" "KEY": {"square": 5}}',
    '{"square": 5}', "{choose_square(5)}",
]  # fmt: skip


@pytest.mark.parametrize("name", JSON)
@pytest.mark.parametrize("shape", WRONG_SHAPES)
def test_an_object_that_is_no_call(name, shape):
    text = shape.replace("KEY", "parameters" if name == "llama" else "arguments")
    assert read(name, f"<tool_call>{text}</tool_call>" if name == "hermes" else text) == "bad_arguments"


def test_llama_and_plain_call_the_arguments_differently():
    assert read("llama", VALID["plain"]) == "bad_arguments"
    assert read("plain", VALID["llama"]) == "bad_arguments"


@pytest.mark.parametrize("name", dialect_names())
@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "5",
        "I choose the center.",
        "choose_square(5)",
        '"choose_square"',
        "[" * 20_000,
        '{"a":' * 20_000,
        "\0",
        "\ud800\udfff",
        "{",
        '{"name": "choose_square", "arguments": {"square": 5}',
        '[{"name": "choose_square", "arguments": {"square": 5}}]',
        'Like this: {"name": "choose_square", "arguments": {"square": 5}}',
        'Like this: {"name": "choose_square", "parameters": {"square": 5}}',
        '{"name": "choose_square", "arguments": {"square": 5}} is my call.',
        "<tool_call",
        "</tool_call>",
        "<TOOL_CALL>{}</TOOL_CALL>",
    ],
    ids=lambda text: ascii(text[:30]),
)
def test_no_call(name, text):
    assert read(name, text) == "no_call"


@pytest.mark.parametrize("name", MARKED)
@pytest.mark.parametrize("json_text", [plain('{"square": 5}'), llama('{"square": 5}')])
def test_a_bare_json_object_is_no_call_where_calls_are_marked(name, json_text):
    assert read(name, json_text) == "no_call"
    assert read(name, f"```json\n{json_text}\n```") == "no_call"


@pytest.mark.parametrize("name", MARKED)
class TestMarkers:
    def test_prose_around_the_call_is_allowed(self, name):
        assert read(name, f"The center is free.\n\n{MARKED[name]}\nGood luck!") == 5

    def test_a_call_that_never_closes_is_no_call(self, name):
        unclosed = MARKED[name].removesuffix("</tool_call>")
        for text in (unclosed, unclosed + "</tool_call", unclosed + "</TOOL_CALL>", "<tool_call>"):
            assert read(name, text) == "no_call"

    def test_two_openings_are_several_calls_whatever_is_between_them(self, name):
        call = MARKED[name]
        several = [
            call + call,
            f"{call}\n<tool_call>",
            f"<tool_call>{call}",
            f"<tool_call>{call}</tool_call>",
            call * 3,
        ]
        several += [f"I write <tool_call> and then {call}", f"{call}<tool_call>{{broken}}</tool_call>"]
        assert {read(name, text) for text in several} == {"several_calls"}

    def test_a_closing_marker_without_partner_is_a_broken_call(self, name):
        assert read(name, f"{MARKED[name]}</tool_call>") == "bad_arguments"
        assert read(name, f"</tool_call>{MARKED[name]}") == "bad_arguments"

    def test_an_empty_call_is_a_broken_one(self, name):
        for body in ("", " \n", "{", "null", "[]"):
            expected = {"bad_arguments", "wrong_tool"} if name == "glm" else {"bad_arguments"}
            assert read(name, f"<tool_call>{body}</tool_call>") in expected

    def test_a_call_in_a_code_fence_is_still_a_call(self, name):
        assert read(name, f"```\n{MARKED[name]}\n```") == 5

    def test_text_beside_the_call_inside_the_markers_is_refused(self, name):
        for text in (
            MARKED[name].replace("</tool_call>", "now</tool_call>"),
            MARKED[name].replace("<tool_call>", "<tool_call>call: "),
        ):
            assert read(name, text) in ("bad_arguments", "wrong_tool")


@pytest.mark.parametrize("name", ["llama", "plain"])
def test_objects_in_a_row_are_several_calls_where_the_reply_is_the_call(name):
    call = VALID[name]
    assert {read(name, separator.join([call, call])) for separator in ("", "\n", "; ", ", ")} == {"several_calls"}
    assert read(name, f"{call} and {call}") == "no_call"


def test_llama_may_write_its_python_tag_first():
    assert read("llama", "<|python_tag|>" + VALID["llama"]) == 5
    assert read("llama", VALID["llama"] + "<|python_tag|>") == "no_call"
    assert read("llama", "<|python_tag|>choose_square.call(square=5)") == "no_call"
    assert read("llama", "<|python_tag|><|python_tag|>" + VALID["llama"]) == "no_call"


def test_plain_may_use_one_json_fence():
    call = VALID["plain"]
    assert read("plain", f"```json\n{call}\n```") == 5
    assert read("plain", f"```json{call}```") == 5
    for text in (f"```\n{call}\n```", f"```python\n{call}\n```", f"```json\n{call}", f"Here: ```json\n{call}\n```"):
        assert read("plain", text) == "no_call"
    assert read("plain", "```json```") == "no_call"
    assert read("plain", "```json") == "no_call"


@pytest.mark.parametrize("name", dialect_names())
@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 200_000,
        "<think>" * 300_000,
        "</think>" * 300_000,
        "[" * 2_000_000,
        '"\\' * 1_000_000,
        '{"a":1}' * 200_000,
        '{"square": 5, ' * 150_000 + "}",
        "<tool_call>" + "<arg_key>" * 200_000 + "</tool_call>",
        "<tool_call>choose_square" + "<arg_key>a</arg_key><arg_value>1</arg_value>" * 50_000 + "</tool_call>",
        "<tool_call><function=choose_square>" + "<parameter=a>1</parameter>" * 80_000 + "</function></tool_call>",
        '<tool_call>{"name":"choose_square","arguments":{"square":' + "9" * 2_000_000 + "}}</tool_call>",
        '<tool_call>{"name":"choose_square","arguments":{"square":"' + "\\" * 2_000_000 + '"}}</tool_call>',
        "{" + '"' * 2_000_000 + "}",
        "\n" * 2_000_000,
    ],
    ids=lambda text: ascii(text[:40]),
)
def test_megabytes_of_text_are_read_in_seconds(name, text):
    """Linear reading takes under half a second here; a quadratic one would take more than an hour."""
    start = time.process_time()
    assert isinstance(read_reply(text, load_dialect(name), TOOLS, THINK), Fault)
    assert time.process_time() - start < 10


def test_the_call_column_is_compact_json_or_null():
    assert (
        calls_as_json(ToolCall("choose_square", {"square": 5})) == '{"name":"choose_square","arguments":{"square":5}}'
    )
    assert calls_as_json(Fault("no_call", "x")) is None
