"""Making up arguments that a tool's JSON Schema allows: for the warm start, which teaches a format and no answers,
and for the player that answers at random."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from tuneloop.errors import UserError
from tuneloop.toolcalls.contract import Tool, ToolCall
from tuneloop.toolcalls.schema import parameters_of, problem_with

TRIES = 30
QUOTED_WORDS = 16
"""Words of the input that a demonstration's reasoning quotes: a reply of nano's has 32 tokens."""
MOST_WORDS = 4
"""Words of a text that is made up by quoting."""


def random_call(tools: Sequence[Tool], random: Random, texts: Sequence[str], known: Sequence[ToolCall]) -> ToolCall:
    """A valid call of one of `tools`, drawn with equal chances, its arguments drawn by the schema.

    A text without `enum` or `examples` quotes some words of `texts`, whichever. Where that gives nothing that the
    schema allows (a `pattern`, say), the arguments of one of the `known` calls of the tool are taken; UserError
    where there are none.
    """
    name = random.choice(tools)["function"]["name"]
    schema = parameters_of(tools, name)
    for _ in range(TRIES):
        arguments = _value(schema, random, texts)
        if isinstance(arguments, dict) and problem_with(arguments, schema) is None:
            return ToolCall(name, arguments)
    calls = [call for call in known if call.name == name]
    if not calls:
        raise UserError(
            f"no arguments of {name} could be made up from its schema; list some under `examples` in the schema of the "
            "property that is hard to meet, or give records an `answer`"
        )
    return random.choice(calls)


def quoted(texts: Sequence[str]) -> str | None:
    """The first words of some texts, line by line as they stand there; None where there are none."""
    lines, left = [], QUOTED_WORDS
    for line in (line for text in texts for line in text.splitlines() if line.strip()):
        words = line.split()[:left]
        if not words:
            break
        # A whole line as it is: then nano, whose tokens are whole phrases, quotes it in as many tokens.
        lines.append(line if len(line.split()) <= left else " ".join(words))
        left -= len(words)
    return "\n".join(lines) or None


def _value(schema: Any, random: Random, texts: Sequence[str]) -> Any:
    """A value that may well fit `schema`; None where it says nothing that is understood here."""
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return schema["const"]
    for key in ("enum", "examples"):
        if schema.get(key):
            return random.choice(schema[key])
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return _value(random.choice(schema[key]), random, texts)
    kind = schema.get("type")
    match random.choice(kind) if isinstance(kind, list) and kind else kind:
        case "object":
            required = schema.get("required", ())
            properties = schema.get("properties", {})
            return {
                key: _value(part, random, texts)
                for key, part in properties.items()
                if key in required or random.random() < 0.5
            }
        case "array":
            fewest = schema.get("minItems", 0)
            count = random.randint(fewest, schema.get("maxItems", fewest + 2))
            return [_value(schema.get("items"), random, texts) for _ in range(count)]
        case "string":
            return _quote(random, texts)
        case "integer":
            low, high = _bounds(schema)
            step = schema.get("multipleOf", 1)
            return random.randint(math.ceil(low / step), max(math.ceil(low / step), math.floor(high / step))) * step
        case "number":
            return round(random.uniform(*_bounds(schema)), 2)
        case "boolean":
            return random.random() < 0.5
        case _:
            return None


def _bounds(schema: Mapping[str, Any]) -> tuple[float, float]:
    """Where the schema names one end alone, the other is 100 away; without any, 0 to 100."""
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None:
        low = 0 if high is None else high - 100
    return low, low + 100 if high is None else high


def _quote(random: Random, texts: Sequence[str]) -> str:
    words = random.choice(texts).split() if texts else []
    if not words:
        return "text"
    start = random.randrange(len(words))
    return " ".join(words[start : start + random.randint(1, MOST_WORDS)]).strip(".,;:!?()\"'")
