"""Experiments and revisions side by side: what differs in their params, what came out, and is it more than noise?

The paired difference is over held-out records: the mean reward of one's retest replies to a record minus the
other's, with the bootstrap interval of `tuneloop.evaluation.statistics`. Only tables over the same records are
paired; policies of other seeds or sizes may read the same record as other tokens, and sample it more or less often.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from flows.form import flat
from flows.shown import with_interval
from flows.workspace import experiments, git
from tuneloop.errors import UserError

WORKSPACE = "workspace"
"""The name of what lies in the workspace now, committed or not."""
METRICS, REPLIES = "data/compare/metrics.json", "data/retest/replies.jsonl"


@dataclass(frozen=True)
class Found:
    """One experiment or revision. `replies` is the file with its retest replies; None if it is not in the cache."""

    name: str
    commit: str
    params: dict[str, Any]
    sampled: dict[str, dict[str, dict[str, float]]]
    replies: Path | None


@dataclass(frozen=True)
class Difference:
    """Of mean reward, record by record, against the chosen one: value, low and high; `why_not` says why there is
    none."""

    interval: Mapping[str, float] | None = None
    why_not: str = ""

    @property
    def shown(self) -> str:
        if self.interval is None:
            return self.why_not
        clear = "" if self.interval["low"] <= 0 <= self.interval["high"] else " *"
        return with_interval(self.interval, sign=True) + clear


def find(home: Path, name: str, cache: Path) -> Found:
    """An experiment by its name, a git revision, or what is in the workspace. Raises UserError for any other
    name, and for one without params or results."""
    commit = WORKSPACE if name == WORKSPACE else experiments(home).get(name) or _revision(home, name)

    def read(path: str) -> str:
        try:
            if name == WORKSPACE:
                return (home / path).read_text(encoding="utf-8")
            return git(home, "show", f"{commit}:{path}")
        except (OSError, UserError):
            raise UserError(f"{name}: has no {path}; run the loop there first") from None

    load = YAML(typ="safe").load
    metrics = json.loads(read(METRICS))
    return Found(
        name, commit, flat(load(read("params.yaml"))), metrics["sampled"], _replies(load(read("dvc.lock")), cache)
    )


def differing(found: Sequence[Found]) -> list[str]:
    """The dotted keys of params that are not the same in all, in the order of params.yaml."""
    keys = dict.fromkeys(key for one in found for key in one.params)
    return [key for key in keys if len({json.dumps(one.params.get(key)) for one in found}) > 1]


def difference(chosen: Found, other: Found) -> Difference:
    """Other minus chosen. The interval's confidence, resamples and seed are the chosen one's."""
    # Here, not above: numpy and scipy take a second to load, which no other flow needs to wait for.
    from tuneloop.artifacts import read_jsonl
    from tuneloop.evaluation.comparison import grouped
    from tuneloop.evaluation.statistics import paired_interval
    from tuneloop.tasks import load_task

    for one in (chosen, other):
        if one.replies is None:
            return Difference(
                why_not=f"the replies of {one.name} are not in the DVC cache; `dvc pull`, or run it again"
            )
    outcomes = load_task(chosen.params["task.name"]).outcomes
    try:
        tables = [grouped(one.name, read_jsonl(one.replies), "sampled", outcomes) for one in (chosen, other)]
    except UserError as error:
        return Difference(why_not=f"not paired: {error}")
    boards = [{i: (rows[0]["board"], rows[0]["cluster"]) for i, rows in table.items()} for table in tables]
    if boards[0] != boards[1]:
        return Difference(why_not="not paired: other held-out records")
    means = [[sum(row["reward"] for row in table[i]) / len(table[i]) for i in tables[0]] for table in tables]
    clusters = [rows[0]["cluster"] for rows in tables[0].values()]
    interval = paired_interval(
        means[0],
        means[1],
        clusters,
        resamples=chosen.params["compare.bootstrap"],
        confidence=chosen.params["compare.confidence"],
        seed=chosen.params["seed"],
    )
    return Difference({"value": interval.value, "low": interval.low, "high": interval.high})


def rows_of(found: Sequence[Found], chosen: Found) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """The table twice: numbers for a CSV file, and text for people."""
    keys = differing(found)
    numbers, texts = [], []
    for one in found:
        against = Difference() if one is chosen else difference(chosen, one)
        row: dict[str, Any] = {"experiment": one.name, "commit": one.commit[:10]} | {k: one.params.get(k) for k in keys}
        text = {"experiment": one.name} | {k: f"{one.params.get(k)}" for k in keys}
        for quantity, change in sorted(one.sampled.items(), key=lambda item: item[0] != "reward"):
            row |= {f"{quantity} {end}": change["after"][end] for end in ("value", "low", "high")}
            text[quantity] = with_interval(change["after"], sign=quantity == "reward")
            if quantity == "reward":
                row |= {f"difference {end}": (against.interval or {}).get(end) for end in ("value", "low", "high")}
                row["not paired"] = against.why_not
                text[f"reward against {chosen.name}"] = "–" if one is chosen else against.shown
        numbers.append(row)
        texts.append(text)
    return _same_keys(numbers), _same_keys(texts)


def _same_keys(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every row with every key: tasks may have other measures."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [{key: row.get(key, "") for key in keys} for row in rows]


def _revision(home: Path, name: str) -> str:
    try:
        return git(home, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except UserError:
        known = ", ".join(sorted(experiments(home))) or "none"
        raise UserError(
            f"{name!r} is neither an experiment nor a git revision nor {WORKSPACE!r}; experiments: {known}"
        ) from None


def _replies(lock: Mapping[str, Any], cache: Path) -> Path | None:
    for stage in lock["stages"].values():
        for out in stage.get("outs", []):
            if out["path"] == REPLIES:
                path = cache / "files/md5" / out["md5"][:2] / out["md5"][2:]
                return path if path.exists() else None
    return None
