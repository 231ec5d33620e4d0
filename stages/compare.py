"""compare: baseline against retest, board by board, and the report that people read.

    python -m stages.compare

Reads data/boards/heldout.jsonl, data/baseline/{replies,rerun}.jsonl and data/retest/replies.jsonl, and
where they are there the games of both stages, data/train/{history,evaluations,timings}.csv, data/checks/
and every data/*/timings.json. Writes data/compare/metrics.json, plots/*.png and summary.txt, which
repeat byte for byte, and report.html, which also quotes times, versions and hardware. Ends by printing
the verdict; `make run` shows summary.txt.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tuneloop.artifacts import read_json, read_jsonl, write_json, write_text
from tuneloop.errors import UserError
from tuneloop.evaluation.comparison import Comparison, Row, Side, compare
from tuneloop.params import load_params, resolved_text
from tuneloop.report import plots
from tuneloop.report.figures import house_style, save_png
from tuneloop.report.gallery import choose_pairs
from tuneloop.report.history import read_columns
from tuneloop.report.page import Surroundings, render_page
from tuneloop.report.pictures import task_pictures
from tuneloop.report.summary import summary_text
from tuneloop.report.surroundings import hardware, stage_seconds, versions
from tuneloop.stage import stage
from tuneloop.tasks import load_episodes, load_task
from tuneloop.tasks.contract import Episodes, Record, Task

DATA = Path("data")
PARAMS = Path("params.yaml")
GALLERY_SIZE = 24


def compare_files(
    data: Path,
    task_name: str,
    policy: str,
    params_text: str,
    *,
    resamples: int,
    confidence: float,
    seed: int,
    episodes: Episodes | None = None,
) -> Comparison:
    """Compare what lies under `data` and write everything into `data/compare`.

    `policy` and `params_text` are only quoted in the report. `episodes`: what was trained on, where that was whole
    episodes. Raises UserError for a file that is missing or broken, and for tables that do not belong together.
    """
    task, pictures = load_task(task_name), task_pictures(task_name)
    baseline = read_jsonl(data / "baseline" / "replies.jsonl")
    retest = read_jsonl(data / "retest" / "replies.jsonl")
    rerun = read_jsonl(data / "baseline" / "rerun.jsonl")
    records = _records_of(baseline, task, data / "boards" / "heldout.jsonl")
    comparison = compare(
        baseline,
        retest,
        rerun,
        outcomes=task.outcomes,
        measures=task.measures,
        reference=task.reference_players(list(records.values())),
        resamples=resamples,
        confidence=confidence,
        seed=seed,
        games=_games(data),
    )
    out = data / "compare"
    write_json(out / "metrics.json", comparison.to_json())
    write_text(out / "summary.txt", summary_text(comparison))
    with house_style():
        figures = _figures(data / "train", comparison, task, pictures.landmarks, episodes)
        for plot in figures:
            save_png(plot.figure, out / "plots" / f"{plot.name}.png")
        page = render_page(
            comparison,
            task=task,
            policy=policy,
            pictures=pictures,
            plots=figures,
            gallery=choose_pairs(baseline, retest, GALLERY_SIZE, seed),
            records=records,
            checks={name: _check(data / "checks" / f"{name}.json") for name in ("boards", "rewards")},
            surroundings=Surroundings(
                params=params_text,
                versions=versions(),
                hardware=hardware(),
                stage_seconds=stage_seconds(data),
                speed=_speed(data / "train" / "timings.csv"),
            ),
        )
    write_text(out / "report.html", page)
    return comparison


def main() -> int:
    with stage("compare"):
        params = load_params(PARAMS)
        task = params.task
        episodes = load_episodes(load_task(task.name), task.mode, task.opponent, task.reward_at)
        comparison = compare_files(
            DATA,
            params.task.name,
            params.policy.source,
            resolved_text(PARAMS),
            resamples=params.compare.bootstrap,
            confidence=params.compare.confidence,
            seed=params.seed,
            episodes=episodes,
        )
        print(comparison.verdict.sentence)
    return 0


def _records_of(baseline: Sequence[Row], task: Task, path: Path) -> dict[str, Record]:
    """The held-out records that were evaluated, by id, in the order of their file."""
    evaluated = {row.get("id") for row in baseline}
    held_out = {
        record["id"]: record
        for line, row in enumerate(read_jsonl(path), 1)
        for record in [task.validate(row, f"{path}, line {line}")]
    }
    if strangers := sorted(map(str, evaluated - held_out.keys())):
        raise UserError(f"baseline: {strangers[0]} is not in {path}; run `dvc repro` to evaluate on this split")
    return {i: record for i, record in held_out.items() if i in evaluated}


def _games(data: Path) -> dict[Side, list[Row]] | None:
    """The games of both stages; None where one of them played none."""
    tables: dict[Side, list[Row]] = {}
    for side, name in (("before", "baseline"), ("after", "retest")):
        path = data / name / "games.jsonl"
        if not path.exists() or not path.stat().st_size:
            return None
        tables[side] = read_jsonl(path)
    return tables


def _figures(
    train: Path, comparison: Comparison, task: Task, landmarks: Mapping[str, float], episodes: Episodes | None
) -> list[plots.Plot]:
    lines = {player: numbers["reward"] for player, numbers in comparison.reference.items()} | dict(landmarks)
    figures = [plots.before_after(comparison, lines)]
    trained = task if episodes is None else episodes
    shares = [f"share_{outcome}" for outcome in trained.outcomes]
    history = read_columns(train / "history.csv", [*plots.HISTORY_COLUMNS, *shares])
    if history is not None:
        evaluations = read_columns(train / "evaluations.csv", plots.EVALUATION_COLUMNS)
        if episodes is not None:  # their rewards are not those of single replies
            evaluations, lines = None, {}
        sampled = plots.rolled_out(history)
        figures += [
            plots.reward(sampled, evaluations, lines),
            plots.outcomes(sampled, trained.outcomes, trained.measures),
            plots.lengths(sampled),
            plots.loss(history) if "loss" in history else plots.ratio(history),  # sft and dpo have no ratio
            *([plots.preferences(history)] if "pair_accuracy" in history else []),
            plots.entropy(history),
        ]
    return figures


def _check(path: Path) -> dict[str, Any] | None:
    return read_json(path) if path.exists() else None


def _speed(path: Path) -> dict[str, float]:
    columns = read_columns(path, ["step"]) or {}
    return {name: float(np.nanmean(values)) for name, values in columns.items() if name != "step"}


if __name__ == "__main__":
    sys.exit(main())
