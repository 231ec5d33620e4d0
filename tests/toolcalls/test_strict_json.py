"""Decoding JSON from a reply: only JSON, and only values that can be written back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneloop.toolcalls.strict_json import MAX_DEPTH, MAX_DIGITS, decode, decode_first, nesting


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1" * 5000, "01", "+1", "1.", ".5", "５", "'a'",
        "{a: 1}", '{"a": 1, "a": 1}', '{"b": {"a": 1, "a": 2}}', "[1,]", "[1] x", "1 2", "\ufeff1", "\u00a01", '"\n"',
        '"a', "[", "]", "[" * 20_000, "[" * 20_000 + "]" * 20_000, '{"a":' * 500 + "1" + "}" * 500, "tru",
        "undefined", "\0", "\ud800",
    ],
    ids=lambda text: ascii(text[:20]),
)  # fmt: skip
def test_what_is_no_json_or_has_no_way_back_is_a_value_error(text):
    with pytest.raises(ValueError):
        decode(text)


def test_the_bounds_are_the_documented_ones():
    assert decode("9" * MAX_DIGITS) == int("9" * MAX_DIGITS)
    assert decode("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    for text in ("9" * (MAX_DIGITS + 1), "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)):
        with pytest.raises(ValueError):
            decode(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(JSON, st.sampled_from([None, 2]), st.booleans())
def test_every_json_value_is_decoded_with_its_types(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert repr(decode(f"\n {text}\t")) == repr(value)
    assert nesting(text)[1] == 0


def test_the_text_after_the_first_value_is_handed_back():
    assert decode_first(' {"a": 1} \n; {"b": 2} ') == ({"a": 1}, '; {"b": 2}')


def test_brackets_in_strings_do_not_nest():
    assert nesting('["[[[", {"}": "\\"{"}]') == (2, 0)
    assert nesting('["[[[", {"a": [') == (3, 3)
    assert nesting('"[[[') == (0, 0)
