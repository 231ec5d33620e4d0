"""A second reader of replies, for the oracles of tasks: text → the one valid call, or the fault.

Nothing here is shared with `tuneloop.toolcalls`, and the ways are different where they can be: reasoning is cut by
splitting at its closing marker, tags are read by regular expressions, and arguments are held against plain sets.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tuneloop.errors import UserError
from tuneloop.toolcalls.contract import Reasoning

Tools = Mapping[str, Mapping[str, range | frozenset[str]]]
"""By tool and argument, the whole numbers or the texts that the argument can be; every argument is required."""

Found = tuple[str, dict[str, Any]] | str
"""A valid call as (tool, arguments), or the name of a fault."""

WHITE = " \t\n\r"


def second_reading(text: str, reasoning: Reasoning | None, dialect: str, tools: Tools) -> Found:
    """What the reply `text` says. Never raises for any text; UserError for a dialect that has no reader here."""
    if dialect not in READERS:
        raise UserError(
            f"the replies are written in the dialect {dialect!r}, which the check of rewards cannot read "
            f"(it reads {', '.join(READERS)}); add a reader to tuneloop/tasks/second_reader.py"
        )
    answer = visible(text, reasoning)
    return "no_call" if answer is None else READERS[dialect](answer, tools)


def visible(text: str, reasoning: Reasoning | None) -> str | None:
    """The reply without its reasoning; None if a reasoning never closes.

    A closing marker without an opening one takes everything before it along: the reply may have begun inside its
    reasoning.
    """
    if reasoning is None:
        return text
    *closed, rest = ((reasoning.open if reasoning.opened_by_prompt else "") + text).split(reasoning.close)
    if reasoning.open in rest:
        return None
    said: list[str] = []
    for part in closed:
        if reasoning.open in part:
            said.append(part[: part.index(reasoning.open)])
        else:
            said = []
    # A delete character has no place in a call, so none can be read across a cut.
    return "\x7f".join(part for part in (*said, rest) if part.strip())


def _hermes(answer: str, tools: Tools) -> Found:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, white space free inside the markers."""
    body, fault = _between_markers(answer)
    return fault or _from_json(body, "arguments", tools)


def _plain(answer: str, tools: Tools) -> Found:
    """The whole answer is `{"name": …, "arguments": {…}}`, which may stand in one ```json fence."""
    fenced = re.fullmatch(rf"[{WHITE}]*```json(.*)```[{WHITE}]*", answer, re.DOTALL)
    return _bare(fenced[1] if fenced else answer, "arguments", tools)


def _llama(answer: str, tools: Tools) -> Found:
    """The whole answer is `{"name": …, "parameters": {…}}`; `<|python_tag|>` may stand before it."""
    return _bare(re.sub(rf"\A[{WHITE}]*<\|python_tag\|>", "", answer), "parameters", tools)


_FUNCTION = re.compile(rf"[{WHITE}]*<function=([^>]*)>(.*)</function>[{WHITE}]*", re.DOTALL)
_PARAMETER = rf"<parameter=([a-z]+)>\n?([A-Za-z0-9_]+)\n?</parameter>[{WHITE}]*"


