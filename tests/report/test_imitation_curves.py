"""The training curves of runs under sft and dpo, in the figures and in the page."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tuneloop.artifacts import write_csv
from tuneloop.report import plots
from tuneloop.report.figures import house_style
from tuneloop.report.history import read_columns

RATIO = ("ratio_mean", "ratio_std", "ratio_min", "ratio_max", "clip_low", "clip_high")
PREFERENCES = {"pair_accuracy": 0.9, "log_ratio_margin": 3.0, "log_ratio_chosen": -1.0, "log_ratio_rejected": -4.0}


def imitate(data: Path, algorithm: str, rolls_out_every: int = 1) -> None:
    """Rewrite the experiment's history as one of sft or dpo."""
    path = data / "train/history.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row |= dict.fromkeys(RATIO, "") | {"loss": 0.7} | (PREFERENCES if algorithm == "dpo" else {})
        step = int(row["step"])
        if step % rolls_out_every and step != 1:
            about_replies = [n for n in row if n.startswith(("reward", "share", "length", "zero"))]
            row |= dict.fromkeys(about_replies, "")
    write_csv(path, rows)


@pytest.mark.parametrize(
    ("algorithm", "every", "shown", "not_shown"),
    [("dpo", 1, {"loss", "preferences"}, {"ratio"}), ("sft", 20, {"loss"}, {"ratio", "preferences"})],
)
def test_the_report_shows_the_losses_curve_in_the_place_of_the_ratios(
    make_experiment: Callable[..., Path], compare_in: Callable, tmp_path: Path,
    algorithm: str, every: int, shown: set[str], not_shown: set[str],
) -> None:  # fmt: skip
    data = make_experiment(tmp_path / "data", steps=40)
    imitate(data, algorithm, every)
    compare_in(data)
    drawn = {path.stem for path in (data / "compare/plots").glob("*.png")}
    assert shown <= drawn and not drawn & not_shown
    assert {"reward", "outcomes", "lengths", "entropy"} <= drawn
    page = (data / "compare/report.html").read_text(encoding="utf-8")
    texts = re.findall('alt="([^"]*)"', page)
    unit = "pair" if algorithm == "dpo" else "token"
    assert f"Loss of training from 0.700 to 0.700 nats a {unit}." in texts
    assert not any("nan" in text or "olicy ratio" in text for text in texts)


def test_the_reward_curve_is_that_of_the_steps_that_rolled_out(
    make_experiment: Callable[..., Path], tmp_path: Path
) -> None:
    data = make_experiment(tmp_path / "data", steps=40)
    imitate(data, "sft", rolls_out_every=20)
    history = read_columns(data / "train/history.csv", plots.HISTORY_COLUMNS)
    sampled = plots.rolled_out(history)
    assert sampled["step"].tolist() == [1, 20, 40] and np.isfinite(sampled["reward_mean"]).all()
    with house_style():
        title = plots.reward(sampled, None, {}).figure.axes[0].get_title(loc="left")
    assert title.endswith("in 40 steps")
