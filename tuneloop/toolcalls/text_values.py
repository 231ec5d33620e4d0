"""Arguments that a dialect writes as bare text: the tool's schema says what they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tuneloop.artifacts import compact_json
from tuneloop.toolcalls.strict_json import WHITESPACE, decode


def typed(texts: Iterable[tuple[str, str]], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments given as (name, text) pairs, decoded as the tool's `schema` says.

    Where the schema allows a string the text is the value, as it stands. Everywhere else it must be
    exactly one JSON value with no white space around it: for an integer `5`, but not `５`, ` 5`,
    `5.0`, `+5` or `05`. An argument that the schema does not know stays text. Raises ValueError for
    any other text, and for an argument given twice.
    """
    properties = schema.get("properties", {})
    arguments: dict[str, Any] = {}
    for key, text in texts:
        if key in arguments:
            raise ValueError(f"argument {key[:80]!a} occurs twice")
        try:
            arguments[key] = text if key not in properties or _takes_text(properties[key]) else _value(text)
        except ValueError as error:
            raise ValueError(f"argument {key[:80]!a} is not usable JSON: {error}") from None
    return arguments


def value_text(value: Any, reserved: Sequence[str]) -> str:
    """`value` as `typed` reads it. Raises ValueError for a text that holds a `reserved` marker:
    these dialects have no way to quote one."""
    text = value if isinstance(value, str) else compact_json(value)
    for marker in reserved:
        if marker in text:
            raise ValueError(f"an argument that holds {marker} cannot be written in this dialect")
    return text


def _value(text: str) -> Any:
    if text != text.strip(WHITESPACE):
        raise ValueError("white space around the value")
    return decode(text)


def _takes_text(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return False
    if "type" in schema:
        return "string" in ([schema["type"]] if isinstance(schema["type"], str) else schema["type"])
    if "const" in schema:
        return isinstance(schema["const"], str)
    if "enum" in schema:
        return any(isinstance(value, str) for value in schema["enum"])
    return any(_takes_text(branch) for word in ("anyOf", "oneOf") for branch in schema.get(word, ()))
