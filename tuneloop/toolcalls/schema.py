"""Holding a call's arguments against the tool's JSON Schema: one validator for all dialects.

The rules are those of JSON Schema 2020-12 (library: jsonschema), made stricter where it is lenient:
an integer is written without a point or exponent (5.0 is none); `enum` and `const` tell 5, 5.0 and
true apart; an object whose schema says nothing of additional properties may have none. Each object
schema counts by itself for that, so a schema that spreads one object's properties over `allOf` has
to say `additionalProperties` in its parts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend
from referencing import Registry

from tuneloop.toolcalls.contract import Tool


def parameters_of(tools: Sequence[Tool], name: str) -> Mapping[str, Any] | None:
    """The JSON Schema of the arguments of the tool called `name`; None if there is no such tool.
    A tool that declares no parameters takes none."""
    for tool in tools:
        if tool["function"]["name"] == name:
            return {"type": "object", "properties": {}, **(tool["function"].get("parameters") or {})}
    return None


def problem_with(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str | None:
    """What is wrong with `arguments`, in at most 200 characters, or None if they fit `schema`."""
    try:
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except ValueError:
        return "a text that is not valid Unicode"
    # An empty registry: a `$ref` to elsewhere is never fetched.
    error = next(_STRICT(schema, registry=Registry()).iter_errors(arguments), None)
    return None if error is None else f"{error.json_path}: {error.message}"[:200]


def _is_integer(_checker: Any, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _as_written(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _enum(_validator: Any, allowed: Sequence[Any], value: Any, _schema: Any) -> Iterator[ValidationError]:
    if _as_written(value) not in map(_as_written, allowed):
        yield ValidationError(f"{value!r} is not one of {allowed!r}")


def _const(_validator: Any, allowed: Any, value: Any, _schema: Any) -> Iterator[ValidationError]:
    if _as_written(value) != _as_written(allowed):
        yield ValidationError(f"{value!r} is not {allowed!r}")


_OPENING_WORDS = ("additionalProperties", "patternProperties", "unevaluatedProperties")


def _properties(validator: Any, properties: Any, value: Any, schema: Mapping[str, Any]) -> Iterator[ValidationError]:
    yield from Draft202012Validator.VALIDATORS["properties"](validator, properties, value, schema)
    if isinstance(value, dict) and not any(word in schema for word in _OPENING_WORDS):
        for key in value:
            if key not in properties:
                yield ValidationError(f"there is no argument {key!r}")


_STRICT = extend(
    Draft202012Validator,
    {"enum": _enum, "const": _const, "properties": _properties},
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer),
)
