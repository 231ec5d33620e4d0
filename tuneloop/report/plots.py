"""The figures of the report. Every title says what the figure shows, in numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from tuneloop.errors import UserError
from tuneloop.evaluation.comparison import Comparison
from tuneloop.report.colours import AFTER, BEFORE, GRID, INK, MUTED, SOFT, THIRD, outcome_colours
from tuneloop.report.figures import new_figure, spread
from tuneloop.report.history import Columns, running_mean, smoothing_window
from tuneloop.report.numbers import typeset

HISTORY_COLUMNS = (
    *("step", "reward_mean", "length_all", "length_finished", "length_truncated", "ratio_mean", "ratio_std"),
    *("ratio_min", "ratio_max", "clip_low", "clip_high", "zero_variance_groups", "entropy"),
)
EVALUATION_COLUMNS = ("step", "reward")


@dataclass(frozen=True)
class Plot:
    """A figure, the name of its file without ending, and its text for readers who cannot see it."""

    name: str
    figure: Figure
    alt: str


def rolled_out(history: Columns) -> Columns:
    """The rows of the steps that sampled replies: all of them, but where training is on examples from a file."""
    there = np.isfinite(history["reward_mean"])
    return history if there.all() else {name: values[there] for name, values in history.items()}


def before_after(comparison: Comparison, lines: Mapping[str, float]) -> Plot:
    """Bars with intervals for the sampled replies; `lines` are rewards to hold them against."""
    figure, (left, right) = new_figure(columns=2, width_ratios=(1, 1.5))
    reward = comparison.sampled["reward"]
    measures = {name: change for name, change in comparison.sampled.items() if name != "reward"}
    for ax, changes, form in ((left, {"reward": reward}, "{:+.2f}"), (right, measures, "{:.2f}")):
        for place, change in enumerate(changes.values()):
            for x, interval, colour in ((place - 0.2, change.before, BEFORE), (place + 0.2, change.after, AFTER)):
                ax.bar(x, interval.value, 0.36, color=colour)
                ends = [[interval.value - interval.low], [interval.high - interval.value]]
                ax.errorbar(x, interval.value, ends, color=INK, capsize=4, lw=1.3, capthick=1.3)
                up = interval.value >= 0
                ax.annotate(
                    typeset(form.format(interval.value)),
                    (x, interval.high if up else interval.low),
                    xytext=(0, 4 if up else -4),
                    textcoords="offset points",
                    ha="center",
                    va="bottom" if up else "top",
                    fontsize=9,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},  # no line through a number
                )
        ax.set_xticks(range(len(changes)), list(changes))
        ax.tick_params(axis="x", length=0)
        ax.set_xlim(-0.6, len(changes) - 0.4)
    values = [*lines.values(), reward.before.low, reward.after.low, reward.before.high, reward.after.high, 0]
    _reward_axis(left, values, lines)
    left.axhline(0, color=MUTED, lw=1)
    left.set_xticks([-0.2, 0.2], ["before", "after"])
    left.set_ylabel("mean reward")
    right.set_ylim(0, 1.12)
    right.set_yticks(np.linspace(0, 1, 6))
    right.yaxis.set_major_formatter(PercentFormatter(1))
    right.set_ylabel("share of sampled replies")
    shift = f"{reward.before.value:+.2f} before, {reward.after.value:+.2f} after"
    figure.suptitle(typeset(f"Held-out reward: {shift}"), x=0.01, ha="left", fontsize=11.5, fontweight="bold")
    shares = "; ".join(f"{n} {c.before.value:.2f} before, {c.after.value:.2f} after" for n, c in measures.items())
    return Plot("before_after", figure, f"Bars with intervals. Mean reward {shift}; {shares}.")


def reward(history: Columns, evaluations: Columns | None, lines: Mapping[str, float]) -> Plot:
    """Training reward raw and smoothed, held-out greedy evaluations, and rewards to hold them against."""
    figure, (ax,) = new_figure()
    steps, values = history["step"], history["reward_mean"]
    first, last = _line(ax, steps, values, AFTER, "training, sampled")
    held_out = ""
    shown = [values]
    if evaluations is not None:
        ax.plot(evaluations["step"], evaluations["reward"], "o", color=BEFORE, ms=5.5, label="held-out, greedy")
        shown.append(evaluations["reward"])
        held_out = f" Held-out greedy reward ends at {evaluations['reward'][-1]:+.2f}."
    _reward_axis(ax, [*np.concatenate(shown), *lines.values()], lines)
    ax.set_ylabel("mean reward")
    _finish(ax, f"Training reward went from {first:+.2f} to {last:+.2f} in {_counted(int(steps[-1]))}", steps)
    compared = ", ".join(f"{name} {value:+.2f}" for name, value in lines.items())
    return Plot(
        "reward", figure, f"Training reward from {first:+.2f} to {last:+.2f}.{held_out} Reference lines: {compared}."
    )


def lengths(history: Columns) -> Plot:
    """Mean reply length of all, finished and truncated replies."""
    figure, (ax,) = new_figure()
    steps = history["step"]
    first, last = _line(ax, steps, history["length_all"], INK, "all", raw=False)
    _line(ax, steps, history["length_finished"], AFTER, "finished", raw=False, dashes=(4, 2))
    cut = history["length_truncated"]
    if np.isfinite(cut).any():
        ax.plot(steps, cut, ".", color=BEFORE, ms=5, label="truncated")
    ax.set_ylim(0, 1.08 * np.nanmax([*history["length_all"], *cut]))
    ax.set_ylabel("tokens in a reply")
    _finish(ax, f"Replies were {first:.1f} tokens long at first, {last:.1f} at the end", steps)
    truncated = f"{np.isfinite(cut).sum()} of {len(steps)} steps had truncated replies"
    return Plot("lengths", figure, f"Mean reply length from {first:.1f} to {last:.1f} tokens; {truncated}.")


def outcomes(history: Columns, names: Sequence[str], measures: Mapping[str, frozenset[str]]) -> Plot:
    """Stacked shares of the outcomes. Raises UserError if they do not add up to 1 at some step."""
    figure, (ax,) = new_figure()
    steps = history["step"]
    shares = np.array([history[f"share_{name}"] for name in names])
    off = np.abs(shares.sum(axis=0) - 1) > 1e-3
    if off.any():
        at = int(np.argmax(off))
        raise UserError(
            f"training history, step {steps[at]:g}: the outcome shares add up to {shares[:, at].sum():.4f}, not 1; "
            "some outcome is missing or counted twice"
        )
    window = smoothing_window(len(steps))
    smooth = np.array([running_mean(row, window) for row in shares])
    colours = outcome_colours(names, measures)
    x, *stack = _with_two_ends(steps, *smooth)
    ax.stackplot(x, stack, colors=[colours[n] for n in names], labels=names, edgecolor="white", linewidth=0.5)
    ax.set_ylim(0, 1)
    ax.margins(x=0)
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    ax.set_ylabel(f"share of replies (mean of {window} steps)" if window > 1 else "share of replies")
    changes = []
    for measure, counted in measures.items():
        total = sum(smooth[i] for i, name in enumerate(names) if name in counted)
        changes.append(f"{measure} {100 * total[min(window, len(steps)) - 1]:.0f} → {100 * total[-1]:.0f} %")
    seen = ", ".join(changes)
    _finish(ax, f"Training replies: {seen}", steps, legend=False)
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), reverse=True)
    return Plot("outcomes", figure, f"Stacked area of outcome shares over training. From first to last steps: {seen}.")


def ratio(history: Columns) -> Plot:
    """Spread of the policy ratio over the updates of each step, and the share of clipped replies."""
    figure, (top, bottom) = new_figure(rows=2, height=4.6, sharex=True, height_ratios=(1.5, 1))
    steps, mean, std = history["step"], history["ratio_mean"], history["ratio_std"]
    low, high = history["ratio_min"], history["ratio_max"]
    x, least, greatest, middle, around = _with_two_ends(steps, low, high, mean, std)
    top.fill_between(x, least, greatest, color=GRID, lw=0, label="least to greatest")
    top.fill_between(x, middle - around, middle + around, color=SOFT, lw=0, label="mean ± standard deviation")
    top.plot(x, middle, color=INK, lw=1.2, label="mean")
    top.set_ylabel("policy ratio")
    window = smoothing_window(len(steps))
    clipped = history["clip_low"] + history["clip_high"]
    _line(bottom, steps, history["clip_low"], BEFORE, "clipped below", raw=False)
    _line(bottom, steps, history["clip_high"], AFTER, "clipped above", raw=False, dashes=(4, 2))
    bottom.set_ylim(bottom=0)
    bottom.yaxis.set_major_formatter(PercentFormatter(1))
    bottom.set_ylabel("share of replies")
    seen = "never moved: no step had an update"
    if np.isfinite(low).any():
        seen = f"{np.nanmin(low):.3f} to {np.nanmax(high):.3f}, {100 * np.nanmean(clipped):.1f} % of replies clipped"
    _finish(top, f"Policy ratio {seen}", steps, xlabel=False)
    _finish(bottom, None, steps)
    smoothed = f" Clip shares are means of {window} steps." if window > 1 else ""
    return Plot("ratio", figure, f"Spread of the policy ratio and share of clipped replies. Ratio {seen}.{smoothed}")


def loss(history: Columns) -> Plot:
    """The loss of sft (nats a token) or dpo (nats a pair)."""
    figure, (ax,) = new_figure()
    steps = history["step"]
    unit = "pair" if "pair_accuracy" in history else "token"
    first, last = _line(ax, steps, history["loss"], THIRD, "loss")
    ax.set_ylim(bottom=0)
    ax.set_ylabel(f"loss (nats a {unit})")
    _finish(ax, f"Loss went from {first:.3f} to {last:.3f} nats a {unit}", steps)
    return Plot("loss", figure, f"Loss of training from {first:.3f} to {last:.3f} nats a {unit}.")


def preferences(history: Columns) -> Plot:
    """How much likelier than under the base policy the chosen and the rejected replies of dpo became."""
    figure, (top, bottom) = new_figure(rows=2, height=4.6, sharex=True, height_ratios=(1.5, 1))
    steps = history["step"]
    _, chosen = _line(top, steps, history["log_ratio_chosen"], AFTER, "chosen", raw=False)
    _, rejected = _line(top, steps, history["log_ratio_rejected"], BEFORE, "rejected", raw=False, dashes=(4, 2))
    top.axhline(0, color=MUTED, lw=1)
    top.set_ylabel("log ratio to base (nats)")
    _, right = _line(bottom, steps, history["pair_accuracy"], INK, "pairs told apart the right way")
    bottom.set_ylim(0, 1.05)
    bottom.yaxis.set_major_formatter(PercentFormatter(1))
    bottom.set_ylabel("share of pairs")
    seen = f"chosen {chosen:+.1f}, rejected {rejected:+.1f} nats from the base policy"
    _finish(top, f"At the end: {seen}", steps, xlabel=False)
    _finish(bottom, None, steps)
    return Plot(
        "preferences", figure, f"Log ratios of the step's pairs. At the end {seen}; {100 * right:.0f} % told apart."
    )


def entropy(history: Columns) -> Plot:
    """Entropy of the policy, and the groups that taught nothing because all rewards were equal."""
    figure, (top, bottom) = new_figure(rows=2, height=4.6, sharex=True, height_ratios=(1.5, 1))
    steps = history["step"]
    first, last = _line(top, steps, history["entropy"], THIRD, "entropy")
    top.set_ylim(bottom=0)
    top.set_ylabel("entropy (nats)")
    known = rolled_out(history)
    idle, idle_last = _line(bottom, known["step"], known["zero_variance_groups"], BEFORE, "groups of equal rewards")
    bottom.set_ylim(bottom=0)
    bottom.set_ylabel("groups a step")
    _finish(top, f"Entropy went from {first:.3f} to {last:.3f}", steps, xlabel=False)
    _finish(bottom, None, steps)
    return Plot(
        "entropy",
        figure,
        f"Entropy from {first:.3f} to {last:.3f}; groups of equal rewards from {idle:.1f} to {idle_last:.1f} a step.",
    )


def _line(
    ax: Axes,
    steps: NDArray[np.float64],
    values: NDArray[np.float64],
    colour: str,
    label: str,
    raw: bool = True,
    dashes: tuple[float, float] | None = None,
) -> tuple[float, float]:
    """Draw a smoothed curve (over the raw one); the means of its first and last window."""
    window = smoothing_window(len(steps))
    smooth = running_mean(values, window)
    if raw and window > 1:
        ax.plot(steps, values, color=colour, lw=0.8, alpha=0.35)
    name = f"{label} (mean of {window} steps)" if window > 1 else label
    (drawn,) = ax.plot(steps, smooth, color=colour, label=name, marker="o" if len(steps) < 3 else None)
    if dashes:
        drawn.set_dashes(dashes)
    return float(smooth[min(window, len(steps)) - 1]), float(smooth[-1])


def _with_two_ends(steps: NDArray[np.float64], *columns: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Areas need two ends: the only step of a run is drawn half a step to either side."""
    if len(steps) > 1:
        return [steps, *columns]
    return [steps[0] + np.array([-0.5, 0.5]), *(np.repeat(column, 2) for column in columns)]


