"""Baseline against retest, record by record: what changed, by how much, and is it more than noise?

The verdict follows one rule, on the mean reward of the sampled replies. The policy has *improved*
(or is *worse*) if the paired interval of the difference excludes 0 **and** the difference is larger
than the noise band: the largest difference that the same interval allows between the baseline and
itself under another seed. Everything else is *no change shown*, which is not *no change*.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tuneloop.errors import UserError
from tuneloop.evaluation.statistics import Interval, McNemar, mcnemar, mean_interval, paired_interval, share_interval

Row = Mapping[str, Any]
Decoding = Literal["sampled", "greedy"]
Side = Literal["before", "after"]
Grouped = dict[str, list[Row]]
"""The replies of one decoding by record id, in the order of the table."""

COLUMNS = (
    "id",
    "board",
    "stratum",
    "cluster",
    "decoding",
    "prompt_hash",
    "outcome",
    "reward",
    "length",
    "finish_reason",
)
RESULTS = ("won", "drawn", "lost", "forfeit")
OF_RECORD = ("board", "stratum", "cluster", "prompt_hash")


@dataclass(frozen=True)
class Change:
    """One quantity before and after, and the paired difference; shares in 0..1, reward in its unit."""

    before: Interval
    after: Interval
    difference: Interval


@dataclass(frozen=True)
class NoiseBand:
    """Baseline against its repetition under another seed; `bound`: the larger |end| of the interval."""

    difference: Interval
    bound: float


@dataclass(frozen=True)
class Placement:
    """Where the retest's mean reward stands against one reference player: its whole interval above
    or below the player's reward, or level with it (the interval holds it)."""

    player: str
    reward: float
    stands: Literal["below", "level with", "above"]


@dataclass(frozen=True)
class Verdict:
    """The answer by the rule of this module, and the sentence that says it with its numbers."""

    kind: Literal["improved", "no change shown", "worse"]
    sentence: str


@dataclass(frozen=True)
class Comparison:
    """Everything the report says about the two policies. Keys of `sampled`, `greedy` and `noise` are
    "reward" and every measure of the task; of `mcnemar` (greedy replies) the measures."""

    records: int
    clusters: int
    samples: int
    """Sampled replies to each record."""
    confidence: float
    resamples: int
    sampled: dict[str, Change]
    greedy: dict[str, Change]
    mcnemar: dict[str, McNemar]
    noise: dict[str, NoiseBand]
    strata: dict[str, dict[str, Any]]
    """By stratum: {"records": n, "before": {quantity: mean}, "after": …} of the sampled replies."""
    shares: dict[Decoding, dict[Side, dict[str, float]]]
    """Share of every outcome; each adds up to 1."""
    lengths: dict[Decoding, dict[Side, dict[str, float | None]]]
    """Mean tokens of "all", "finished" and "truncated" replies (None where there is none), and the
    "truncated_share"."""
    games: dict[Side, dict[str, dict[str, dict[str, int]]]] | None
    """Side that the policy played → opponent → number of games by result."""
    reference: dict[str, dict[str, float]]
    placements: list[Placement]
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """Plain values. Numbers keep 9 significant digits: the last bits of a float may differ from
        processor to processor, and the file must not."""
        return _rounded(asdict(self))


