"""Data checks: tables and Great Expectations suites in, one verdict out.

Great Expectations takes seconds to import, so no module here imports it at the top: it loads inside
the functions that build or run expectations, and only the check stages call those.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import cast

from tuneloop.checks.contract import TaskChecks
from tuneloop.checks.plain import PlainChecks
from tuneloop.errors import UserError
from tuneloop.tasks import load_task
from tuneloop.tasks.plain import PlainTask

# Read by Great Expectations when it is imported; nothing about a run leaves the machine.
os.environ["GX_ANALYTICS_ENABLED"] = "false"


def load_checks(task_name: str) -> TaskChecks:
    """The module `tuneloop.tasks.<task_name>.checks`; for a task made with `tuneloop.tasks.plain`, the checks of
    `tuneloop.checks.plain` with whatever that module has, where it is, in their place.

    Raises UserError for an unknown task, for a task without such a module, and for a module that
    lacks one of the members of `TaskChecks` or rewards other outcomes than the task.
    """
    task = load_task(task_name)
    name = f"tuneloop.tasks.{task_name}.checks"
    found = find_spec(name) is not None
    if isinstance(task, PlainTask):
        return cast(TaskChecks, PlainChecks(task, import_module(name) if found else None))
    if not found:
        raise UserError(f"task.name: {task_name!r} has no checks; write {name} (see tuneloop/checks/contract.py)")
    module = import_module(name)
    lacking = sorted(member for member in TaskChecks.__annotations__ | _functions() if not hasattr(module, member))
    if lacking:
        raise UserError(f"{name} lacks {', '.join(lacking)}; tuneloop/checks/contract.py says what they are")
    if set(module.REWARDS) != set(task.outcomes):
        raise UserError(f"{name}: REWARDS must have exactly the outcomes of the task: {', '.join(task.outcomes)}")
    return cast(TaskChecks, module)


def _functions() -> dict[str, object]:
    return {name: member for name, member in vars(TaskChecks).items() if callable(member) and not name.startswith("_")}