def _counted(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"


def _reward_axis(ax: Axes, values: Sequence[float], lines: Mapping[str, float]) -> None:
    """Room for every value, and each reference line named at the right edge."""
    finite = [value for value in values if np.isfinite(value)]
    pad = 0.08 * (max(finite) - min(finite) or 1)
    low, high = min(finite) - pad, max(finite) + pad
    ax.set_ylim(low, high)
    places = spread(list(lines.values()), 0.062 * (high - low), low, high)
    for (name, value), y in zip(lines.items(), places):
        ax.axhline(value, color=MUTED, lw=0.9, ls=(0, (5, 3)), zorder=1)
        ax.annotate(
            typeset(f"{name} {value:+.2f}"),
            xy=(1, value),
            xytext=(1.04, y),
            xycoords=ax.get_yaxis_transform(),
            textcoords=ax.get_yaxis_transform(),
            arrowprops={"arrowstyle": "-", "color": MUTED, "lw": 0.7, "shrinkA": 1, "shrinkB": 0},
            va="center",
            fontsize=8.5,
            annotation_clip=False,
        )


def _finish(ax: Axes, title: str | None, steps: NDArray[np.float64], legend: bool = True, xlabel: bool = True) -> None:
    """Title, and a legend between it and the curves, where it hides none of them."""
    if legend:
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2, handlelength=1.6)
    if title:
        ax.set_title(typeset(title), pad=26 if legend else None)
    if xlabel:
        ax.set_xlabel("training step")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10], min_n_ticks=1))
