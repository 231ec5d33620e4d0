"""What a check found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["OK", "WARN", "FAIL"]


@dataclass(frozen=True)
class Finding:
    """`name` is the same in every run; `next_step` is empty where nothing has to be done.

    WARN: the loop runs, but not as it could, or not everything of it. FAIL: it stops, or is wrong.
    """

    name: str
    level: Level
    found: str
    next_step: str = ""


def ok(name: str, found: str) -> Finding:
    return Finding(name, "OK", found)


def warn(name: str, found: str, next_step: str) -> Finding:
    return Finding(name, "WARN", found, next_step)


def fail(name: str, found: str, next_step: str) -> Finding:
    return Finding(name, "FAIL", found, next_step)
