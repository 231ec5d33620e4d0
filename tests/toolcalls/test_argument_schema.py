"""The validator: JSON Schema, and stricter where JSON Schema is lenient."""

from __future__ import annotations

import pytest

from tuneloop.toolcalls.schema import parameters_of, problem_with


def fits(value, schema) -> bool:
    return problem_with({"a": value}, {"type": "object", "properties": {"a": schema}}) is None


@pytest.mark.parametrize("value", [5.0, True, False, "5", None, [5], {"square": 5}, 5.5, -0.0])
def test_an_integer_is_only_what_is_written_as_one(value):
    assert not fits(value, {"type": "integer"})


def test_an_integer_within_its_bounds_fits():
    assert [n for n in range(-3, 13) if fits(n, {"type": "integer", "minimum": 1, "maximum": 9})] == list(range(1, 10))


def test_a_number_is_an_integer_or_a_float_but_no_bool():
    assert fits(5, {"type": "number"}) and fits(5.5, {"type": "number"})
    assert not fits(True, {"type": "number"})


@pytest.mark.parametrize("word", ["enum", "const"])
def test_listed_values_are_compared_as_written(word):
    schema = {word: [1] if word == "enum" else 1}
    assert fits(1, schema)
    assert not fits(1.0, schema) and not fits(True, schema) and not fits("1", schema)


SQUARE = {"type": "object", "properties": {"square": {"type": "integer"}}, "required": ["square"]}


@pytest.mark.parametrize("arguments", [{}, {"Square": 5}, {"square": 5, "why": "x"}, {"square ": 5}, {"": 5}])
def test_no_missing_and_no_extra_key_although_the_schema_forgets_to_say_so(arguments):
    assert "additionalProperties" not in SQUARE
    assert problem_with(arguments, SQUARE) is not None


def test_the_extra_key_rule_also_holds_inside_an_object_and_a_list():
    inner = {"type": "object", "properties": {"x": {"type": "integer"}}}
    assert fits({"x": 1}, inner) and not fits({"x": 1, "y": 2}, inner)
    assert not fits([{"x": 1}, {"y": 2}], {"type": "array", "items": inner})


def test_a_schema_that_says_more_keys_are_welcome_is_believed():
    assert problem_with({"square": 5, "why": "x"}, SQUARE | {"additionalProperties": {"type": "string"}}) is None
    assert problem_with({"square": 5, "why": 1}, SQUARE | {"additionalProperties": {"type": "string"}}) is not None


def test_a_tool_without_parameters_takes_no_arguments():
    for function in ({"name": "go"}, {"name": "go", "parameters": {}}, {"name": "go", "parameters": None}):
        schema = parameters_of([{"type": "function", "function": function}], "go")
        assert problem_with({}, schema) is None
        assert problem_with({"n": 1}, schema) is not None


def test_a_name_that_no_tool_has_gives_no_schema():
    tools = [{"type": "function", "function": {"name": "go"}}]
    assert parameters_of(tools, "Go") is None and parameters_of([], "go") is None


def test_a_text_that_no_file_could_hold_does_not_fit():
    assert not fits("\ud800", {"type": "string"})
    assert problem_with({"\udc80": 1}, {"type": "object", "additionalProperties": True}) is not None


def test_the_problem_is_short_and_names_the_place():
    problem = problem_with({"a": "x" * 10_000}, {"type": "object", "properties": {"a": {"type": "integer"}}})
    assert len(problem) <= 200
    assert problem.startswith("$.a: ")
