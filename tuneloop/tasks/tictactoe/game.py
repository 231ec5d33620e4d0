"""Whole games as episodes (`task.mode: game`): the policy plays X, the opponent moves inside the tool result.

An episode starts on a record's board, X to move, and goes on to the end of the game. Its outcome is how the game
ended, or the fault of the reply that ended it. What it earned depends on `task.reward_at`:

- `end`: the points of the game, 1 for won, ½ for drawn, 0 for lost, −1 for a fault. From a start that is drawn
  under best play, ½ is all that can be had from an opponent that makes no mistake, and 0 from a start that is lost.
- `turn`: every move earns what it earns in move mode (`reward.REWARDS`), the episode the mean over its moves.

All episodes of a group meet the same opponent with the same luck: those that play alike end alike, and what
differs in their rewards is the policy's own doing.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from statistics import fmean

from tuneloop.errors import UserError
from tuneloop.tasks.contract import Episodes, Outcome, Record
from tuneloop.tasks.tictactoe import prompt, reward
from tuneloop.tasks.tictactoe.board import place, winner
from tuneloop.tasks.tictactoe.demonstrations import game_demonstrations
from tuneloop.tasks.tictactoe.generator import from_rows
from tuneloop.tasks.tictactoe.players import OPPONENTS
from tuneloop.toolcalls.contract import Fault, ToolCall

POINTS = {
    "no_call": -1.0,
    "several_calls": -1.0,
    "wrong_tool": -1.0,
    "bad_arguments": -1.0,
    "occupied": -1.0,
    "lost": 0.0,
    "drawn": 0.5,
    "won": 1.0,
}
"""Every outcome of a game and its reward under `end`, worst first."""

MEASURES = {"legal": frozenset({"lost", "drawn", "won"}), "won": frozenset({"won"})}

KINDS: Mapping[str, tuple[str, ...]] = {
    "random": ("random",),
    "win_block": ("win/block",),
    "minimax": ("minimax",),
    "mixed": ("random", "win/block", "minimax"),
}
"""`task.opponent`: the players (`players.OPPONENTS`) of which every episode draws one."""

RESULTS = {"X": "won", "O": "lost", "draw": "drawn"}


class Game:
    """One game from a board on which X is to move; see `tuneloop.tasks.contract.Episode`."""

    def __init__(self, record: Record, seed: int, kinds: tuple[str, ...], per_turn: bool):
        self.board = from_rows(record["board"])
        self.messages = prompt.messages(self.board)
        self.outcome: Outcome | None = None
        self.rewards: list[float] = []
        self.per_turn = per_turn
        self.random = Random(seed)
        self.choices = OPPONENTS[self.random.choice(kinds)]

    def take(self, reading: ToolCall | Fault) -> str | None:
        move = reward.score(self.board, reading)
        if self.per_turn:
            self.rewards.append(move.reward)
        if move.name not in reward.MEASURES["legal"]:
            return self._end(move.name)
        self.board = place(self.board, reading.arguments["square"], "X")
        if (end := winner(self.board)) is not None:
            return self._end(RESULTS[end])
        square = self.random.choice(self.choices(self.board))
        self.board = place(self.board, square, "O")
        if (end := winner(self.board)) is not None:
            return self._end(RESULTS[end])
        return prompt.answer(self.board, square)

    def _end(self, name: str) -> None:
        self.outcome = Outcome(name, fmean(self.rewards) if self.per_turn else POINTS[name])


def episodes(opponent: str, reward_at: str) -> Episodes:
    """Games against `opponent` (`KINDS`). Raises UserError naming the opponents for any other."""
    if opponent not in KINDS:
        raise UserError(f"task.opponent: there is no opponent {opponent!r}; the opponents are {', '.join(KINDS)}")
    per_turn = reward_at == "turn"
    return Episodes(
        outcomes=tuple(POINTS),
        measures=MEASURES,
        reward_range=reward_range(reward_at),
        most_turns=5,
        start=lambda record, seed: Game(record, seed, KINDS[opponent], per_turn),
        answer=lambda record, square: prompt.answer(from_rows(record["board"]), square),
        demonstrations=game_demonstrations,
    )


def reward_range(reward_at: str) -> tuple[float, float]:
    values = (reward.REWARDS if reward_at == "turn" else POINTS).values()
    return min(values), max(values)
