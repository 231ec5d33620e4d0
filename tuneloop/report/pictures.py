"""What a task may tell the report about itself: the optional module `tuneloop/tasks/<name>/pictures.py`.

It may hold any of `picture(record, row) -> str` (an HTML fragment, already escaped), `WORDS` (its
own words for record, class, stratum and what a reply chooses) and `LANDMARKS` (rewards to draw as
lines). A task without it is shown as text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from markupsafe import Markup, escape

from tuneloop.tasks.contract import Record

Picture = Callable[[Record, Mapping[str, Any]], str]

DEFAULT_WORDS: Mapping[str, str] = {
    "record": "record",
    "records": "records",
    "cluster": "class",
    "clusters": "classes",
    "stratum": "stratum",
    "choice": "The call",
}


@dataclass(frozen=True)
class Pictures:
    picture: Picture
    words: Mapping[str, str]
    landmarks: Mapping[str, float]


def task_pictures(task_name: str) -> Pictures:
    """The pictures of the task called `task_name` (a known task), or plain text and plain words."""
    module_name = f"tuneloop.tasks.{task_name}.pictures"
    module = import_module(module_name) if find_spec(module_name) else None
    return Pictures(
        picture=getattr(module, "picture", as_text),
        words={**DEFAULT_WORDS, **getattr(module, "WORDS", {})},
        landmarks=getattr(module, "LANDMARKS", {}),
    )


def as_text(record: Record, row: Mapping[str, Any]) -> str:
    """The record on one line and the call below it."""
    call = row.get("call") or "no call"
    return Markup("<code>{}</code><br><code>{}</code>").format(escape(row["board"]), escape(call))
