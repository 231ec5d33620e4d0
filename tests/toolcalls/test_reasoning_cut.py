"""Where reasoning ends and the answer begins."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneloop.toolcalls import Fault, Reasoning, ToolCall, load_dialect, read_reply
from tuneloop.toolcalls.reasoning import CUT, without_reasoning

THINK = Reasoning("<think>", "</think>")
INSIDE = Reasoning("<think>", "</think>", opened_by_prompt=True)
HERMES = load_dialect("hermes")
TOOLS = [
    {
        "type": "function",
        "function": {"name": "go", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    }
]
ONE, TWO = (HERMES.render(ToolCall("go", {"n": n})) for n in (1, 2))


def read(text: str, reasoning: Reasoning | None) -> int | str:
    """The argument of the call that was read, or the name of the fault."""
    reading = read_reply(text, HERMES, TOOLS, reasoning)
    return reading.name if isinstance(reading, Fault) else reading.arguments["n"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ONE, 1),
        (f"<think>\n\n</think>\n\n{ONE}", 1),
        (f"<think>{TWO}</think>{ONE}", 1),
        (f"<think>{TWO}</think>", "no_call"),
        (f"<think>{TWO}</think> I am done.", "no_call"),
        # Never closes.
        (f"<think>{ONE}", "no_call"),
        (f"<think>so {ONE} </think", "no_call"),
        (f"{ONE}<think>was that right?", "no_call"),
        (f"<think>a</think>{ONE}<think>", "no_call"),
        (f"<think>a</think><think>{ONE}", "no_call"),
        # Several stretches of reasoning are all cut.
        (f"<think>a</think><think>{TWO}</think>{ONE}", 1),
        (f"Well. <think>{TWO}</think> {ONE} <think>{TWO}</think>", 1),
        (f"{ONE}<think>a</think>{TWO}", "several_calls"),
        # An opening marker inside reasoning does not nest.
        (f"<think>a<think>b</think>{ONE}", 1),
        (f"<think>a<think>b</think>{ONE}</think>", "no_call"),
        # A stray closing marker: what stands before it may have been reasoning.
        (f"a</think>{ONE}", 1),
        (f"{ONE}</think>", "no_call"),
        (f"{TWO}</think>{ONE}", 1),
        (f"<think>a</think>{ONE}</think>", "no_call"),
        (f"{ONE}<think>a</think>b</think>", "no_call"),
        (f"{TWO}<think>a</think>b</think>{ONE}", 1),
        # Near misses are no markers.
        (f"<Think>{ONE}", 1),
        (f"< think>{ONE}", 1),
    ],
)
def test_a_reply_that_may_open_its_own_reasoning(text, expected):
    assert read(text, THINK) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ONE, "no_call"),
        ("", "no_call"),
        (f"a</think>{ONE}", 1),
        (f"</think>{ONE}", 1),
        (f"{TWO}</think>{ONE}", 1),
        (f"{ONE}</think>", "no_call"),
        # The model repeats the marker that the prompt already wrote.
        (f"<think>a</think>{ONE}", 1),
        (f"a</think>{ONE}<think>b", "no_call"),
        (f"a</think>{ONE}</think>", "no_call"),
    ],
)
def test_a_reply_whose_reasoning_was_opened_by_the_prompt(text, expected):
    assert read(text, INSIDE) == expected


def test_without_reasoning_markers_nothing_is_cut():
    assert read(f"<think>{ONE}", None) == 1


@pytest.mark.parametrize("cut_at", range(1, len(ONE)))
@pytest.mark.parametrize("name", ["hermes", "glm", "qwen3_coder", "llama", "plain"])
def test_no_call_is_read_across_reasoning(name, cut_at):
    """A call with a stretch of reasoning anywhere inside it never becomes whole by cutting."""
    dialect = load_dialect(name)
    call = dialect.render(ToolCall("go", {"n": 1}))
    cut_at = min(cut_at, len(call) - 1)
    text = f"{call[:cut_at]}<think>hm</think>{call[cut_at:]}"
    assert isinstance(read_reply(text, dialect, TOOLS, THINK), Fault)


def test_reasoning_inside_a_text_argument_spoils_the_call():
    tools = [
        {
            "type": "function",
            "function": {"name": "say", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}},
        }
    ]
    for name in ("hermes", "glm", "qwen3_coder"):
        dialect = load_dialect(name)
        text = dialect.render(ToolCall("say", {"text": "left RIGHT"}))
        assert isinstance(read_reply(text, dialect, tools, THINK), ToolCall)
        reading = read_reply(text.replace("RIGHT", "<think>no</think>right"), dialect, tools, THINK)
        assert isinstance(reading, Fault)
        assert reading.name == "bad_arguments"


def test_markers_that_begin_alike_are_told_apart():
    alike = Reasoning("<t", "<t>")
    assert without_reasoning("<t secret <t>open", alike) == "open"


@settings(max_examples=300)
@given(st.lists(st.sampled_from(["<think>", "</think>", "a", ONE, "\n"])), st.booleans())
def test_what_is_left_was_never_inside_reasoning(pieces, opened):
    """Holds the cut against a plain walk over the pieces that keeps what stands outside."""
    kept, inside = [], opened
    for piece in pieces:
        if piece == "</think>":
            if not inside:
                kept.clear()
            inside = False
        elif piece == "<think>":
            inside = True
        elif not inside:
            kept.append(piece)
    left = without_reasoning("".join(pieces), Reasoning("<think>", "</think>", opened))
    if inside:
        assert left is None
    else:
        assert "".join(left.replace(CUT, "").split()) == "".join("".join(kept).split())
