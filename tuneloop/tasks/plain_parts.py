"""What a plain task is made of, held against what the loop can do with it. All problems are UserErrors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from jsonschema import Draft202012Validator, SchemaError

from tuneloop.errors import UserError
from tuneloop.tasks.plain_reward import HIGHEST, LOWEST
from tuneloop.toolcalls.contract import FaultName, Tool

FAULTS = get_args(FaultName)


def ordered_outcomes(outcomes: Mapping[str, float]) -> dict[str, float]:
    """`outcomes` (name → least reward) lowest first."""
    for name, least in outcomes.items():
        if isinstance(least, bool) or not isinstance(least, int | float) or not LOWEST <= least <= HIGHEST:
            raise UserError(f"outcomes: {name!r} must start at a number from {LOWEST:g} to {HIGHEST:g} (got {least!r})")
    if len(set(outcomes.values())) < len(outcomes):
        raise UserError(f"outcomes: two of them start at the same reward ({dict(outcomes)})")
    return dict(sorted(outcomes.items(), key=lambda pair: pair[1]))


def measures_of(named: Mapping[str, float]) -> dict[str, frozenset[str]]:
    """`valid`, every readable reply, and the highest outcome by its own name."""
    best = list(named)[-1]
    return {"valid": frozenset(named)} | ({best: frozenset({best})} if len(named) > 1 else {})


def require_names(named: Mapping[str, float], measures: Mapping[str, frozenset[str]]) -> None:
    """Names become columns and metrics: none may be two things."""
    if not named:
        raise UserError("outcomes: there must be one at least")
    for name in (*named, *measures):
        if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise UserError(f"outcomes and measures: {name!r} must be of small letters, digits and _")
    if taken := set(named) & set(FAULTS):
        raise UserError(f"outcomes: {sorted(taken)[0]} is the name of a fault, which a reward function never sees")
    if taken := set(measures) & {"reward", "shares", "length", "replies", "step"}:
        raise UserError(f"measures: {sorted(taken)[0]} is the name of another number; choose another")
    for name, codes in measures.items():
        if not codes or (unknown := codes - set(named) - set(FAULTS)):
            what = f"there is no outcome {sorted(unknown)[0]!r}" if codes else "it counts no outcome"
            raise UserError(f"measures: {name}: {what}")


def require_tools(tools: Sequence[Tool]) -> None:
    """Well-formed definitions, each of an object of arguments."""
    names = []
    for definition in tools:
        try:
            function = definition["function"]
            names.append(function["name"])
            schema = function.get("parameters") or {"type": "object"}
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise UserError(f"tools: {names[-1]}: {error.json_path} of its schema: {error.message}") from None
        except (TypeError, KeyError, AttributeError):
            raise UserError(
                f"tools: {str(definition)[:120]!r} is no tool; make one with tuneloop.tasks.plain.tool(…)"
            ) from None
        if not isinstance(names[-1], str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", names[-1]):
            raise UserError(f"tools: {names[-1]!r} is no name for a tool; use letters, digits and _")
        if schema.get("type") != "object":
            raise UserError(f"tools: {names[-1]}: its schema must have the type object")
    if not names or len(set(names)) < len(names):
        raise UserError("tools: there must be one at least, each with a name of its own")


def answer_tool(output: Mapping[str, Any]) -> Tool:
    """An output schema as the one tool through which it is given."""
    if not isinstance(output, Mapping) or output.get("type") != "object":
        raise UserError("output: the schema must be that of an object: {'type': 'object', 'properties': …}")
    function = {"name": "answer", "description": "Give the answer.", "parameters": dict(output)}
    return {"type": "function", "function": function}
