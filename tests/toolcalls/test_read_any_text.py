"""Properties of reading: total on any text, and the way back from writing."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneloop.tasks.tictactoe.prompt import TOOLS
from tuneloop.toolcalls import Fault, Reasoning, ToolCall, calls_as_json, dialect_names, load_dialect, read_reply

REASONING = st.sampled_from([None, Reasoning("<think>", "</think>"), Reasoning("<think>", "</think>", True)])
NAMES = st.sampled_from(dialect_names())
ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=[]))

PIECES = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "<function=", "</function>", "<parameter=", "</parameter>", "<|python_tag|>", "```json", "```", "choose_square",
    "square", '"name"', '"arguments"', '"parameters"', '"square": 5', '"', "\\", "\\u0061", "\\ud800", "{", "}", "[",
    "]", ":", ",", "5", "0", "10", "1e400", "NaN", "true", "null", ".0", "-", "+", "５", " ", "\n", "\0", "\ud800", ">",
    "9" * 5000, "[" * 2000,
]  # fmt: skip


def check(text: str, name: str, reasoning: Reasoning | None) -> ToolCall | Fault:
    """Reads twice and holds the result against what it must be, whatever the text."""
    reading = read_reply(text, load_dialect(name), TOOLS, reasoning)
    assert reading == read_reply(text, load_dialect(name), TOOLS, reasoning)
    if isinstance(reading, ToolCall):
        assert reading.name == "choose_square"
        assert list(reading.arguments) == ["square"]
        assert type(reading.arguments["square"]) is int
        assert 1 <= reading.arguments["square"] <= 9
        assert str(reading.arguments["square"]) in text
        calls_as_json(reading).encode("utf-8")
    else:
        assert isinstance(reading, Fault)
        assert reading.name in ("no_call", "several_calls", "wrong_tool", "bad_arguments")
        reading.detail.encode("utf-8")
    return reading


@given(ANY_TEXT, NAMES, REASONING)
def test_any_text_gives_one_call_or_one_fault(text, name, reasoning):
    check(text, name, reasoning)


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=30), NAMES, REASONING)
def test_any_heap_of_format_pieces_gives_one_call_or_one_fault(pieces, name, reasoning):
    check("".join(pieces), name, reasoning)


@settings(max_examples=300)
@given(st.integers(1, 9), NAMES, REASONING, st.integers(0, 2**32), st.integers(1, 4))
def test_a_valid_call_with_random_edits_gives_one_call_or_one_fault(square, name, reasoning, seed, edits):
    text = load_dialect(name).render(ToolCall("choose_square", {"square": square}))
    draw = random.Random(seed)
    for _ in range(edits):
        start = draw.randrange(len(text) + 1)
        end = min(len(text), start + draw.choice([0, 0, 1, 1, 5, 20]))
        text = text[:start] + draw.choice(["", text[start:end] * 2, draw.choice(PIECES)]) + text[end:]
    check(text, name, reasoning)


@given(st.integers(1, 9), NAMES, ANY_TEXT, ANY_TEXT)
def test_prose_never_adds_a_second_call_or_changes_the_first(square, name, before, after):
    """Where the dialect marks calls, prose without markers around the call leaves it as it is."""
    dialect = load_dialect(name)
    if name in ("llama", "plain") or any("tool_call" in text for text in (before, after)):
        return
    call = ToolCall("choose_square", {"square": square})
    assert read_reply(before + dialect.render(call) + after, dialect, TOOLS, None) == call


TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
VALUES = {
    "text": (TEXT, {"type": "string"}),
    "count": (st.integers(-(10**30), 10**30), {"type": "integer"}),
    "ratio": (st.floats(allow_nan=False, allow_infinity=False), {"type": "number"}),
    "flag": (st.booleans(), {"type": "boolean"}),
    "nothing": (st.none(), {"type": "null"}),
    "list": (st.lists(st.one_of(TEXT, st.integers(), st.none())), {"type": "array"}),
    "map": (st.dictionaries(TEXT, st.integers()), {"type": "object", "additionalProperties": {"type": "integer"}}),
    "word": (st.sampled_from(["null", "5", " spaced ", "\nlines\n"]), {"enum": ["null", "5", " spaced ", "\nlines\n"]}),
    "maybe": (st.text("ab \n"), {"anyOf": [{"type": "string"}, {"type": "null"}]}),
    "either": (st.text("01"), {"type": ["string", "integer"]}),
    "fixed": (st.just("5"), {"const": "5"}),
}
RICH = {
    "type": "function",
    "function": {
        "name": "report",
        "parameters": {"type": "object", "properties": {key: schema for key, (_, schema) in VALUES.items()}},
    },
}
ARGUMENTS = st.fixed_dictionaries({}, optional={key: values for key, (values, _) in VALUES.items()})


@settings(max_examples=200)
@pytest.mark.parametrize("name", dialect_names())
@given(arguments=ARGUMENTS)
def test_what_a_dialect_writes_it_reads_back(name, arguments):
    dialect, call = load_dialect(name), ToolCall("report", arguments)
    try:
        text = dialect.render(call)
    except ValueError:
        assert re.search("</?(tool_call|function|parameter|arg_key|arg_value)", str(arguments))
        return
    assert read_reply(text, dialect, [RICH], None) == call


@pytest.mark.parametrize("marker", ["<tool_call>", "</tool_call>", '"</tool_call>', "\\<tool_call>"])
def test_json_quotes_its_own_markers(marker):
    call = ToolCall("report", {"text": f"a{marker}b", "map": {marker: 1}})
    assert read_reply(load_dialect("hermes").render(call), load_dialect("hermes"), [RICH], None) == call
