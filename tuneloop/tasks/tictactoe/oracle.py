"""A second opinion on every reply: outcome and reward from the board and the text alone.

Nothing here is shared with the code that it checks (`board`, `reward`, `tuneloop.toolcalls`), and
the ways are different where they can be, so that a bug on either side shows up as a disagreement:
lines are sums in a magic square, play is searched over sets of numbers, reasoning is cut by
splitting at its closing marker, and calls are found by one regular expression a dialect.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import cache
from itertools import combinations
from typing import Any

from tuneloop.errors import UserError
from tuneloop.toolcalls.contract import Reasoning

MAGIC = (2, 7, 6, 9, 5, 1, 4, 3, 8)
"""The Lo Shu square, row by row: three cells are a line exactly if their numbers sum to 15."""

REWARDS = {
    "no_call": -1.0,
    "several_calls": -1.0,
    "wrong_tool": -1.0,
    "bad_arguments": -1.0,
    "occupied": -1.0,
    "legal": 0.0,
    "optimal": 0.8,
    "win": 1.0,
}

FAULTS = ("no_call", "several_calls", "wrong_tool", "bad_arguments")


def oracle(shown: str, text: str, reasoning: Reasoning | None, dialect: str) -> tuple[str, float]:
    """Outcome and reward of the reply `text` on the board `shown` (`X.O/.../XO.`, X to move, game open).

    Never raises for any text. Raises UserError for a dialect that it cannot read.
    """
    if dialect not in READERS:
        raise UserError(
            f"the replies are written in the dialect {dialect!r}, which the check of rewards cannot read "
            f"(it reads {', '.join(READERS)}); add a reader to tuneloop/tasks/tictactoe/oracle.py"
        )
    answer = outside_reasoning(text, reasoning)
    square = "no_call" if answer is None else READERS[dialect](answer)
    outcome = square if isinstance(square, str) else move(shown, square)
    return outcome, REWARDS[outcome]


def move(shown: str, square: int) -> str:
    """The outcome of X taking `square` (1–9, row by row)."""
    cells = shown.replace("/", "")
    own, other = (frozenset(n for n, cell in zip(MAGIC, cells) if cell == mark) for mark in "XO")
    number = MAGIC[square - 1]
    if number in own | other:
        return "occupied"
    if has_line(own | {number}):
        return "win"
    return "optimal" if -_score(other, own | {number}) == _score(own, other) else "legal"


POINTS = {"no_call": -1.0, "several_calls": -1.0, "wrong_tool": -1.0, "bad_arguments": -1.0, "occupied": -1.0} | {
    "lost": 0.0,
    "drawn": 0.5,
    "won": 1.0,
}
EPISODE_REWARDS = {"end": POINTS, "turn": dict.fromkeys(POINTS)}
"""By `task.reward_at`, the reward of every outcome of a whole game; None where it also depends on the way there."""


def episode_oracle(
    shown: str, turns: list[dict[str, Any]], reasoning: Reasoning | None, dialect: str, reward_at: str
) -> tuple[str, float | None]:
    """Outcome and reward of a whole game from the board `shown`, X to move: played again from the texts of the
    replies, with the opponent's moves as the tool's answers tell them. The move with which O wins is told to nobody;
    a game that ends there counts as lost where O has such a move. A record of turns that is no game from its
    beginning to its end has an outcome that says so, and no reward."""
    cells = shown.replace("/", "")
    earned: list[float] = []
    for number, turn in enumerate(turns, 1):
        outcome, reward = oracle("/".join((cells[:3], cells[3:6], cells[6:])), turn["text"], reasoning, dialect)
        earned.append(reward)
        if reward < 0:
            end = outcome
        else:
            answer = outside_reasoning(turn["text"], reasoning)
            cells = _marked(cells, READERS[dialect](answer), "X")
            end = "won" if outcome == "win" else "drawn" if "." not in cells else None
        if end is None and turn["result"] is None:
            end = "lost" if _can_finish(cells) else "not played to its end"
        if end is not None:
            if number < len(turns) or turn["result"] is not None:
                return "goes on after its end", None
            if end not in POINTS:
                return end, None
            return end, math.fsum(earned) / len(earned) if reward_at == "turn" else POINTS[end]
        told = re.match(r"O takes ([1-9])\.\n", turn["result"])
        if told is None or cells[int(told[1]) - 1] != ".":
            return "O makes no move", None
        cells = _marked(cells, int(told[1]), "O")
        if re.findall(r"[1-9]([XO.])", turn["result"][len(told[0]) :]) != list(cells):
            return "shows another board", None
    return "not played to its end", None


def _marked(cells: str, square: int, mark: str) -> str:
    return "".join(mark if place == square else cell for place, cell in enumerate(cells, 1))


def _can_finish(cells: str) -> bool:
    own = frozenset(n for n, cell in zip(MAGIC, cells) if cell == "O")
    return any(has_line(own | {n}) for n, cell in zip(MAGIC, cells) if cell == ".")


def has_line(numbers: frozenset[int]) -> bool:
    return any(sum(three) == 15 for three in combinations(numbers, 3))


@cache
def _score(own: frozenset[int], other: frozenset[int]) -> int:
    """1, 0 or -1: what the side to move, which holds `own`, reaches against best play."""
    if has_line(other):
        return -1
    free = frozenset(MAGIC) - own - other
    return max((-_score(other, own | {number}) for number in free), default=0)


def outside_reasoning(text: str, reasoning: Reasoning | None) -> str | None:
    """The reply without its reasoning; None if a reasoning never closes.

    A closing marker without an opening one takes everything before it along: the reply may have
    begun inside its reasoning.
    """
    if reasoning is None:
        return text
    if reasoning.opened_by_prompt:
        text = reasoning.open + text
    *closed, last = text.split(reasoning.close)
    if reasoning.open in last:
        return None
    kept: list[str] = []
    for part in closed:
        before, opening, _ = part.partition(reasoning.open)
        kept = [*kept, before] if opening else []
    # A delete character has no place in a call, so none can be read across a cut.
    return "\x7f".join(part for part in [*kept, last] if part.strip())


def read_hermes(answer: str) -> int | str:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, white space free inside the markers."""
    body = _only_call(answer)
    if body in FAULTS:
        return body
    return _square_in(body, "arguments")


