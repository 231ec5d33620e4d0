"""The comparison as plain text of at most 100 columns, for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from tuneloop.evaluation.comparison import Change, Comparison
from tuneloop.report.numbers import p_value, percent, quantity, tokens, with_interval

WIDTH = 100


def summary_text(comparison: Comparison) -> str:
    """Before/after tables with intervals, noise band, reference players, games and the verdict.
    Ends with a newline; the same comparison gives the same text."""
    c = comparison
    level = f"{100 * c.confidence:g} % intervals, clustered by class"
    lines = [
        f"{c.records} held-out records in {c.clusters} classes, {c.samples} sampled replies to each; {level}.",
        "",
        *_changes("sampled", c.sampled),
        "noise band (baseline again, other seed): "
        + ", ".join(f"{name} up to {band.bound:.3f}" for name, band in c.noise.items()),
        "",
        *_changes("greedy", c.greedy),
        *(
            f"McNemar {name}: {test.gained} gained, {test.lost} lost, exact p {p_value(test.p)}"
            for name, test in c.mcnemar.items()
        ),
        "",
        *_reference(c.reference),
        "",
        *_replies(c),
        *_games(c),
        "",
    ]
    return "\n".join([*(line.rstrip() for line in lines), *textwrap.wrap(c.verdict.sentence, WIDTH)]) + "\n"


def _changes(decoding: str, changes: Mapping[str, Change]) -> list[str]:
    rows = [(decoding, "before", "after", "difference")]
    for name, change in changes.items():
        sides = (with_interval(name, change.before), with_interval(name, change.after))
        rows.append((name, *sides, with_interval(name, change.difference, difference=True)))
    return _columns(rows)


def _reference(reference: Mapping[str, Mapping[str, float]]) -> list[str]:
    names = list(next(iter(reference.values()), {}))
    rows = [("players without a model", *names)]
    rows += [(player, *(quantity(n, numbers[n]) for n in names)) for player, numbers in reference.items()]
    return _columns(rows)


def _replies(c: Comparison) -> list[str]:
    rows = [("sampled replies", "before", "after")]
    sides = [c.shares["sampled"][side] for side in ("before", "after")]
    rows += [
        (outcome, *(percent(shares[outcome]) for shares in sides))
        for outcome in sides[0]
        if any(s[outcome] for s in sides)
    ]
    lengths = [c.lengths["sampled"][side] for side in ("before", "after")]
    rows += [
        (f"tokens, {ending}", *(tokens(of[ending]) for of in lengths)) for ending in ("all", "finished", "truncated")
    ]
    return _columns(rows)


def _games(c: Comparison) -> list[str]:
    if not c.games:
        return []
    rows = [("games (won-drawn-lost-forfeit)", "before", "after")]
    for side, opponents in c.games["after"].items():
        for opponent, after in opponents.items():
            before = c.games["before"].get(side, {}).get(opponent, {})
            rows.append((f"as {side} against {opponent}", *("-".join(map(str, of.values())) for of in (before, after))))
    return ["", *_columns(rows)]


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Left-aligned first column, the others right-aligned, two spaces between."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))])
        for row in rows
    ]
