"""Progress: few plain lines in a log, a bar on a terminal."""

from __future__ import annotations

import io
import re
import sys

import pytest

from tuneloop import progress as module
from tuneloop.progress import Progress


class Clock:
    """Stands in for `time`: seconds pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_a_log_gets_one_line_at_the_end_however_fast_the_work_was(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress("train", 400) as progress:
        for _ in range(400):
            progress.advance(reward=0.4)
    assert capsys.readouterr().out == "[train] 400/400 reward=0.400 left=0s\n"


def test_a_log_gets_at_most_one_line_in_ten_seconds_with_the_time_that_is_left(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress("train", 100) as progress:
        for _ in range(50):
            clock.now += 1
            progress.advance(reward=-0.5, length=20)
    lines = capsys.readouterr().out.splitlines()
    # One second a step: lines after 10, 20, … seconds; as many seconds are left as steps.
    assert lines == [f"[train] {n}/100 reward=-0.500 length=20.000 left={100 - n}s" for n in (10, 20, 30, 40, 50)]


def test_a_continued_run_counts_from_where_it_stood_and_judges_speed_by_its_own_steps(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress("train", 100, done=80) as progress:
        for _ in range(5):
            clock.now += 2
            progress.advance()
    # 5 steps in 10 seconds, 15 to go.
    assert capsys.readouterr().out == "[train] 85/100 left=30s\n"


def test_a_step_may_count_for_many(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("baseline", 300) as progress:
        progress.advance(128)
        progress.advance(128)
        progress.advance(44)
    assert capsys.readouterr().out == "[baseline] 300/300 left=0s\n"


def test_work_that_fails_says_nothing_of_its_end(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="broken"), Progress("train", 3) as progress:
        progress.advance()
        raise ValueError("broken")
    assert capsys.readouterr().out == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_that_starts_where_the_run_stood(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("train", 4, done=2) as progress:
        progress.advance(reward=0.25)
        progress.advance(reward=0.5)
    drawn = [line for line in re.split(r"[\r\n]+", terminal.getvalue()) if line.strip()]
    assert "| 2/4" in drawn[0]
    assert "| 4/4" in drawn[-1]
    assert "reward=0.500" in drawn[-1]
    assert capsys.readouterr().out == ""
