"""How the cost of tuneloop's rollout and update grows with replies, reply length and boards, for nano.

    python -m bench.cost_growth            # measure: docs/cost_growth.csv and docs/images/cost_growth.png
    python -m bench.cost_growth --redraw   # draw the picture again from the numbers

Three sweeps: replies a step (8 a board, 32 tokens each), tokens a reply (64 replies to 8 boards), and
boards that 256 replies are spread over. Each point is measured in a process of its own, so that peak
memory is its own; no reply ends early.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from bench.workload import ROOT, Workload, make_policy, positive, run_child
from tuneloop.artifacts import write_csv
from tuneloop.errors import UserError
from tuneloop.report.colours import AFTER, BEFORE, INK, MUTED
from tuneloop.report.figures import house_style, new_figure, save_png

SWEEPS: Mapping[str, Sequence[tuple[int, int, int]]] = {
    "replies": [(n // 8, 8, 32) for n in (16, 32, 64, 128, 256, 512, 1024)],
    "tokens": [(8, 8, length) for length in (16, 32, 64, 128, 256, 512)],
    "boards": [(boards, 256 // boards, 32) for boards in (2, 4, 8, 16, 32, 64, 128)],
}
"""The points of every sweep: boards, replies a board, tokens a reply."""

X_AXES = {
    "replies": "replies a step",
    "tokens": "tokens a reply",
    "boards": "boards sharing 256 replies",
}
COLUMNS = ("sweep", "phase", "boards", "replies", "tokens", "seconds", "peak_mib", "loaded_mib")
TEXTS = COLUMNS[:2]
PHASES = {"rollout": BEFORE, "update": AFTER}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        if options.redraw:
            rows = read_rows(options.csv)
        else:
            rows = measured(options.sweeps, options.most, options.repeats, options.threads)
            write_csv(options.csv, rows)
        draw(rows, options.image)
    except UserError as error:
        print(f"cost_growth: {error}", file=sys.stderr)
        return 2
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.cost_growth", description=__doc__.splitlines()[0])
    made.add_argument("--threads", type=positive, default=2, help="of every process (default %(default)s)")
    made.add_argument("--repeats", type=positive, default=3, help="of which the median is taken (default %(default)s)")
    made.add_argument("--sweeps", nargs="+", choices=tuple(SWEEPS), default=list(SWEEPS), help="default: all")
    made.add_argument("--most", type=positive, default=1024, help="leave out larger points (default %(default)s)")
    made.add_argument("--csv", type=Path, default=ROOT / "docs/cost_growth.csv")
    made.add_argument("--image", type=Path, default=ROOT / "docs/images/cost_growth.png")
    made.add_argument("--redraw", action="store_true", help="measure nothing: draw from the CSV file")
    return made


def varied(sweep: str, point: tuple[int, int, int]) -> int:
    """What the sweep varies, at this point: its place on the horizontal axis."""
    boards, replies, tokens = point
    return {"replies": boards * replies, "tokens": tokens, "boards": boards}[sweep]


def measured(sweeps: Sequence[str], most: int, repeats: int, threads: int) -> list[dict[str, Any]]:
    """One row a sweep, point and phase. Raises UserError where `most` leaves no point."""
    wanted = [(sweep, point) for sweep in sweeps for point in SWEEPS[sweep] if varied(sweep, point) <= most]
    if not wanted:
        raise UserError(f"--most {most}: leaves no point of the sweeps {', '.join(sweeps)}")
    rows: list[dict[str, Any]] = []
    known: dict[tuple[object, ...], dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="cost-growth-") as name:
        for sweep, point in wanted:
            boards, replies, tokens = point
            workload = Workload("nano", boards, replies, tokens, 1, 1, "full", threads, 2026)
            for phase in PHASES:
                if (phase, point) not in known:
                    folder = Path(name) / "-".join(map(str, point))
                    if not folder.exists():
                        folder.mkdir()
                        make_policy(workload, folder)
                    known[phase, point] = run_child("bench.growth_point", [folder, phase, repeats], threads)
                found = known[phase, point]
                cost = (
                    round(found[key], digits) for key, digits in (("seconds", 4), ("peak_mib", 1), ("loaded_mib", 1))
                )
                rows.append(dict(zip(COLUMNS, (sweep, phase, boards, boards * replies, tokens, *cost))))
                print(", ".join(f"{key} {value}" for key, value in rows[-1].items()), file=sys.stderr, flush=True)
    return rows


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of the CSV file. Raises UserError if it is missing or not of this kind."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = [
                {key: row[key] if key in TEXTS else float(row[key]) for key in COLUMNS} for row in csv.DictReader(file)
            ]
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); measure first, without --redraw") from None
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: is not a table of bench.cost_growth ({type(error).__name__}: {error})") from None
    if not rows or not {row["sweep"] for row in rows} <= SWEEPS.keys():
        raise UserError(f"{path}: is not a table of bench.cost_growth: its sweeps are not {', '.join(SWEEPS)}")
    return rows


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Small multiples on doubly logarithmic axes: a column a sweep; seconds above, peak memory below."""
    sweeps = [sweep for sweep in SWEEPS if any(row["sweep"] == sweep for row in rows)]
    with house_style():
        figure, axes = new_figure(2, len(sweeps), height=5.4, sharex="col", sharey="row")
        figure.suptitle("What a rollout and an update of nano cost", x=0.01, ha="left", fontweight="bold", color=INK)
        for column, sweep in enumerate(sweeps):
            shown = [row for row in rows if row["sweep"] == sweep]
            above, below = axes[column], axes[len(sweeps) + column]
            above.set_yscale("log", base=10)
            below.set_yscale("log", base=2)
            curves(above, shown, "seconds")
            curves(below, shown, "peak_mib")
            mark_places(below, [row[sweep] for row in shown])
            below.set_xlabel(X_AXES[sweep])
        axes[0].set_ylabel("seconds")
        axes[0].yaxis.set_major_locator(LogLocator(base=10, subs=(1, 3)))
        axes[len(sweeps)].set_ylabel("peak memory (MiB)")
        seconds = [row["seconds"] for row in rows]
        axes[0].set_ylim(min(seconds) / 1.6, max(seconds) * 1.6)
        for column, sweep in enumerate(sweeps):
            if sweep != "boards":
                guide(axes[column], [row for row in rows if row["sweep"] == sweep])
        before_computing(axes[len(sweeps)], rows)
        axes[0].legend(loc="upper left", fontsize=8)
        save_png(figure, path)


