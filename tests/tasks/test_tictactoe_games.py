"""Whole games: the helpers that evaluation plays them with, and the opponents."""

from __future__ import annotations

from random import Random

import pytest
from brute_force import VALUES, has_line, masks

from tuneloop.tasks.tictactoe import TASK
from tuneloop.tasks.tictactoe.players import OPPONENTS, win_or_block
from tuneloop.toolcalls import ToolCall

GAMES = TASK.games


def test_a_game_starts_empty_with_x_to_move_and_both_sides_can_be_played():
    start = GAMES.start()
    assert GAMES.to_move(start) == "X"
    assert GAMES.winner(start) is None
    assert [GAMES.is_legal(start, square) for square in range(-1, 12)] == [1 <= s <= 9 for s in range(-1, 12)]
    assert GAMES.sides == ("X", "O")


@pytest.mark.parametrize("x", OPPONENTS)
@pytest.mark.parametrize("o", OPPONENTS)
def test_scripted_players_finish_legal_games(x, o):
    random = Random(f"{x} against {o}")
    for _ in range(20):
        position = GAMES.start()
        while GAMES.winner(position) is None:
            square = GAMES.opponents[x if GAMES.to_move(position) == "X" else o](position, random)
            assert GAMES.is_legal(position, square)
            position = GAMES.apply(position, square)
            assert not GAMES.is_legal(position, square)
        assert masks(position) in VALUES
        lines = [has_line(mask) for mask in masks(position)]
        assert GAMES.winner(position) == {(True, False): "X", (False, True): "O", (False, False): "draw"}[tuple(lines)]


@pytest.mark.parametrize("side", ["X", "O"])
def test_the_minimax_player_never_loses_whatever_it_and_the_other_side_choose(side):
    """Every line of play: all of minimax's best squares against all squares of the other side."""
    seen, waiting = set(), [GAMES.start()]
    while waiting:
        position = waiting.pop()
        if position in seen:
            continue
        seen.add(position)
        if GAMES.winner(position) is not None:
            assert GAMES.winner(position) in (side, "draw")
            continue
        best = GAMES.to_move(position) == side
        squares = OPPONENTS["minimax"](position) if best else [s for s in range(1, 10) if GAMES.is_legal(position, s)]
        waiting += [GAMES.apply(position, square) for square in squares]
    assert len(seen) > 100


def test_two_minimax_players_always_draw():
    for seed in range(10):
        position, random = GAMES.start(), Random(seed)
        while GAMES.winner(position) is None:
            position = GAMES.apply(position, GAMES.opponents["minimax"](position, random))
        assert GAMES.winner(position) == "draw"


def test_the_win_or_block_player_wins_first_blocks_second_and_else_takes_any_square():
    assert win_or_block("XX.OO....") == [3]
    assert win_or_block("XX.OO.X..") == [6]
    assert win_or_block("X...O.X..") == [4]
    assert win_or_block("X...O....") == [2, 3, 4, 6, 7, 8, 9]


def test_the_policy_as_o_is_shown_the_board_with_the_marks_exchanged():
    """By hand: after X takes the center and O a corner and X the square beside it, O sees itself as X."""
    position = GAMES.start()
    for square in (5, 1, 2):
        position = GAMES.apply(position, square)
    assert GAMES.to_move(position) == "O"
    shown = GAMES.record_of(position)
    assert TASK.show(shown) == "XO./.O./..."
    assert [m["role"] for m in TASK.messages(shown)] == ["system", "user"]


def test_the_policy_as_x_is_shown_the_board_as_it_is_and_can_be_scored_on_it():
    position = GAMES.apply(GAMES.apply(GAMES.start(), 5), 1)
    shown = GAMES.record_of(position)
    assert TASK.show(shown) == "O../.X./..."
    assert TASK.validate(shown, "here") is shown


def test_the_chosen_square_is_taken_from_the_call():
    assert GAMES.move_of(ToolCall("choose_square", {"square": 7})) == 7


def test_a_taken_square_is_neither_legal_nor_applied():
    position = GAMES.apply(GAMES.start(), 5)
    assert not GAMES.is_legal(position, 5)
    with pytest.raises(ValueError, match="not free"):
        GAMES.apply(position, 5)


def test_the_same_seed_plays_the_same_game():
    def game(seed: int) -> str:
        position, random = GAMES.start(), Random(seed)
        while GAMES.winner(position) is None:
            position = GAMES.apply(position, GAMES.opponents["random"](position, random))
        return position

    assert game(1) == game(1)
    assert len({game(seed) for seed in range(20)}) > 1