def compare(
    baseline: Sequence[Row],
    retest: Sequence[Row],
    rerun: Sequence[Row],
    *,
    outcomes: Sequence[str],
    measures: Mapping[str, frozenset[str]],
    reference: Mapping[str, Mapping[str, float]],
    resamples: int,
    confidence: float,
    seed: int,
    games: Mapping[Side, Sequence[Row]] | None = None,
) -> Comparison:
    """Pair two reply tables, and the baseline with its `rerun`, record by record.

    `outcomes` and `measures` are the task's, `reference` is `task.reference_players` on the same
    records. Raises UserError where the tables do not hold the same records, prompts and number of
    replies, where a column or a kind of reply is missing, or where all records are of one class.
    """
    sampled = {
        side: grouped(name, rows, "sampled", outcomes)
        for side, name, rows in (
            ("before", "baseline", baseline),
            ("after", "retest", retest),
            ("rerun", "rerun", rerun),
        )
    }
    greedy = {
        side: grouped(name, rows, "greedy", outcomes)
        for side, name, rows in (("before", "baseline", baseline), ("after", "retest", retest))
    }
    refuse_unlike("baseline", sampled["before"], "retest", sampled["after"])
    refuse_unlike("baseline", sampled["before"], "rerun of the baseline", sampled["rerun"])
    refuse_unlike("baseline", greedy["before"], "retest", greedy["after"])
    records = {record: rows[0] for record, rows in sampled["before"].items()}
    clusters = [row["cluster"] for row in records.values()]
    if len(set(clusters)) < 2:
        raise UserError(
            f"baseline: its {len(records)} records are all of one class ({clusters[0]!r}), and an interval needs "
            "two or more; hold out more records"
        )

    def averages(replies: Grouped, quantity: str, ids: Sequence[str] = tuple(records)) -> list[float]:
        return [_mean([_worth(row, quantity, measures) for row in replies[i]]) for i in ids]

    def interval(of: Callable[..., Interval], *columns: list[float]) -> Interval:
        return of(*columns, clusters, resamples=resamples, confidence=confidence, seed=seed)

    def change(tables: Mapping[str, Grouped], quantity: str) -> Change:
        single = mean_interval if quantity == "reward" else share_interval
        before, after = averages(tables["before"], quantity), averages(tables["after"], quantity)
        return Change(interval(single, before), interval(single, after), interval(paired_interval, before, after))

    def noise(quantity: str) -> NoiseBand:
        columns = (averages(sampled[side], quantity) for side in ("before", "rerun"))
        difference = interval(paired_interval, *columns)
        return NoiseBand(difference, max(abs(difference.low), abs(difference.high)))

    def stratum(name: str) -> dict[str, Any]:
        ids = [i for i, row in records.items() if row["stratum"] == name]
        means = {s: {q: _mean(averages(sampled[s], q, ids)) for q in quantities} for s in ("before", "after")}
        return {"records": len(ids), **means}

    quantities = ("reward", *measures)
    changes, noises = ({q: of(q) for q in quantities} for of in (lambda q: change(sampled, q), noise))
    placements = place(changes["reward"].after, reference)
    both = {"sampled": sampled, "greedy": greedy}
    return Comparison(
        records=len(records),
        clusters=len(set(clusters)),
        samples=len(next(iter(sampled["before"].values()))),
        confidence=confidence,
        resamples=resamples,
        sampled=changes,
        greedy={q: change(greedy, q) for q in quantities},
        mcnemar={m: mcnemar(averages(greedy["before"], m), averages(greedy["after"], m)) for m in measures},
        noise=noises,
        strata={name: stratum(name) for name in sorted({r["stratum"] for r in records.values()}, key=_natural)},
        shares={d: {s: outcome_shares(t[s], outcomes) for s in ("before", "after")} for d, t in both.items()},
        lengths={d: {s: reply_lengths(t[s]) for s in ("before", "after")} for d, t in both.items()},
        games={side: games_table(rows) for side, rows in games.items()} if games else None,
        reference={player: dict(numbers) for player, numbers in reference.items()},
        placements=placements,
        verdict=judge(changes["reward"], noises["reward"], placements, confidence),
    )


def grouped(name: str, rows: Sequence[Row], decoding: Decoding, outcomes: Sequence[str]) -> Grouped:
    """The rows of `decoding` by record id. Raises UserError (naming the table `name`) for a missing
    column, an outcome that the task does not know, no such rows, or uneven numbers of replies."""
    replies: Grouped = {}
    for number, row in enumerate(rows, 1):
        if missing := [column for column in COLUMNS if column not in row]:
            raise UserError(f"{name}, row {number}: no column {', '.join(missing)}; make the table again")
        if row["outcome"] not in outcomes:
            raise UserError(
                f"{name}, row {number}: {row['outcome']!r} is no outcome of this task: {', '.join(outcomes)}"
            )
        if row["decoding"] == decoding:
            replies.setdefault(row["id"], []).append(row)
    if not replies:
        raise UserError(f"{name}: has no {decoding} replies; make the table again")
    counts = {record: len(of_record) for record, of_record in replies.items()}
    expected = 1 if decoding == "greedy" else next(iter(counts.values()))
    if uneven := [record for record, count in counts.items() if count != expected]:
        raise UserError(
            f"{name}: {counts[uneven[0]]} {decoding} replies to {uneven[0]}, where {expected} belong; make the table "
            "again"
        )
    return replies


def refuse_unlike(one: str, left: Grouped, other: str, right: Grouped) -> None:
    """UserError unless both tables answer the same prompts about the same records equally often."""
    for here, there, only in ((one, other, left.keys() - right.keys()), (other, one, right.keys() - left.keys())):
        if only:
            shown = ", ".join(sorted(only)[:3]) + (", …" if len(only) > 3 else "")
            raise UserError(f"{here}: {len(only)} records ({shown}) are not in the {there}; evaluate both on one split")
    for record, rows in left.items():
        for column in OF_RECORD:
            values = {row[column] for row in (*rows, *right[record])}
            if len(values) > 1:
                raise UserError(
                    f"record {record}: {column} differs between {one} and {other} "
                    f"({', '.join(sorted(map(repr, values)))}); evaluate both on one split with one prompt"
                )
        if len(rows) != len(right[record]):
            raise UserError(
                f"record {record}: {len(rows)} {rows[0]['decoding']} replies in the {one}, {len(right[record])} in the "
                f"{other}; evaluate both with the same number of samples"
            )


