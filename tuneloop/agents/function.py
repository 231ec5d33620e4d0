"""The agent function that `rollout.agent` names, and what may come back from it."""

from __future__ import annotations

import importlib
import inspect
import math
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tuneloop.errors import UserError
from tuneloop.tasks.contract import Outcome, Record, Task, scored
from tuneloop.toolcalls import Fault, ToolCall

Agent = Callable[[Any, Record, Task], Awaitable[Any]]
"""`async def agent(client, record, task)`; `client` is an `openai.AsyncOpenAI` of this episode alone."""

FORM = "a Python path like agent.one_call:choose (module, colon, function)"


def load_agent(name: str) -> Agent:
    """The function that `module:function` names, importable from the folder in which the stage runs. Raises UserError
    where there is none, where its module fails, and where it is no `async def` of three arguments."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise UserError(f"rollout.agent={name}: must be {FORM}")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except Exception as error:
        raise UserError(
            f"rollout.agent={name}: {module} cannot be imported from {Path.cwd()} ({type(error).__name__}: {error})"
        ) from None
    if found is None:
        raise UserError(f"rollout.agent={name}: {module} has no {attribute!r}; must be {FORM}")
    if not inspect.iscoroutinefunction(found):
        raise UserError(
            f"rollout.agent={name}: is not an async function; write async def {attribute}(client, record, task)"
        )
    try:
        inspect.signature(found).bind(None, None, None)
    except TypeError as error:
        raise UserError(f"rollout.agent={name}: cannot be called with (client, record, task): {error}") from None
    return found


def agent_file(name: str) -> Path:
    """The file that holds the function."""
    return Path(inspect.getfile(inspect.unwrap(load_agent(name))))


def earned(
    returned: Any, task: Task, record: Record, reading: ToolCall | Fault, text: str, finish_reason: str
) -> tuple[Outcome, ToolCall | Fault, bool]:
    """What an episode earned, the call or fault that says why, and whether the agent itself decided it.

    None: the last reply, read as `reading`, is scored by the task. A `ToolCall`: that call is. A number is the reward
    (the reason code stays that of the last reply), an `Outcome` both. Raises UserError for anything else, for a number
    that is none or outside the task's range, and for a reason code that the task does not have.
    """
    if returned is None:
        return scored(task, record, reading, text, finish_reason), reading, False
    where = f"rollout.agent: on record {record['id']} the agent returned"
    if isinstance(returned, ToolCall):
        return scored(task, record, returned, text, finish_reason), returned, returned != reading
    if isinstance(returned, Outcome):
        if returned.name not in task.outcomes:
            raise UserError(f"{where} the outcome {returned.name!r}; the task has {', '.join(task.outcomes)}")
        return Outcome(returned.name, _reward(returned.reward, task, where)), reading, True
    if isinstance(returned, int | float) and not isinstance(returned, bool):
        name = scored(task, record, reading, text, finish_reason).name
        return Outcome(name, _reward(returned, task, where)), reading, True
    raise UserError(
        f"{where} {returned!r:.80} ({type(returned).__name__}); return nothing (the task scores the last reply), a "
        "ToolCall (the task scores it), a reward (number) or an Outcome"
    )


def _reward(value: Any, task: Task, where: str) -> float:
    low, high = task.reward_range
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not low <= value <= high:
        raise UserError(f"{where} the reward {value!r:.80}; it must be a number from {low:g} to {high:g}")
    return float(value)
