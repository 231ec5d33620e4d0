"""JSON (RFC 8259) from a reply: nothing but JSON, and only values that can be written back."""

from __future__ import annotations

import json
import math
import re
from typing import Any

WHITESPACE = " \t\n\r"
"""The four characters that JSON allows between its tokens."""

MAX_DEPTH = 64
MAX_DIGITS = 300
"""Bounds that keep decoding, validating and printing away from the interpreter's own limits."""

# A string that never ends matches up to the end of the text: each character is looked at once.
_NO_BRACKETS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[^"\[\]{}]++', re.DOTALL)


def decode(text: str) -> Any:
    """The value of `text`. Raises ValueError for anything that is not one JSON value, and for
    duplicate keys, NaN, Infinity, numbers beyond a float or `MAX_DIGITS`, nesting beyond
    `MAX_DEPTH`."""
    value, rest = decode_first(text)
    if rest:
        raise ValueError(f"text after the value: {rest[:20]!a}")
    return value


def decode_first(text: str) -> tuple[Any, str]:
    """The JSON value that `text` starts with, and the text after it without white space around it.
    Raises ValueError as `decode` does."""
    text = text.strip(WHITESPACE)
    if nesting(text)[0] > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    value, end = _DECODER.raw_decode(text)
    return value, text[end:].lstrip(WHITESPACE)


def nesting(text: str) -> tuple[int, int]:
    """How deep the brackets and braces outside strings go in `text`, and how many stay open at its end."""
    depth = deepest = 0
    for bracket in _NO_BRACKETS.sub("", text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest, depth


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key occurs twice")
    return value


def _int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of more than {MAX_DIGITS} digits")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number beyond the range of a float")
    return value


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_int, parse_float=_float, parse_constant=_constant, strict=True
)
