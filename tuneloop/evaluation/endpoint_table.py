"""An endpoint's results beside those of baseline and retest, as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from tuneloop.artifacts import read_json, read_jsonl
from tuneloop.errors import UserError
from tuneloop.evaluation.evaluate import summarise
from tuneloop.evaluation.statistics import Interval, mean_interval, paired_interval
from tuneloop.params import CompareParams
from tuneloop.tasks.contract import Record, Task

Row = dict[str, Any]
LENGTHS = ("all", "finished", "truncated")


@dataclass(frozen=True)
class Column:
    """One model of the table. `rows` are its replies to the records of the table; None where only its metrics are
    here, or its replies are to others: then `metrics` are over records of its own."""

    name: str
    metrics: dict[str, Any]
    rows: list[Row] | None


def column_of(folder: Path, records: Sequence[Record], task: Task) -> Column | None:
    """What baseline or retest left in `folder`, over the same records where its reply table is there and has them
    all; None where there are no metrics. UserError for files that hold something else."""
    if not (folder / "metrics.json").exists():
        return None
    metrics = read_json(folder / "metrics.json")
    if not isinstance(metrics, dict) or not {"sampled", "greedy", "games"} <= metrics.keys():
        raise UserError(f"{folder / 'metrics.json'}: holds no evaluation; make it again with `dvc repro`")
    shown = {record["id"]: task.show(record) for record in records}
    if not (folder / "replies.jsonl").exists():
        return Column(folder.name, metrics, None)
    rows = [row for row in read_jsonl(folder / "replies.jsonl") if shown.get(row["id"]) == row["board"]]
    decodings = {d: [row for row in rows if row["decoding"] == d] for d in ("sampled", "greedy")}
    if any({row["id"] for row in of} != shown.keys() for of in decodings.values()):
        return Column(folder.name, metrics, None)
    return Column(folder.name, metrics | {d: summarise(of, task) for d, of in decodings.items()}, rows)


def table(columns: Sequence[Column], records: Sequence[Record], task: Task, compare: CompareParams, seed: int) -> str:
    """The first column is the endpoint's. Ends with a newline."""
    heads = [column.name + ("" if column.rows is not None else " *") for column in columns]
    metrics = [column.metrics for column in columns]
    lines: list[list[str]] = []
    for decoding in ("sampled", "greedy"):
        of = [values[decoding] for values in metrics]
        lines.append([decoding, *heads])
        lines.append(["replies", *(str(values["replies"]) for values in of)])
        lines.append(["reward", *(f"{values['reward']:+.3f}" for values in of)])
        lines += [[name, *(_percent(values[name]) for values in of)] for name in task.measures]
        if decoding == "sampled":
            lines += [
                [f"  {outcome}", *(_percent(values["shares"][outcome]) for values in of)]
                for outcome in task.outcomes
                if any(values["shares"][outcome] for values in of)
            ]
        lines += [
            [f"tokens, {ending}", *(_tokens(values["length"][ending]) for values in of)]
            for ending in LENGTHS
            if any(values["length"][ending] is not None for values in of)
        ]
        lines.append([""] * (1 + len(columns)))
    lines += _games([values["games"] for values in metrics], heads)
    words = [*_columns(lines), *_differences(columns, compare, seed), "", *_players(task, records)]
    if any(column.rows is None for column in columns):
        words.append("* over all records of that evaluation: its reply table is not here, or not of these records")
    return "\n".join(line.rstrip() for line in words) + "\n"


def _games(games: Sequence[dict[str, Any]], heads: Sequence[str]) -> list[list[str]]:
    if not games[0]:
        return []
    lines = [["games, % won-drawn-lost-forfeit", *heads]]
    for side, opponents in games[0].items():
        for opponent in opponents:
            cells = [of.get(side, {}).get(opponent, {}) for of in games]
            shown = ("-".join(f"{100 * share:.0f}" for share in cell.values()) for cell in map(_in_order, cells))
            lines.append([f"as {side} against {opponent}", *shown])
    return [*lines, [""] * (1 + len(heads))]


def _in_order(cell: dict[str, float]) -> dict[str, float]:
    return {name: cell[name] for name in ("won", "drawn", "lost", "forfeit") if name in cell}


def _differences(columns: Sequence[Column], compare: CompareParams, seed: int) -> list[str]:
    """Mean sampled reward with its interval, and the paired difference to every column of the same records."""
    rows = columns[0].rows or []
    clusters = {row["id"]: row["cluster"] for row in rows}
    if len(set(clusters.values())) < 2:
        return ["no intervals: they need records of two or more classes"]

    def rewards(of: Sequence[Row]) -> list[float]:
        replies: dict[str, list[float]] = {record: [] for record in clusters}
        for row in of:
            if row["decoding"] == "sampled":
                replies[row["id"]].append(row["reward"])
        return [fmean(values) for values in replies.values()]

    def said(interval: Interval) -> str:
        return f"{interval.value:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"

    how = {"resamples": compare.bootstrap, "confidence": compare.confidence, "seed": seed}
    classes, own = list(clusters.values()), rewards(rows)
    lines = [
        f"sampled reward with its {100 * compare.confidence:g} % interval, clustered by class: "
        f"{said(mean_interval(own, classes, **how))}"
    ]
    for column in columns[1:]:
        if column.rows is not None:
            lines.append(
                f"  minus that of {column.name}: {said(paired_interval(rewards(column.rows), own, classes, **how))}"
            )
    return lines


def _players(task: Task, records: Sequence[Record]) -> list[str]:
    players = task.reference_players(records)
    names = list(next(iter(players.values()), {}))
    lines = [["players without a model", *names]]
    for player, values in players.items():
        lines.append([player, *(f"{values[n]:+.3f}" if n == "reward" else _percent(values[n]) for n in names)])
    return _columns(lines)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _tokens(length: float | None) -> str:
    return "" if length is None else f"{length:.1f}"


def _columns(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines)]
    return [
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))])
        for line in lines
    ]
