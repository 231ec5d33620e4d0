"""The table of move mode against game mode."""

from __future__ import annotations

from pathlib import Path


def metrics(reward: float, legal: float, drawn: int) -> dict:
    side = {o: {"won": 1, "drawn": drawn, "lost": 0, "forfeit": 0} for o in ("random", "win/block", "minimax")}
    sampled = {"reward": {"after": {"value": reward}}, "legal": {"after": {"value": legal}}}
    return {"sampled": sampled, "games": {"before": {}, "after": {"X": side, "O": side}}}


def test_a_row_a_run_and_a_mean_a_label_with_the_games_of_both_sides_together(root: Path, monkeypatch):
    monkeypatch.syspath_prepend(str(root))
    from bench.modes import table

    runs = [("move", metrics(0.5, 0.9, 2)), ("move", metrics(0.7, 1.0, 3)), ("game", metrics(-0.25, 0.5, 0))]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table(runs).splitlines()]
    assert head == ["run", "held-out reward", "illegal", "against random", "against win/block", "against minimax"]
    assert rows == [
        ["move", "+0.500", "10.0 %", *["2-4-0-0"] * 3],
        ["move", "+0.700", "0.0 %", *["2-6-0-0"] * 3],
        ["game", "-0.250", "50.0 %", *["2-0-0-0"] * 3],
        ["move, mean", "+0.600", "5.0 %", *["2.0-5.0-0.0-0.0"] * 3],
        ["game, mean", "-0.250", "50.0 %", *["2.0-0.0-0.0-0.0"] * 3],
    ]
