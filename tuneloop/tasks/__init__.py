"""Tasks by name. A task is a package here with a module-level `TASK` (see `contract.Task`)."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tuneloop.errors import UserError
from tuneloop.tasks.contract import Task


def task_names() -> list[str]:
    """The names of the tasks that this installation carries, sorted."""
    here = Path(__file__).parent
    return sorted(p.parent.name for p in here.glob("*/__init__.py"))


def load_task(name: str) -> Task:
    """The task called `name`. Raises UserError naming the known tasks for any other name."""
    if name not in task_names():
        raise UserError(f"task.name: there is no task {name!r}; known tasks: {', '.join(task_names())}")
    return import_module(f"tuneloop.tasks.{name}").TASK
