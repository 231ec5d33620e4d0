"""Reading tool calls strictly: one dialect a model family, one validator for all.

`read_reply(text, load_dialect("hermes"), task.tools, reasoning)` is a ToolCall or a Fault.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

from tuneloop.errors import UserError
from tuneloop.toolcalls.contract import Dialect, Fault, Reasoning, Tool, ToolCall
from tuneloop.toolcalls.reader import calls_as_json, read_reply

__all__ = [
    "Dialect",
    "Fault",
    "Reasoning",
    "Tool",
    "ToolCall",
    "calls_as_json",
    "dialect_names",
    "load_dialect",
    "read_reply",
]


def dialect_names() -> list[str]:
    """The names of the known dialects, sorted: the modules in `dialects/`."""
    return sorted(p.stem for p in Path(__file__).parent.glob("dialects/[!_]*.py"))


@cache
def load_dialect(name: str) -> Dialect:
    """The dialect called `name`. Raises UserError naming the known ones for any other name."""
    if name not in dialect_names():
        raise UserError(f"there is no tool-call dialect {name!r}; known dialects: {', '.join(dialect_names())}")
    return import_module(f"tuneloop.toolcalls.dialects.{name}").DIALECT