_CODER_CALL = re.compile(r"[ \t\n\r]*<function=([^>]*)>(.*)</function>[ \t\n\r]*", re.DOTALL)
_CODER_SQUARE = re.compile(r"[ \t\n\r]*<parameter=square>\n?([1-9])\n?</parameter>[ \t\n\r]*")


def read_qwen3_coder(answer: str) -> int | str:
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`, white space free
    between the tags; a line break at either end of a value does not count."""
    body = _only_call(answer)
    if body in FAULTS:
        return body
    if body.count("<function=") > 1:
        return "several_calls"
    call = _CODER_CALL.fullmatch(body)
    if call is None:
        return "bad_arguments"
    if call[1] != "choose_square":
        return "wrong_tool"
    square = _CODER_SQUARE.fullmatch(call[2])
    return int(square[1]) if square else "bad_arguments"


def read_plain(answer: str) -> int | str:
    """The whole answer is `{"name": …, "arguments": {…}}`, which may stand in one ```json fence."""
    fenced = re.fullmatch(r"[ \t\n\r]*```json(.*)```[ \t\n\r]*", answer, re.DOTALL)
    return _bare_object(fenced[1] if fenced else answer, "arguments")


def read_llama(answer: str) -> int | str:
    """The whole answer is `{"name": …, "parameters": {…}}`; `<|python_tag|>` may stand before it."""
    return _bare_object(re.sub(r"\A[ \t\n\r]*<\|python_tag\|>", "", answer), "parameters")


def _bare_object(answer: str, key: str) -> int | str:
    """One JSON object and nothing else, found by counting brackets outside texts from its `{` to where it closes."""
    answer = answer.strip(" \t\n\r")
    if answer[:1] != "{" or answer[-1:] != "}":
        return "no_call"
    open_now = deepest = 0
    inside = escaped = False
    end = None
    for at, character in enumerate(answer):
        if inside:
            inside = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            inside = True
        elif character in "[{":
            open_now += 1
            deepest = max(deepest, open_now)
        elif character in "]}":
            open_now -= 1
            if open_now == 0 and end is None:
                end = at + 1
    if open_now > 0 or end is None:
        return "no_call"
    rest = answer[end:].strip(" \t\n\r")
    try:
        if deepest > 64:
            raise ValueError("nested too deeply")
        _json(answer[:end])
    except (ValueError, RecursionError):
        return "bad_arguments"
    if rest:
        return "several_calls" if rest.lstrip(" \t\n\r,;").startswith("{") else "no_call"
    return _square_in(answer, key)


def _square_in(text: str, key: str) -> int | str:
    """The square that a JSON object with a name and an object of arguments under `key` chooses, or its fault."""
    try:
        written = _json(text)
    except (ValueError, RecursionError):
        return "bad_arguments"
    if not isinstance(written, dict) or written.keys() != {"name", key}:
        return "bad_arguments"
    name, arguments = written["name"], written[key]
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return "bad_arguments"
    if name != "choose_square":
        return "wrong_tool"
    square = arguments.get("square")
    allowed = list(arguments) == ["square"] and type(square) is int and square in range(1, 10)
    return square if allowed else "bad_arguments"


_GLM_CALL = re.compile(r"[ \t\n\r]*([^<> \t\n\r]+)[ \t\n\r]*(<arg_key>.*)?", re.DOTALL)
_GLM_SQUARE = re.compile(r"<arg_key>square</arg_key>[ \t\n\r]*<arg_value>([1-9])</arg_value>[ \t\n\r]*")


def read_glm(answer: str) -> int | str:
    """`<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`, white space free
    around the name and between the tags. Values are bare text: for a square, one digit."""
    body = _only_call(answer)
    if body in FAULTS:
        return body
    call = _GLM_CALL.fullmatch(body)
    if call is None:
        return "bad_arguments"
    if call[1] != "choose_square":
        return "wrong_tool"
    square = _GLM_SQUARE.fullmatch(call[2] or "")
    return int(square[1]) if square else "bad_arguments"


READERS: dict[str, Callable[[str], int | str]] = {
    "hermes": read_hermes,
    "glm": read_glm,
    "llama": read_llama,
    "plain": read_plain,
    "qwen3_coder": read_qwen3_coder,
}
"""By dialect: the square that an answer chooses, or its fault."""


def _only_call(answer: str) -> str:
    """What stands between the only `<tool_call>` and the only `</tool_call>`, or a fault. The markers
    are reserved: an opening one is a call wherever it stands, an unpartnered closing one spoils it."""
    markers = re.findall("</?tool_call>", answer)
    openings = markers.count("<tool_call>")
    if openings != 1:
        return "several_calls" if openings else "no_call"
    if markers[-1] == "<tool_call>":
        return "no_call"
    return answer.split("<tool_call>")[1].split("</tool_call>")[0] if len(markers) == 2 else "bad_arguments"


def _json(text: str) -> Any:
    """The JSON value of `text`. ValueError for what is none, or beyond the documented bounds of the
    reader: no key twice, 300 characters an integer, finite floats, 64 levels of nesting."""
    value = json.loads(text, object_pairs_hook=_unique, parse_int=_int, parse_float=_float, parse_constant=_float)
    if _depth(value) > 64:
        raise ValueError("nested too deeply")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def _int(digits: str) -> int:
    if len(digits) > 300:
        raise ValueError("too many digits")
    return int(digits)


def _float(digits: str) -> float:
    if not math.isfinite(float(digits)):
        raise ValueError("not a finite number")
    return float(digits)


def _depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)
