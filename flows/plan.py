"""What a sweep consists of: its members, and the table over them. Plain data, nothing runs here."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from statistics import fmean, stdev
from typing import Any

from flows.form import flat
from tuneloop.errors import UserError

SEED = "seed"


@dataclass(frozen=True)
class Member:
    """One experiment of a sweep: `changes` by dotted key, and a name made of them."""

    name: str
    changes: dict[str, Any]

    @property
    def setting(self) -> dict[str, Any]:
        """What it shares with its repetitions under other seeds."""
        return {key: value for key, value in self.changes.items() if key != SEED}


@dataclass(frozen=True)
class Result:
    """What became of a member. `metrics` is its data/compare/metrics.json; None where it failed, with the reason."""

    member: str
    changes: dict[str, Any]
    commit: str
    experiment: str | None = None
    seconds: float | None = None
    metrics: dict[str, Any] | None = None
    reason: str | None = None

    def answers(self, member: Member, commit: str) -> bool:
        """It is the finished result of just this member on just this commit."""
        return self.metrics is not None and self.changes == member.changes and self.commit == commit

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def expand(
    grid: Mapping[str, Sequence[Any]], listed: Sequence[Mapping[str, Any]], seeds: Sequence[int]
) -> list[Member]:
    """Every combination of the grid's values, with every listed change, under every seed.

    An empty grid, list or row of seeds changes nothing. Raises UserError for a key without values, a key
    in two places, and members that are the same.
    """
    for key, values in grid.items():
        if isinstance(values, str | Mapping) or not values:
            raise UserError(f"grid: {key}: needs a list of values, not {values!r}")
    combinations = [dict(zip(grid, values)) for values in product(*grid.values())]
    members = []
    for combination in combinations:
        for more in [flat(changes) for changes in listed] or [{}]:
            for seed in [{SEED: seed} for seed in seeds] or [{}]:
                if twice := (combination.keys() & more.keys()) | ((combination.keys() | more.keys()) & seed.keys()):
                    raise UserError(f"{', '.join(sorted(twice))}: is given twice; name a key in one place")
                members.append(combination | more | seed)
    names = [_name(changes) for changes in members]
    if doubles := {name for name in names if names.count(name) > 1}:
        raise UserError(f"{', '.join(sorted(doubles))}: is asked for more than once; every member is to differ")
    return [Member(name, changes) for name, changes in zip(names, members)]


def _name(changes: Mapping[str, Any]) -> str:
    """`lr0.001-seed1`: readable where it can be, always different for different changes."""
    words = [re.sub(r"[^A-Za-z0-9._-]+", "_", f"{key.split('.')[-1]}{value}") for key, value in changes.items()]
    exact = [f"{key.split('.')[-1]}{value}" for key, value in changes.items()]
    name = "-".join(words) or "as-it-is"
    plain = words == exact and len({key.split(".")[-1] for key in changes}) == len(changes) and len(name) <= 80
    if plain and not (name.endswith(".lock") or ".." in name):
        return name
    digest = hashlib.sha256(json.dumps(changes, sort_keys=True).encode()).hexdigest()[:8]
    return f"{name[:60].replace('..', '_').strip('.')}-{digest}"


def table(members: Sequence[Member], results: Mapping[str, Result]) -> list[dict[str, Any]]:
    """One row a setting: its keys, how many seeds finished, and mean and spread (sample standard deviation) over
    them of the reward before, after and of the difference, and of every other quantity after. None where nothing
    finished, and for the spread of one."""
    rows = []
    columns = _columns([r.metrics for r in results.values() if r.metrics])
    for setting in _settings(members):
        of_setting = [member for member in members if member.setting == setting]
        done = [results[m.name].metrics for m in of_setting if results.get(m.name) and results[m.name].metrics]
        row: dict[str, Any] = dict(setting) | {"seeds": len(done), "missing": len(of_setting) - len(done)}
        for label, read in columns:
            values = [read(metrics) for metrics in done]
            row[f"{label} mean"] = fmean(values) if values else None
            row[f"{label} spread"] = stdev(values) if len(values) > 1 else None
        rows.append(row)
    keys = {key: None for member in members for key in member.setting}
    return [keys | row for row in rows]


def member_rows(members: Sequence[Member], results: Mapping[str, Result]) -> list[dict[str, Any]]:
    """One row a member, with its own numbers and, where it failed, the reason."""
    keys = {key: None for member in members for key in member.changes}
    found = [results[m.name].metrics for m in members if m.name in results and results[m.name].metrics]
    rows = []
    for member in members:
        result = results.get(member.name)
        metrics = result.metrics if result else None
        numbers = {label: read(metrics) if metrics else None for label, read in _columns(found)}
        state = "done" if metrics else "failed" if result else "not run"
        reason = (result.reason or "") if result else ""
        rows.append({"member": member.name} | keys | member.changes | {"state": state} | numbers | {"reason": reason})
    return rows


def shown_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The table for people: `+0.874 ± 0.013`; settings that are the same in every row stay."""
    shown = []
    for row in rows:
        out: dict[str, str] = {}
        for key, value in row.items():
            if key.endswith(" spread"):
                continue
            if key.endswith(" mean"):
                label = key.removesuffix(" mean")
                out[label] = _with_spread(label, value, row[f"{label} spread"])
            elif key == "missing":
                if any(r["missing"] for r in rows):
                    out["failed or not run"] = str(value)
            else:
                out[key] = "as in params.yaml" if value is None else f"{value}"
        shown.append(out)
    return shown


def markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows with the same keys as a Markdown table."""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([row[key] for key in head] for row in rows)]
    return "".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _settings(members: Sequence[Member]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for member in members:
        if member.setting not in found:
            found.append(member.setting)
    return found


def _columns(done: Sequence[Mapping[str, Any]]) -> list[tuple[str, Any]]:
    # The task's measures follow the reward. Members may be of different tasks: what all have is shown.
    shared = set.intersection(*(set(metrics["sampled"]) for metrics in done)) if done else set()
    columns = []
    for quantity in ("reward", *sorted(shared - {"reward"})):
        for side in ("before", "after", "difference") if quantity == "reward" else ("after",):
            columns.append((f"{quantity} {side}", _reader(quantity, side)))
    return columns


def _reader(quantity: str, side: str) -> Any:
    return lambda metrics: metrics["sampled"][quantity][side]["value"]


def _with_spread(label: str, mean: float | None, spread: float | None) -> str:
    if mean is None:
        return "–"
    sign = "+" if label.startswith("reward") else ""
    return f"{mean:{sign}.3f}" + (f" ± {spread:.3f}" if spread is not None else "")
