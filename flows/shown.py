"""What a run leaves in Prefect: progress while it runs, then a table and a page of text."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from flows.pipeline import Step

REPORTS = Path(".state/flows/reports")
REPORTS_URL = "TUNELOOP_REPORTS_URL"
"""Environment variable: where `make ui` serves REPORTS, so that links and pictures open from the UI."""
KEPT_REPORTS = 50


class ProgressShown:
    """One progress artifact for the stage that runs, made with its first step line."""

    def __init__(self, stage: str):
        self.key = artifact_key(f"progress-{stage}")
        self.stage = stage
        self.artifact: UUID | None = None

    def show(self, step: Step) -> None:
        percent, said = 100.0 * step.done / step.total, describe(self.stage, step)
        if self.artifact is None:
            self.artifact = create_progress_artifact(percent, key=self.key, description=said)  # type: ignore[assignment]
        else:
            update_progress_artifact(self.artifact, percent, description=said)


def describe(stage: str, step: Step) -> str:
    """`train: step 120 of 400, reward 0.530, length 15.2, 1 min 35 s left`."""
    numbers = "".join(f", {name} {value:g}" for name, value in step.numbers.items())
    return f"{stage}: step {step.done} of {step.total}{numbers}, {duration(step.left)} left"


def duration(seconds: int) -> str:
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def artifact_key(text: str) -> str:
    """Prefect's keys: lowercase letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def before_after_rows(metrics: Mapping[str, Any]) -> list[dict[str, str]]:
    """The rows of the before/after table from data/compare/metrics.json."""
    return [
        {
            "replies": decoding,
            "measure": name,
            "before": with_interval(change["before"], sign=name == "reward"),
            "after": with_interval(change["after"], sign=name == "reward"),
            "difference": with_interval(change["difference"], sign=True),
        }
        for decoding in ("sampled", "greedy")
        for name, change in sorted(metrics[decoding].items(), key=lambda item: item[0] != "reward")
    ]


def with_interval(interval: Mapping[str, float], sign: bool = False) -> str:
    value, low, high = (f"{interval[end]:{'+' if sign else ''}.3f}" for end in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def show_results(workspace: Path, title: str, run_id: str) -> str:
    """Make the table `before-after` and the text `verdict`; return the verdict's sentence."""
    compared = workspace / "data/compare"
    metrics = json.loads((compared / "metrics.json").read_text(encoding="utf-8"))
    create_table_artifact(before_after_rows(metrics), key="before-after", description=f"Baseline and retest. {title}")
    sentence = metrics["verdict"]["sentence"]
    where = keep_report(workspace, run_id)
    pictures = sorted(path.name for path in (compared / "plots").glob("*.png"))
    report = f"{where}/report.html"
    lines = [f"# {title}", "", sentence, "", f"[The report]({report})", ""]
    lines += [f"![{name}]({where}/plots/{name})\n\n[{name}]({where}/plots/{name})\n" for name in pictures]
    create_markdown_artifact("\n".join(lines), key="verdict", description=f"Verdict. {title}")
    return sentence


def keep_report(workspace: Path, run_id: str) -> str:
    """Copy the report and its pictures aside, for the next run replaces them; the URL they are found under.

    The newest KEPT_REPORTS are kept.
    """
    kept = workspace / REPORTS / "runs" / run_id
    shutil.rmtree(kept, ignore_errors=True)
    (kept / "plots").mkdir(parents=True)
    compared = workspace / "data/compare"
    for path in [compared / "report.html", *(compared / "plots").glob("*.png")]:
        shutil.copyfile(path, kept / path.relative_to(compared))
    oldest_first = sorted(kept.parent.iterdir(), key=lambda folder: folder.stat().st_mtime)
    for folder in oldest_first[:-KEPT_REPORTS]:
        shutil.rmtree(folder, ignore_errors=True)
    return report_url(workspace, f"runs/{run_id}")


def report_url(workspace: Path, name: str) -> str:
    """Where a folder under REPORTS is found: from `make ui`'s own server, or else as a file."""
    served = os.environ.get(REPORTS_URL)
    return f"{served.rstrip('/')}/{name}" if served else (workspace / REPORTS / name).resolve().as_uri()
