"""The self-contained HTML report: one file, no scripts, nothing loaded from anywhere.

Replies are hostile input. Every value goes through Jinja's autoescape; the only HTML taken as it is
comes from the task's own `picture`, which never sees more than a record and a row and escapes what
it shows. A Content-Security-Policy in the page forbids scripts and every network request besides.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tuneloop.evaluation.comparison import Comparison
from tuneloop.report import numbers
from tuneloop.report.colours import outcome_colours, text_on
from tuneloop.report.figures import themed_svg
from tuneloop.report.gallery import Gallery
from tuneloop.report.pictures import Pictures
from tuneloop.report.plots import Plot
from tuneloop.tasks.contract import Record, Task

TEXT_LIMIT = 4000
"""Characters of a reply that the page shows."""


@dataclass(frozen=True)
class Surroundings:
    """What only this page quotes: it changes from machine to machine and from run to run."""

    params: str
    versions: Mapping[str, str]
    hardware: Mapping[str, str]
    stage_seconds: Mapping[str, float]
    speed: Mapping[str, float]
    """Means over the training steps, e.g. replies per second; empty if unknown."""


def render_page(
    comparison: Comparison,
    *,
    task: Task,
    policy: str,
    pictures: Pictures,
    plots: Sequence[Plot],
    gallery: Gallery,
    records: Mapping[str, Record],
    checks: Mapping[str, Mapping[str, Any] | None],
    surroundings: Surroundings,
) -> str:
    """The whole page as text (call inside `house_style`: it draws the figures as SVG).

    `records` by id, for the pictures; `checks` by name, None for one that was not found. Sections
    without input say so.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        quantity=_typeset(numbers.quantity),
        signed=_typeset(numbers.signed),
        typeset=numbers.typeset,
        single_reward=numbers.single_reward,
        percent=numbers.percent,
        p_value=numbers.p_value,
        tokens=numbers.tokens,
        duration=numbers.duration,
        reply=shown_reply,
    )
    colours = outcome_colours(task.outcomes, task.measures)
    return environment.get_template("report.html.jinja").render(
        c=comparison,
        task=task,
        policy=policy,
        words=pictures.words,
        ladder=ladder(comparison, pictures.landmarks),
        plots={
            plot.name: {"alt": numbers.typeset(plot.alt), "src": data_uri(themed_svg(plot.figure))} for plot in plots
        },
        gallery=gallery,
        picture=lambda row: Markup(pictures.picture(records[row["id"]], row)),
        outcomes={
            name: {"place": i, "fill": fill, "text": text_on(fill)} for i, (name, fill) in enumerate(colours.items())
        },
        checks=checks,
        around=surroundings,
    )


def ladder(comparison: Comparison, landmarks: Mapping[str, float]) -> list[dict[str, Any]]:
    """Reference players, landmarks and the policy itself in one list, best mean reward first. Each
    has "name", "kind" and "values" (reward and measures; None where unknown)."""
    names = list(comparison.sampled)
    rows = [
        {"name": player, "kind": "player", "values": [values[name] for name in names]}
        for player, values in comparison.reference.items()
    ]
    rows += [
        {"name": name, "kind": "landmark", "values": [reward] + [None] * (len(names) - 1)}
        for name, reward in landmarks.items()
    ]
    for decoding, changes in (("sampled", comparison.sampled), ("greedy", comparison.greedy)):
        for side in ("before", "after"):
            values = [getattr(changes[name], side).value for name in names]
            rows.append({"name": f"the policy {side}, {decoding}", "kind": side, "values": values})
    return sorted(rows, key=lambda row: -row["values"][0])


def data_uri(svg: str) -> str:
    """A picture as an address that needs no file."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def shown_reply(text: str) -> str:
    """A reply as text that any page can hold: control characters visible, lone surrogates replaced,
    and no more than `TEXT_LIMIT` characters."""
    shown = re.sub(r"[\x00-\x08\x0b-\x1f]", lambda match: chr(0x2400 + ord(match[0])), text[:TEXT_LIMIT])
    # Direction overrides would let a reply rewrite how its neighbours read.
    shown = re.sub(r"[\u202a-\u202e\u2066-\u2069\x7f-\x9f]", lambda match: f"\\u{ord(match[0]):04x}", shown)
    shown = shown.encode("utf-8", "replace").decode()
    return shown + (f"\n[… {len(text) - TEXT_LIMIT} more characters]" if len(text) > TEXT_LIMIT else "")


def _typeset(form: Callable[..., str]) -> Callable[..., str]:
    return lambda value, *rest: numbers.typeset(form(*rest, value))
