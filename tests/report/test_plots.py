"""Claims about the figures: what they show, and that their files repeat."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from tuneloop.errors import UserError
from tuneloop.evaluation.comparison import Comparison
from tuneloop.report import plots
from tuneloop.report.colours import LIGHT_AND_DARK, outcome_colours, text_on
from tuneloop.report.figures import house_style, save_png, spread, themed_svg
from tuneloop.report.history import Columns, read_columns, running_mean
from tuneloop.tasks import load_task

TASK = load_task("tictactoe")
LINES = {"any square": -0.377, "any free square": 0.483, "best possible": 0.923}


@pytest.fixture(autouse=True)
def style() -> Iterator[None]:
    with house_style():
        yield


@pytest.fixture(scope="module")
def history(experiment: Path) -> Columns:
    found = read_columns(experiment / "train/history.csv", plots.HISTORY_COLUMNS)
    assert found is not None
    return found


def test_the_same_numbers_are_the_same_bytes_whatever_the_readers_settings(
    comparison: Comparison, history: Columns, tmp_path: Path
) -> None:
    def files(name: str) -> list[bytes]:
        drawn = [plots.before_after(comparison, LINES), plots.outcomes(history, TASK.outcomes, TASK.measures)]
        for plot in drawn:
            save_png(plot.figure, tmp_path / f"{name}-{plot.name}.png")
        return [(tmp_path / f"{name}-{plot.name}.png").read_bytes() for plot in drawn]

    first = files("first")
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9}), house_style():
        assert files("second") == first
    assert all(b"Software" not in png and png.startswith(b"\x89PNG") for png in first)


def test_outcome_shares_add_up_to_one_at_every_step(history: Columns) -> None:
    plot = plots.outcomes(history, TASK.outcomes, TASK.measures)
    (ax,) = plot.figure.axes
    # The upper edge of the last band of the stack is the sum of all: 1 everywhere.
    top = ax.collections[-1].get_paths()[0].vertices
    edge = [y for x, y in top if 2 <= x <= len(history["step"])]
    assert max(edge) == pytest.approx(1.0)
    shares = sum(history[f"share_{name}"] for name in TASK.outcomes)
    assert np.allclose(shares, 1)


def test_shares_that_do_not_add_up_are_refused_with_the_step(history: Columns) -> None:
    broken = dict(history) | {"share_win": history["share_win"] + np.where(history["step"] == 7, 0.05, 0)}
    with pytest.raises(UserError, match=r"step 7: the outcome shares add up to 1\.05"):
        plots.outcomes(broken, TASK.outcomes, TASK.measures)


def test_titles_say_what_is_seen(history: Columns) -> None:
    plot = plots.reward(history, None, LINES)
    window = 6  # a twentieth of 120 steps
    first, last = history["reward_mean"][:window].mean(), history["reward_mean"][-window:].mean()
    expected = f"Training reward went from {first:+.2f} to {last:+.2f} in 120 steps".replace("-", "−")
    assert plot.figure.axes[0].get_title(loc="left") == expected
    assert f"{first:+.2f}" in plot.alt and "any free square +0.48" in plot.alt


def test_every_reference_line_is_drawn_and_named(history: Columns) -> None:
    (ax,) = plots.reward(history, None, LINES).figure.axes
    heights = {line.get_ydata()[0] for line in ax.lines if len(set(line.get_ydata())) == 1}
    assert set(LINES.values()) <= heights
    assert [text.get_text() for text in ax.texts] == [
        "any square −0.38",
        "any free square +0.48",
        "best possible +0.92",
    ]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_run_of_few_steps_still_has_its_figures(
    make_experiment: Callable[..., Path], tmp_path: Path, steps: int
) -> None:
    data = make_experiment(tmp_path, steps=steps)
    short = read_columns(data / "train/history.csv", plots.HISTORY_COLUMNS)
    for draw in (plots.lengths, plots.ratio, plots.entropy):
        save_png(draw(short).figure, tmp_path / "figure.png")
    for plot in (plots.reward(short, None, LINES), plots.outcomes(short, TASK.outcomes, TASK.measures)):
        save_png(plot.figure, tmp_path / "figure.png")


def test_no_truncated_reply_at_all_is_no_curve_of_truncated_replies(history: Columns) -> None:
    never = dict(history) | {"length_truncated": np.full(len(history["step"]), np.nan)}
    (ax,) = plots.lengths(never).figure.axes
    assert [text.get_text().split(" (")[0] for text in ax.get_legend().get_texts()] == ["all", "finished"]


def test_svg_follows_the_readers_scheme_and_names_no_other_host(comparison: Comparison) -> None:
    svg = themed_svg(plots.before_after(comparison, LINES).figure)
    assert "prefers-color-scheme:dark" in svg and "fill: var(--after)" in svg
    body = svg.partition("</style>")[2]
    assert not [light for light, _ in LIGHT_AND_DARK.values() if light in body]
    assert not re.findall(r'(?:href|src)="(?!#)', body)


def test_a_running_mean_leaves_out_what_is_missing() -> None:
    # By hand: windows of two over 1, –, 3, 5.
    values = np.array([1.0, np.nan, 3.0, 5.0])
    assert running_mean(values, 2).tolist() == [1.0, 1.0, 3.0, 4.0]
    assert np.isnan(running_mean(np.array([np.nan]), 2)).all()


def test_labels_are_moved_apart_no_further_than_needed() -> None:
    assert spread([0.1, 0.5], 0.1, 0, 1) == [0.1, 0.5]
    placed = spread([0.99, 0.98, 0.2, 0.97], 0.1, 0, 1)
    assert placed == pytest.approx([1.0, 0.9, 0.2, 0.8])
    assert all(b - a >= 0.1 - 1e-9 for a, b in pairwise(sorted(placed)))


def test_outcomes_are_told_apart_by_colour_and_their_names_can_be_read_on_it() -> None:
    colours = outcome_colours(TASK.outcomes, TASK.measures)
    assert list(colours) == list(TASK.outcomes) and len(set(colours.values())) == len(colours)

    def luminance(colour: str) -> float:  # WCAG 2.2, written out once more
        parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    for colour in colours.values():
        light, dark = sorted((luminance(colour), luminance(text_on(colour))), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5  # WCAG AA for text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("step,other\n1,2\n", "no column reward_mean"),
        ("step,reward_mean\n1,0.5\n2,high\n", "line 3: reward_mean is 'high', not a number"),
    ],
)
def test_a_broken_history_is_refused_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "history.csv").write_text(text)
    with pytest.raises(UserError, match=says):
        read_columns(tmp_path / "history.csv", ["step", "reward_mean"])


def test_a_missing_or_empty_history_is_none(tmp_path: Path) -> None:
    assert read_columns(tmp_path / "history.csv", ["step"]) is None
    (tmp_path / "history.csv").write_text("step\n")
    assert read_columns(tmp_path / "history.csv", ["step"]) is None
