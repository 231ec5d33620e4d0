"""Tasks by name. A task is a package here with a module-level `TASK` (see `contract.Task`)."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tuneloop.errors import UserError
from tuneloop.tasks.contract import Episodes, Task
from tuneloop.tasks.plain_reward import raised


def task_names() -> list[str]:
    """The names of the tasks that this installation carries, sorted."""
    here = Path(__file__).parent
    return sorted(p.parent.name for p in here.glob("*/__init__.py"))


def load_task(name: str) -> Task:
    """The task called `name`. Raises UserError naming the known tasks for any other name, and the line at fault
    where a task's own file cannot be run."""
    if name not in task_names():
        raise UserError(
            f"task.name: there is no task {name!r}; known tasks: {', '.join(task_names())} "
            "(`tuneloop new-task NAME` begins another)"
        )
    try:
        module = import_module(f"tuneloop.tasks.{name}")
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"task.name: {name} cannot be loaded: {raised(error)}") from None
    if not hasattr(module, "TASK"):
        raise UserError(f"task.name: tuneloop/tasks/{name}/__init__.py has no TASK (see tuneloop/tasks/contract.py)")
    return module.TASK


def load_episodes(task: Task, mode: str, opponent: str, reward_at: str) -> Episodes | None:
    """How `task` is done in whole episodes; None where `task.mode` is move: one reply a record.

    Raises UserError for a task that has no episodes, and for an opponent that it does not know."""
    if mode == "move":
        return None
    make = getattr(task, "episodes", None)
    if make is None:
        raise UserError(f"task.mode: {task.name} has no whole games to train on; set it to move")
    return make(opponent, reward_at)
