"""Whole games: a scripted policy wins, draws, loses and forfeits as the rules say."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tuneloop.evaluation.games import play_games, summarise_games
from tuneloop.policies.policy import Policy, load_policy
from tuneloop.rollout.ask import Asker
from tuneloop.rollout.contract import Reply, Sampling
from tuneloop.rollout.episodes import asker_for
from tuneloop.tasks import load_episodes, load_task
from tuneloop.tasks.contract import Games
from tuneloop.tasks.tictactoe import board as rules
from tuneloop.toolcalls import ToolCall, load_dialect

TASK = load_task("tictactoe")
NO_CALL = "I would rather not say."
HERMES = load_dialect("hermes")

Strategy = Callable[[str], int | str]
"""From the board as the policy is shown it to a square, or to the text of a reply."""


class ScriptedEngine:
    """Replies to each board as the strategy says."""

    def __init__(self, policy: Policy, strategy: Strategy):
        self.policy, self.strategy = policy, strategy
        self.boards: dict[tuple[int, ...], str] = {}
        self.shown: list[str] = []

    def generate(self, prompts: Any, seeds: Any, sampling: Sampling) -> list[list[Reply]]:
        assert sampling.greedy, "games are played as the policy would be used"
        assert all(len(group) == 1 for group in seeds)
        replies = []
        for prompt in prompts:
            self.shown.append(self.boards[tuple(prompt)])
            choice = self.strategy(self.shown[-1])
            text = choice if isinstance(choice, str) else HERMES.render(ToolCall("choose_square", {"square": choice}))
            ids = self.policy.tokenizer(text, add_special_tokens=False)["input_ids"] + self.policy.end_ids[:1]
            replies.append([Reply(ids, [0.0] * len(ids), "stop")])
        return replies

    def weights_changed(self) -> None: ...


class OpenAsker(Asker):
    """Tells the engine which board a prompt shows, so that it need not read the text."""

    def prompt(self, record: dict[str, Any], max_new_tokens: int) -> list[int]:
        ids = super().prompt(record, max_new_tokens)
        self.engine.boards[tuple(ids)] = TASK.show(record).replace("/", "")
        return ids


Play = Callable[..., tuple[list[dict[str, Any]], list[str]]]


@pytest.fixture(scope="module")
def policy(tiny_policy: Path) -> Policy:
    return load_policy(tiny_policy)


@pytest.fixture
def play(policy: Policy) -> Play:
    """`play(strategy, opponents, sides, count, seed)`: rows of the games table, and the boards that were shown."""

    def whole(
        strategy: Strategy,
        opponents: Mapping[str, Callable[[Any, Random], int]] = TASK.games.opponents,
        sides: tuple[str, ...] = ("X", "O"),
        count: int = 1,
        seed: int = 1,
    ) -> tuple[list[dict[str, Any]], list[str]]:
        engine = ScriptedEngine(policy, strategy)
        games: Games = dataclasses.replace(TASK.games, opponents=opponents, sides=sides)
        return play_games(OpenAsker(policy, engine, TASK), games, count, seed, 40), engine.shown

    return whole


def first_free(board: str, random: Random | None = None) -> int:
    return rules.free_squares(board)[0]


def in_order(*squares: int | str) -> Strategy:
    """Plays the squares one after another, however often it is asked elsewhere: by its marks so far."""
    return lambda board: squares[board.count("X")]


FIRST_FREE = {"first free": first_free}


@pytest.mark.parametrize(
    ("side", "strategy", "row"),
    [
        # By hand, against an opponent that takes the lowest free square.
        ("X", in_order(5, 3, 7), {"result": "won", "plies": 5, "moves": "5 1 3 2 7", "fault": None}),
        ("X", in_order(9, 8, 6), {"result": "lost", "plies": 6, "moves": "9 1 8 2 6 3", "fault": None}),
        ("X", in_order(2, 4, 5, 7, 9), {"result": "drawn", "plies": 9, "moves": "2 1 4 3 5 6 7 8 9", "fault": None}),
        ("O", in_order(5, 3, 7), {"result": "won", "plies": 6, "moves": "1 5 2 3 4 7", "fault": None}),
        ("O", in_order(9, 8), {"result": "lost", "plies": 5, "moves": "1 9 2 8 3", "fault": None}),
        ("X", in_order(5, NO_CALL), {"result": "forfeit", "plies": 2, "moves": "5 1", "fault": "no_call"}),
        ("X", in_order(5, 1), {"result": "forfeit", "plies": 2, "moves": "5 1", "fault": "occupied"}),
        ("X", in_order(NO_CALL), {"result": "forfeit", "plies": 0, "moves": "", "fault": "no_call"}),
        ("O", in_order(1), {"result": "forfeit", "plies": 1, "moves": "1", "fault": "occupied"}),
        (
            "O",
            in_order(5, HERMES.render(ToolCall("choose_square", {"square": 12}))),
            {"result": "forfeit", "plies": 3, "moves": "1 5 2", "fault": "bad_arguments"},
        ),
    ],
)
def test_a_scripted_game_ends_as_played_by_hand(play: Play, side: str, strategy: Strategy, row: dict[str, Any]) -> None:
    rows, _ = play(strategy, FIRST_FREE, (side,))
    assert rows == [{"side": side, "opponent": "first free", "game": 0} | row]
    assert list(rows[0]) == ["side", "opponent", "game", "result", "plies", "moves", "fault"]


def test_the_policy_always_sees_its_own_marks_as_x(play: Play) -> None:
    _, as_x = play(in_order(5, 3, 7), FIRST_FREE, ("X",))
    _, as_o = play(in_order(5, 3, 7), FIRST_FREE, ("O",))
    # The boards before each of the policy's moves in the two games played by hand above.
    assert as_x == [".........", "O...X....", "OOX.X...."]
    assert as_o == ["O........", "OO..X....", "OOXOX...."]


def test_a_move_that_ends_the_game_is_the_last_one(play: Play) -> None:
    rows, _ = play(first_free, count=20)
    for row in rows:
        position = rules.EMPTY
        moves = list(map(int, row["moves"].split()))
        for move in moves:
            assert rules.winner(position) is None
            position = rules.place(position, move, rules.to_move(position))
        end = rules.winner(position)
        assert row["plies"] == len(moves)
        assert row["result"] == ("drawn" if end == "draw" else "won" if end == row["side"] else "lost")


def test_every_side_and_opponent_gets_its_games_in_a_fixed_order(play: Play) -> None:
    rows, _ = play(first_free, count=3)
    assert [(row["side"], row["opponent"], row["game"]) for row in rows] == [
        (side, opponent, game) for side in "XO" for opponent in ("random", "win/block", "minimax") for game in range(3)
    ]


def test_perfect_play_never_loses_and_minimax_never_loses_to_it(play: Play) -> None:
    def perfect(board: str) -> int:
        # As O the board shown has one O more than X: to `best_squares` it is X's turn only if counts are equal.
        if board.count("X") == board.count("O"):
            return rules.best_squares(board)[0]
        exchanged = board.translate(str.maketrans("XO", "OX"))
        return rules.best_squares(exchanged)[0]

    rows, _ = play(perfect, count=10)
    found = Counter((row["opponent"], row["result"]) for row in rows)
    assert not any(result in ("lost", "forfeit") for _, result in found)
    assert found["minimax", "drawn"] == 20, "perfect play on both sides is a draw"
    assert found["random", "won"] > 10


def test_two_runs_are_the_same_and_another_seed_is_another_game(play: Play) -> None:
    assert play(first_free, count=5) == play(first_free, count=5)
    moves = [[row["moves"] for row in play(first_free, count=5, seed=seed)[0]] for seed in (1, 2)]
    assert moves[0] != moves[1]


def test_an_opponents_choices_do_not_depend_on_the_policy(play: Play) -> None:
    openings = []
    for strategy in (first_free, lambda board: rules.free_squares(board)[-1]):
        rows, _ = play(strategy, {"random": TASK.games.opponents["random"]}, ("O",), count=20)
        openings.append([row["moves"].split()[0] for row in rows])
    assert openings[0] == openings[1]
    assert len(set(openings[0])) > 3, "the games of one opponent differ from each other"


def test_games_do_not_depend_on_how_many_are_played(play: Play) -> None:
    few, many = play(first_free, count=2)[0], play(first_free, count=6)[0]
    assert few == [row for row in many if row["game"] < 2]


def test_a_position_is_asked_once_however_many_games_stand_there(play: Play) -> None:
    _, shown = play(in_order(5, 3, 7, 1, 9), FIRST_FREE, ("X",), count=30)
    assert shown == [".........", "O...X....", "OOX.X...."]


def test_results_are_shares_of_each_side_and_opponent() -> None:
    results = ["won", "won", "won", "drawn", "lost", "forfeit", "won", "lost"]
    rows = [{"side": "X", "opponent": "random", "result": result} for result in results]
    rows += [{"side": "O", "opponent": "minimax", "result": "forfeit"}]
    # By hand: 4 of 8 won, 1 drawn, 2 lost, 1 forfeit; the one game as O was forfeit.
    assert summarise_games(rows) == {
        "X": {"random": {"won": 0.5, "drawn": 0.125, "lost": 0.25, "forfeit": 0.125}},
        "O": {"minimax": {"won": 0, "drawn": 0, "lost": 0, "forfeit": 1}},
    }
    assert summarise_games([]) == {}


class Talker:
    """Takes the free square with the lowest number on the board that the prompt shows last; keeps the prompts."""

    def __init__(self, policy: Policy):
        self.policy, self.texts = policy, []

    def generate(self, prompts: Any, seeds: Any, sampling: Sampling) -> list[list[Reply]]:
        assert sampling.greedy and all(len(group) == 1 for group in seeds)
        replies = []
        for prompt in prompts:
            self.texts.append(self.policy.tokenizer.decode(prompt))
            free = re.findall(r"([1-9])\.", self.texts[-1].rpartition("\ntop ")[2])
            text = HERMES.render(ToolCall("choose_square", {"square": int(free[0])}))
            ids = self.policy.tokenizer(text, add_special_tokens=False)["input_ids"] + self.policy.end_ids[:1]
            replies.append([Reply(ids, [0.0] * len(ids), "stop")])
        return replies

    def weights_changed(self) -> None: ...


def test_in_game_mode_the_same_games_are_played_through_one_conversation_each(policy: Policy, play: Play):
    """A policy that looks at the last board alone plays the same moves either way: same opponents, same seeds."""
    engine = Talker(policy)
    asker = asker_for(policy, engine, TASK, load_episodes(TASK, "game", "mixed", "end"))
    talked = play_games(asker, TASK.games, 3, 1, 40)
    by_move, _ = play(lambda board: board.index(".") + 1, count=3)
    assert talked == by_move
    as_x = [text for text in engine.texts if "user\ntop 1. 2. 3.\nmiddle 4. 5. 6.\nbottom 7. 8. 9." in text]
    assert {text.count("<tool_response>\nO takes ") for text in as_x} >= {0, 1, 2}
    # As O the policy is shown as X, and its conversation begins with its own first move.
    as_o = [text for text in engine.texts if text not in as_x]
    assert {text.partition("user\ntop")[2].partition("Your move.")[0].count("O") for text in as_o} == {1}
