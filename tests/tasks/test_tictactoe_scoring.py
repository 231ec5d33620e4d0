"""Rules, minimax, outcomes and rewards, against the brute force; reference players against the design."""

from __future__ import annotations

from fractions import Fraction

import pytest
from brute_force import FULL, VALUES, has_line, masks, open_boards, outcome

from tuneloop.tasks.contract import Outcome
from tuneloop.tasks.tictactoe import TASK, board, players
from tuneloop.tasks.tictactoe.generator import to_rows
from tuneloop.toolcalls import Fault, ToolCall

BOARDS = open_boards()
RECORDS = [{"id": b, "board": to_rows(b)} for b in BOARDS]
# The table of the design.
REWARDS = {
    "no_call": -1.0,
    "several_calls": -1.0,
    "wrong_tool": -1.0,
    "bad_arguments": -1.0,
    "occupied": -1.0,
    "legal": 0.0,
    "optimal": 0.8,
    "win": 1.0,
}


def text(x: int, o: int) -> str:
    return "".join("X" if x >> i & 1 else "O" if o >> i & 1 else "." for i in range(9))


def choose(square: int) -> ToolCall:
    return ToolCall("choose_square", {"square": square})


def test_play_reaches_5478_positions_and_minimax_values_them_all_like_the_brute_force():
    """5478 is the well-known number of positions that legal play reaches, ended games included."""
    assert len(VALUES) == 5478
    for (x, o), value in VALUES.items():
        assert board.value(text(x, o)) == value


def test_the_winner_is_found_on_every_position_that_play_reaches():
    for x, o in VALUES:
        expected = "X" if has_line(x) else "O" if has_line(o) else "draw" if x | o == FULL else None
        assert board.winner(text(x, o)) == expected


def test_the_best_squares_keep_the_value_for_both_sides():
    for (x, o), value in VALUES.items():
        if has_line(x) or has_line(o) or x | o == FULL:
            continue
        x_moves = x.bit_count() == o.bit_count()
        kept = [
            i + 1
            for i in range(9)
            if not (x | o) >> i & 1 and VALUES[(x | 1 << i, o) if x_moves else (x, o | 1 << i)] == value
        ]
        assert board.best_squares(text(x, o)) == kept


@pytest.mark.parametrize("square", [0, -1, 10, -9, 1])
def test_a_mark_is_only_placed_on_a_free_square(square):
    with pytest.raises(ValueError, match="not free"):
        board.place("X........", square, "O")


def test_every_move_on_every_board_earns_what_the_brute_force_says():
    counts = dict.fromkeys(REWARDS, 0)
    for b, record in zip(BOARDS, RECORDS):
        for square in range(1, 10):
            expected = outcome(b, square)
            assert TASK.score(record, choose(square)) == Outcome(expected, REWARDS[expected])
            counts[expected] += 1
    assert all(counts[name] for name in ("occupied", "legal", "optimal", "win"))
    assert sum(counts.values()) == 9 * 2201


def test_the_outcomes_are_the_designs_worst_first():
    assert TASK.outcomes == tuple(REWARDS)
    assert TASK.reward_range == (-1.0, 1.0)
    assert TASK.measures == {"legal": {"legal", "optimal", "win"}, "optimal": {"optimal", "win"}}


@pytest.mark.parametrize("fault", ["no_call", "several_calls", "wrong_tool", "bad_arguments"])
def test_every_fault_is_its_own_outcome_and_costs_one(fault):
    assert TASK.score(RECORDS[0], Fault(fault, "why")) == Outcome(fault, -1.0)


def test_a_win_is_worth_more_than_keeping_the_value_and_that_more_than_a_legal_move():
    """By hand on X.O/.O./X..: 4 completes 1-4-7; 8 and 9 make two threats; 2 and 6 let O block at 4."""
    record = TASK.parse("X.O/.O./X..")
    names = [TASK.score(record, choose(square)).name for square in range(1, 10)]
    assert names == ["occupied", "legal", "occupied", "win", "occupied", "legal", "occupied", "optimal", "optimal"]


def exact_references() -> dict[str, dict[str, Fraction]]:
    """The reference players in exact fractions, from the brute force."""

    def wins(mask: int, b: str) -> list[int]:
        return [s for s in range(1, 10) if b[s - 1] == "." and has_line(mask | 1 << (s - 1))]

    def any_free(b: str) -> list[int]:
        return [s for s in range(1, 10) if b[s - 1] == "."]

    choices = {
        "any square": lambda b: range(1, 10),
        "any free square": any_free,
        "win, else block, else any": lambda b: wins(masks(b)[0], b) or wins(masks(b)[1], b) or any_free(b),
        "best possible": lambda b: wins(masks(b)[0], b) or [s for s in any_free(b) if outcome(b, s) == "optimal"],
    }
    worth = {"reward": {name: Fraction(str(reward)) for name, reward in REWARDS.items()}}
    worth |= {m: {name: Fraction(name in yes) for name in REWARDS} for m, yes in TASK.measures.items()}
    return {
        player: {
            measure: sum(sum(table[outcome(b, s)] for s in squares(b)) / Fraction(len(squares(b))) for b in BOARDS)
            / len(BOARDS)
            for measure, table in worth.items()
        }
        for player, squares in choices.items()
    }


def test_the_reference_players_earn_what_the_design_says_and_exactly_what_fractions_give():
    table = TASK.reference_players(RECORDS)
    design = {
        "any square": -0.377,
        "any free square": 0.483,
        "win, else block, else any": 0.869,
        "best possible": 0.923,
    }
    assert {player: round(row["reward"], 3) for player, row in table.items()} == design
    exact = exact_references()
    assert table.keys() == exact.keys()
    for player, row in table.items():
        assert row == pytest.approx({measure: float(value) for measure, value in exact[player].items()}, abs=1e-12)


def test_a_share_of_all_boards_is_exactly_one():
    table = TASK.reference_players(RECORDS)
    assert table["any free square"]["legal"] == 1.0
    assert table["best possible"]["optimal"] == 1.0


def test_reference_players_do_not_depend_on_the_order_of_the_records():
    assert TASK.reference_players(RECORDS[::-1]) == TASK.reference_players(RECORDS)


def test_no_reference_player_ever_chooses_outside_the_board():
    for choices in players.REFERENCE.values():
        assert all(set(choices(b)) <= set(range(1, 10)) and choices(b) for b in BOARDS)