def curves(ax: Axes, rows: Sequence[Mapping[str, Any]], quantity: str) -> None:
    """One line a phase, over what the rows' sweep varies."""
    ax.set_xscale("log", base=2)
    for phase, colour in PHASES.items():
        points = [(row[row["sweep"]], row[quantity]) for row in rows if row["phase"] == phase]
        ax.plot(*zip(*points), color=colour, marker="o", markersize=3.5, label=phase)
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.10g}"))


def mark_places(ax: Axes, places: Sequence[float]) -> None:
    ax.xaxis.set_major_locator(FixedLocator(sorted(set(places))))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    ax.tick_params(axis="x", labelsize=8)


def guide(ax: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """A dotted line below the curves along which twice as much costs twice as long."""
    rollout = [(row[row["sweep"]], row["seconds"]) for row in rows if row["phase"] == "rollout"]
    first, (last, end) = rollout[0][0], rollout[-1]
    end /= 1.8
    line = ([first, last], [end * first / last, end])
    ax.plot(*line, color=MUTED, linestyle=":", linewidth=1.2, label="in proportion")


def before_computing(ax: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """A dotted line at the memory that a process has before it computes anything."""
    loaded = min(row["loaded_mib"] for row in rows)
    for other in ax.figure.axes[len(ax.figure.axes) // 2 :]:
        other.axhline(loaded, color=MUTED, linestyle=":", linewidth=1.2)
    ax.set_ylim(loaded / 1.25, None)
    note = {"color": MUTED, "fontsize": 8, "va": "top"}
    ax.text(min(ax.get_xlim()) * 1.1, loaded / 1.02, "libraries and policy loaded", **note)


if __name__ == "__main__":
    sys.exit(main())
