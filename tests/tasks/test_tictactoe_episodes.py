"""Whole games as episodes: who moves when, how a game ends, what it earns."""

from __future__ import annotations

import pytest

from tuneloop.errors import UserError
from tuneloop.tasks import load_episodes, load_task
from tuneloop.tasks.contract import Episode, Outcome
from tuneloop.toolcalls import Fault, ToolCall, load_dialect

TASK = load_task("tictactoe")


def game(board: str, opponent: str = "minimax", reward_at: str = "end", seed: int = 1) -> Episode:
    return load_episodes(TASK, "game", opponent, reward_at).start(TASK.parse(board), seed)


def choose(square: int) -> ToolCall:
    return ToolCall("choose_square", {"square": square})


def test_the_first_messages_are_those_of_move_mode():
    assert game("X../.O./...").messages == TASK.messages(TASK.parse("X../.O./..."))


def test_the_tools_answer_names_the_opponents_move_and_shows_the_board_after_it():
    """X at 1 and 2 threatens 3, so minimax has to take it."""
    assert game("X../.O./...").take(choose(2)).splitlines() == [
        "O takes 3.",
        "top 1X 2X 3O",
        "middle 4. 5O 6.",
        "bottom 7. 8. 9.",
        "Your move.",
    ]


@pytest.mark.parametrize(
    "board, squares, outcome, turns",
    [
        ("XX./OO./...", [3], Outcome("won", 1.0), 1),
        ("XX./OO./...", [9], Outcome("lost", 0.0), 1),  # O completes 4 5 6
        ("XOX/OOX/.XO", [7], Outcome("drawn", 0.5), 1),  # the last free square
        ("X../.O./...", [2, 7, 6, 9], Outcome("drawn", 0.5), 4),  # O blocks at 3 and 4, then has 8 of 8 and 9
        ("X../.O./...", [2, 2], Outcome("occupied", -1.0), 2),
        ("X../.O./...", [2, 3], Outcome("occupied", -1.0), 2),  # what O has just taken
    ],
)
def test_an_episode_ends_with_the_game_or_with_an_illegal_move(board, squares, outcome, turns):
    episode = game(board, "win_block")
    results = []
    for square in squares:
        assert episode.outcome is None
        results.append(episode.take(choose(square)))
    assert len(results) == turns and results[-1] is None and None not in results[:-1]
    assert (episode.outcome, episode.rewards) == (outcome, [])


@pytest.mark.parametrize("fault", ["no_call", "several_calls", "wrong_tool", "bad_arguments"])
def test_an_invalid_reply_ends_the_episode_with_its_own_code(fault):
    episode = game("X../.O./...")
    episode.take(choose(2))
    assert episode.take(Fault(fault, "")) is None
    assert episode.outcome == Outcome(fault, -1.0)


def test_with_reward_at_turn_each_move_earns_what_it_does_in_move_mode_and_the_episode_their_mean():
    """X.. .O. ...: 2 keeps the draw (0.8), 9 then loses it (0.0: O has 5 and 3, and takes 7)."""
    episode = game("X../.O./...", "win_block", reward_at="turn")
    record = TASK.parse("X../.O./...")
    assert episode.take(choose(2)) is not None and episode.rewards == [TASK.score(record, choose(2)).reward] == [0.8]
    episode.take(choose(9))
    assert episode.outcome == Outcome("lost", 0.4) and episode.rewards == [0.8, 0.0]


def test_one_seed_is_one_opponent_and_one_luck():
    def told(seed: int, opponent: str = "mixed") -> str:
        return game(".../.../...", opponent, seed=seed).take(choose(1))

    assert [told(seed) for seed in range(20)] == [told(seed) for seed in range(20)]
    # A corner leaves minimax the centre alone, and a random opponent all eight squares.
    assert {told(seed, "minimax").splitlines()[0] for seed in range(20)} == {"O takes 5."}
    assert len({told(seed, "random") for seed in range(40)}) == 8
    assert 1 < len({told(seed) for seed in range(40)}) <= 8


def test_every_end_has_one_code_and_no_code_is_missing():
    episodes = load_episodes(TASK, "game", "mixed", "end")
    assert set(episodes.outcomes) == {"won", "drawn", "lost", "occupied"} | {
        "no_call",
        "several_calls",
        "wrong_tool",
        "bad_arguments",
    }
    assert episodes.reward_range == (-1.0, 1.0)
    assert all(counted <= set(episodes.outcomes) for counted in episodes.measures.values())


def test_params_that_cannot_be_met_are_refused():
    with pytest.raises(UserError, match=r"task\.opponent.*'boss'.*random, win_block, minimax, mixed"):
        load_episodes(TASK, "game", "boss", "end")

    class Single:
        name = "single"

    with pytest.raises(UserError, match=r"task\.mode: single has no whole games"):
        load_episodes(Single(), "game", "mixed", "end")
    assert load_episodes(Single(), "move", "mixed", "end") is None


def test_demonstrations_show_conversations_that_end_on_the_board_that_is_looked_at():
    records = TASK.generate(50, 3)
    made = load_episodes(TASK, "game", "mixed", "end").demonstrations(records, 400, 7, load_dialect("hermes").render)
    plain = TASK.demonstrations(records, 400, 7, load_dialect("hermes").render)
    assert [(d.record, d.reasoning, d.content) for d in made] == [(d.record, d.reasoning, d.content) for d in plain]
    for shown in made:
        last = shown.messages[-1]["content"]
        board = TASK.messages(shown.record)[1]["content"]
        assert last == board or (last.startswith("O takes ") and last.split("\n", 1)[1] == board)
    assert {len(d.messages) for d in made} >= {2, 4, 6, 8}