def outcome_shares(replies: Grouped, outcomes: Sequence[str]) -> dict[str, float]:
    """Share of every outcome among all replies."""
    counts = Counter(row["outcome"] for rows in replies.values() for row in rows)
    return {outcome: counts[outcome] / counts.total() for outcome in outcomes}


def reply_lengths(replies: Grouped) -> dict[str, float | None]:
    """Mean length in tokens by how the reply ended, None where no reply did; and the truncated share."""
    rows = [row for of_record in replies.values() for row in of_record]
    truncated = [row["length"] for row in rows if row["finish_reason"] == "length"]
    finished = [row["length"] for row in rows if row["finish_reason"] != "length"]
    means = {"all": finished + truncated, "finished": finished, "truncated": truncated}
    return {k: _mean(v) if v else None for k, v in means.items()} | {"truncated_share": len(truncated) / len(rows)}


def games_table(rows: Sequence[Row]) -> dict[str, dict[str, dict[str, int]]]:
    """Games by side, opponent and result; every result is there, with 0 where it never happened.
    Raises UserError for a row that is no game."""
    table: dict[str, dict[str, dict[str, int]]] = {}
    for number, row in enumerate(rows, 1):
        if row.get("result") not in RESULTS or "side" not in row or "opponent" not in row:
            raise UserError(f"games, row {number}: no side, opponent or result ({', '.join(RESULTS)}); play them again")
        results = table.setdefault(row["side"], {}).setdefault(row["opponent"], dict.fromkeys(RESULTS, 0))
        results[row["result"]] += 1
    return table


def place(after: Interval, reference: Mapping[str, Mapping[str, float]]) -> list[Placement]:
    """The retest against every reference player, weakest player first."""
    placements = []
    for player, numbers in sorted(reference.items(), key=lambda item: item[1]["reward"]):
        reward = numbers["reward"]
        stands = "above" if after.low > reward else "below" if after.high < reward else "level with"
        placements.append(Placement(player, reward, stands))
    return placements


def judge(reward: Change, noise: NoiseBand, placements: Sequence[Placement], confidence: float) -> Verdict:
    """The verdict by the rule in this module's docstring, as one sentence for people."""
    step, size = reward.difference, abs(reward.difference.value)
    shown = step.excludes_zero and size > noise.bound
    kind = "no change shown" if not shown else "improved" if step.value > 0 else "worse"
    verb = {"improved": "rose", "worse": "fell", "no change shown": "went"}[kind]
    seeds = f"the {noise.bound:.3f} by which another seed alone may move the baseline"
    if shown:
        why = f"excludes 0, and more than {seeds}"
    else:
        why = f"excludes 0, but no more than {seeds}" if step.excludes_zero else "does not exclude 0"
    sentence = (
        f"{kind.capitalize()}: the mean reward of sampled replies {verb} from {reward.before.value:+.3f} to "
        f"{reward.after.value:+.3f}, a paired difference of {step.value:+.3f} whose {100 * confidence:g} % interval "
        f"({step.low:+.3f} to {step.high:+.3f}) {why}"
    )
    return Verdict(kind, sentence + _standing(placements, "" if kind == "worse" else "still ") + ".")


def _standing(placements: Sequence[Placement], still: str) -> str:
    # Placements come weakest player first: of those below the retest, the last one is the strongest.
    named = {p.stands: f"{p.stands} “{p.player}” ({p.reward:+.3f})" for p in placements if p.stands != "below"}
    parts = list(named.values())
    if stronger := [p for p in placements if p.stands == "below"]:
        parts.append(f"{still}below “{stronger[0].player}” ({stronger[0].reward:+.3f})")
    if not parts:
        return ""
    *first, last = parts
    return (
        f"; among players without a model, the retest is {' and '.join([', '.join(first), last] if first else [last])}"
    )


def _worth(row: Row, quantity: str, measures: Mapping[str, frozenset[str]]) -> float:
    return float(row["reward"]) if quantity == "reward" else float(row["outcome"] in measures[quantity])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _natural(label: str) -> list[tuple[int, str]]:
    """Sorts "2 marks" before "10 marks"."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", label)]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value
