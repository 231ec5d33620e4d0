"""Calling a reward function that its task's author wrote, and believing nothing that it gives.

Whatever is wrong with it becomes a UserError that names the record: an exception, a value that is no number, NaN,
a number out of range, an outcome that the task does not list. A run then stops before it trains on that.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any, Literal

from tuneloop.errors import UserError
from tuneloop.tasks.contract import Outcome, Record

LOWEST, HIGHEST = -1.0, 1.0
"""Rewards lie between these; a reply without a usable call earns the lowest."""

SHOWN = 200
"""Characters of a reply or a value that an error shows."""


@dataclass(frozen=True)
class Reply:
    """One readable reply, as a reward function gets it: its one call fits the tool's schema.

    `text` is the whole reply as it was written, reasoning and marks included, without the end token. `finish_reason`
    is "length" where the limit cut it (after the call, or there would be none to read).
    """

    text: str
    name: str
    arguments: dict[str, Any]
    finish_reason: Literal["stop", "length"] = "stop"

    @property
    def output(self) -> dict[str, Any]:
        """The arguments, under the name that suits a task with an output schema."""
        return self.arguments


Reward = Callable[[Record, Reply], "float | Outcome"]


def rewarded(reward: Reward, record: Record, reply: Reply, outcomes: Mapping[str, float]) -> Outcome:
    """The outcome of `reply` by `reward`, which gets copies that are its to keep.

    `outcomes`: the least reward of each, lowest first; a number earns the last whose least it reaches. Raises
    UserError as the module says.
    """
    try:
        earned = reward(deepcopy(record), replace(reply, arguments=deepcopy(reply.arguments)))
    except (Exception, SystemExit) as error:  # sys.exit() in a reward must not end a run as if it were done
        raise _refusal(record, reply, f"raised {raised(error)}") from None
    named = earned.name if isinstance(earned, Outcome) else None
    value = earned.reward if isinstance(earned, Outcome) else earned
    if isinstance(value, bool) or not isinstance(value, Real):
        what = f"{type(value).__name__} {_short(value)}" if value is not None else "None (is a return missing?)"
        raise _refusal(record, reply, f"gave {what}; it must give a number from {LOWEST:g} to {HIGHEST:g}")
    value = float(value)
    if math.isnan(value) or not LOWEST <= value <= HIGHEST:
        raise _refusal(record, reply, f"gave {value:g}; it must give a number from {LOWEST:g} to {HIGHEST:g}")
    if named is None:
        named = next((name for name, least in reversed(outcomes.items()) if value >= least), None)
    if named not in outcomes:
        listed = ", ".join(f"{name} from {least:g}" for name, least in outcomes.items())
        gave = f"{value:g}, below every outcome" if named is None else f"the outcome {_short(named)}, not a listed one"
        raise _refusal(record, reply, f"gave {gave}; outcomes are {listed}")
    return Outcome(named, value)


def raised(error: BaseException) -> str:
    """An exception on one line: its type and text, and the last line in a task's own files on the way to it."""
    text = " ".join(str(error).split())[:400]
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({relative(error.filename)}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    # A library's own line says less than the line of the task that called it. Tasks are folders beside this file.
    here = Path(__file__).parent
    own = [f for f in frames if Path(f.filename).is_relative_to(here) and Path(f.filename).parent != here] or frames
    if not own:
        return said
    line = f": {own[-1].line}" if own[-1].line else ""
    return f"{said} ({relative(own[-1].filename)}:{own[-1].lineno}, in {own[-1].name}{line})"


def relative(filename: Path | str) -> str:
    """The path as seen from the working folder, if it lies in it."""
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _refusal(record: Record, reply: Reply, problem: str) -> UserError:
    return UserError(
        f"the reward of record {record['id']} {problem}\n"
        f"  the reply: {_short(reply.text)}, read as {reply.name}({_short(reply.arguments)})"
    )


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