def _qwen3_coder(answer: str, tools: Tools) -> Found:
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`, white space free between
    the tags; a line break at either end of a value does not count."""
    body, fault = _between_markers(answer)
    if fault:
        return fault
    if len(body.split("<function=")) > 2:
        return "several_calls"
    function = _FUNCTION.fullmatch(body)
    return "bad_arguments" if function is None else _from_tags(function[1], function[2], _PARAMETER, tools)


_NAME = re.compile(rf"[{WHITE}]*([^<>{WHITE}]+)[{WHITE}]*(|<arg_key>.*)", re.DOTALL)
_PAIR = rf"<arg_key>([a-z]+)</arg_key>[{WHITE}]*<arg_value>([A-Za-z0-9_]+)</arg_value>[{WHITE}]*"


def _glm(answer: str, tools: Tools) -> Found:
    """`<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`, white space free around the
    name and between the tags. Values are bare text."""
    body, fault = _between_markers(answer)
    if fault:
        return fault
    named = _NAME.fullmatch(body)
    return "bad_arguments" if named is None else _from_tags(named[1], named[2], _PAIR, tools)


READERS: dict[str, Callable[[str, Tools], Found]] = {
    "glm": _glm,
    "hermes": _hermes,
    "llama": _llama,
    "plain": _plain,
    "qwen3_coder": _qwen3_coder,
}
"""By dialect: an answer without its reasoning → what it says."""


def _between_markers(answer: str) -> tuple[str, str]:
    """(what stands between the only `<tool_call>` and the only `</tool_call>`, no fault), or ("", fault). The markers
    are reserved: an opening one is a call wherever it stands, an unpartnered closing one spoils it."""
    before, *openings = answer.split("<tool_call>")
    if len(openings) != 1:
        return "", "several_calls" if openings else "no_call"
    body, *rest = openings[0].split("</tool_call>")
    if not rest:
        return "", "no_call"
    return (body, "") if len(rest) == 1 and "</tool_call>" not in before else ("", "bad_arguments")


def _from_tags(name: str, inside: str, pair: str, tools: Tools) -> Found:
    """The call of `name` whose arguments are nothing but repetitions of `pair` (key, bare text)."""
    if name not in tools:
        return "wrong_tool"
    if re.fullmatch(f"[{WHITE}]*(?:{pair})*", inside) is None:
        return "bad_arguments"
    pairs = [(key, _bare_value(text, tools[name].get(key))) for key, text in re.findall(pair, inside)]
    return _checked(name, pairs, tools)


def _bare_value(text: str, allowed: range | frozenset[str] | None) -> Any:
    """A number where numbers are allowed, if it is written as one."""
    whole = isinstance(allowed, range) and re.fullmatch("[1-9][0-9]{0,299}", text)
    return int(text) if whole else text


def _bare(answer: str, key: str, tools: Tools) -> Found:
    """One JSON object and nothing else."""
    answer = answer.strip(WHITE)
    if not (answer.startswith("{") and answer.endswith("}")):
        return "no_call"
    depth, deepest, end, quoted, skip = 0, 0, 0, False, False
    for at, character in enumerate(answer, 1):
        if skip:
            skip = False
        elif quoted:
            skip, quoted = character == "\\", character != '"'
        elif character == '"':
            quoted = True
        elif character in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "}]":
            depth -= 1
            end = end or (at if depth == 0 else 0)
    if depth > 0:
        return "no_call"
    found = "bad_arguments" if deepest > 64 else _from_json(answer[:end], key, tools)
    rest = answer[end:].strip(WHITE)
    if not rest or deepest > 64 or not _is_json(answer[:end]):
        return found
    return "several_calls" if rest.lstrip(WHITE + ",;").startswith("{") else "no_call"


def _from_json(text: str, key: str, tools: Tools) -> Found:
    """The call that `text` is: an object of exactly a name and, under `key`, an object of arguments."""
    try:
        written = _json(text)
    except (ValueError, RecursionError):
        return "bad_arguments"
    if not isinstance(written, dict) or sorted(written) != sorted(("name", key)):
        return "bad_arguments"
    name, arguments = written["name"], written[key]
    if type(name) is not str or type(arguments) is not dict:
        return "bad_arguments"
    return _checked(name, arguments.items(), tools) if name in tools else "wrong_tool"


def _checked(name: str, pairs: Iterable[tuple[str, Any]], tools: Tools) -> Found:
    """The call if every argument of the tool is there once, is allowed, and there is none beside them."""
    pairs = list(pairs)
    due = tools[name]
    fits = sorted(key for key, _ in pairs) == sorted(due) and all(_allowed(value, due[key]) for key, value in pairs)
    return (name, dict(pairs)) if fits else "bad_arguments"


def _allowed(value: Any, allowed: range | frozenset[str]) -> bool:
    return type(value) is (int if isinstance(allowed, range) else str) and value in allowed


def _is_json(text: str) -> bool:
    try:
        _json(text)
    except (ValueError, RecursionError):
        return False
    return True


def _json(text: str) -> Any:
    """The JSON value of `text`; ValueError for what is none or beyond the documented bounds: no key twice, 300
    characters an integer, finite floats, 64 levels of nesting."""
    value = json.loads(text, object_pairs_hook=_once, parse_int=_whole, parse_float=_finite, parse_constant=_finite)
    level, depth = [value], 0
    while containers := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [part for item in containers for part in (item.values() if isinstance(item, dict) else item)]
    if depth > 64:
        raise ValueError("nested too deeply")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def _whole(digits: str) -> int:
    if len(digits) > 300:
        raise ValueError("too many digits")
    return int(digits)


def _finite(digits: str) -> float:
    if not math.isfinite(float(digits)):
        raise ValueError("not a finite number")
    return float(digits)
