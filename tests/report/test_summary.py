"""Claims about the plain-text summary and the forms of its numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuneloop.evaluation.comparison import Comparison
from tuneloop.report import numbers
from tuneloop.report.summary import summary_text


def test_the_summary_fits_a_terminal_and_ends_with_the_verdict(comparison: Comparison) -> None:
    text = summary_text(comparison)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert text.endswith("\n") and all(line == line.rstrip() for line in lines)
    last_paragraph = " ".join(text.rstrip().rpartition("\n\n")[2].split("\n"))
    assert last_paragraph == comparison.verdict.sentence


def test_the_summary_shows_intervals_players_and_games(comparison: Comparison) -> None:
    text = summary_text(comparison)
    difference = comparison.sampled["reward"].difference
    assert f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]" in text
    for player, values in comparison.reference.items():
        assert any(line.startswith(player) and f"{values['reward']:+.3f}" in line for line in text.splitlines())
    counts = "-".join(map(str, comparison.games["after"]["X"]["minimax"].values()))
    assert any(line.startswith("as X against minimax") and line.endswith(counts) for line in text.splitlines())


def test_without_games_the_summary_leaves_them_out(comparison: Comparison) -> None:
    text = summary_text(replace(comparison, games=None))
    assert "games" not in text and text.endswith(summary_text(comparison)[-80:])


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (numbers.signed(-0.0001), "+0.000"),  # no "-0.000"
        (numbers.signed(-0.377), "-0.377"),
        (numbers.single_reward(-1.0), "−1"),
        (numbers.single_reward(0.0), "0"),
        (numbers.percent(0.0), "0.0 %"),
        (numbers.percent(0.0001), "< 0.1 %"),
        (numbers.percent(0.9999), "> 99.9 %"),
        (numbers.percent(1.0), "100.0 %"),
        (numbers.p_value(1e-9), "< 0.0001"),
        (numbers.p_value(0.0312), "0.031"),
        (numbers.tokens(None), "none"),
        (numbers.duration(59.94), "59.9 s"),
        (numbers.duration(3725), "1 h 2 min"),
        (numbers.typeset("from -0.4 to win-else-9, x-2"), "from −0.4 to win-else-9, x-2"),
    ],
)
def test_numbers_are_written_so_that_they_cannot_be_misread(written: str, expected: str) -> None:
    assert written == expected
