"""One look for all figures, and files whose bytes repeat.

A figure is drawn once, in the light colours, and saved twice: as PNG, and as SVG whose colours
follow the reader's light or dark scheme.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tuneloop.artifacts import replacing
from tuneloop.report.colours import GRID, INK, LIGHT_AND_DARK, MUTED

WIDTH, HEIGHT = 7.2, 3.7
"""Inches."""

_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "axes.titlecolor": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "svg.fonttype": "path",
    "svg.hashsalt": "tuneloop",
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.1,
    "figure.constrained_layout.h_pad": 0.07,
}


@contextmanager
def house_style() -> Iterator[None]:
    """Everything drawn and saved inside looks the same, whatever the reader's matplotlibrc says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def new_figure(rows: int = 1, columns: int = 1, height: float = HEIGHT, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure of the house width without pyplot's global state; its axes row by row."""
    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, [ax for row in axes for ax in row]


def save_png(figure: Figure, path: Path | str) -> None:
    """Without the metadata that names the library's version: the same figure is the same bytes."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", facecolor="white", metadata={"Software": None})


def themed_svg(figure: Figure) -> str:
    """The figure as SVG text whose colours follow `prefers-color-scheme`, also inside an `<img>`."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    for role, (light, _) in LIGHT_AND_DARK.items():
        svg = svg.replace(light, f"var(--{role})")
    light, dark = ("".join(f"--{role}:{pair[i]};" for role, pair in LIGHT_AND_DARK.items()) for i in (0, 1))
    style = f"<style>:root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}</style>"
    head = svg.index(">") + 1
    return svg[:head] + style + svg[head:]


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions for labels: as near to `positions` as `gap` between neighbours allows, inside
    `low`..`high` where they fit."""
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    placed = [min(max(positions[i], low), high) for i in order]
    for k in range(1, len(placed)):
        placed[k] = max(placed[k], placed[k - 1] + gap)
    if placed and placed[-1] > high:
        placed[-1] = high
        for k in range(len(placed) - 2, -1, -1):
            placed[k] = min(placed[k], placed[k + 1] - gap)
    result = [0.0] * len(positions)
    for k, i in enumerate(order):
        result[i] = placed[k]
    return result
