"""Whole games of the policy against the task's scripted opponents, all in flight at once.

The policy moves greedily, as it would in use; an opponent's choices come from the game's own seed, the
same before and after training. An invalid reply forfeits the game.

With an asker for single replies every move is asked for by itself, as a record. With one for whole episodes
(`task.mode: game`) a game is one conversation: it begins with the record of the policy's first move, and the
opponent's moves are told as the tool's answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tuneloop.rollout.ask import Asker
from tuneloop.rollout.contract import Sampling, reply_seed
from tuneloop.rollout.episodes import Conversation, EpisodeAsker
from tuneloop.tasks.contract import Games
from tuneloop.toolcalls import Fault, ToolCall

RESULTS = ("won", "drawn", "lost", "forfeit")


@dataclass
class _Game:
    side: str
    opponent: str
    number: int
    position: Any
    random: Random
    moves: list[int] = field(default_factory=list)
    result: str | None = None
    fault: str | None = None
    conversation: Conversation | None = None


def play_games(asker: Asker, games: Games, count: int, seed: int, max_new_tokens: int) -> list[dict[str, Any]]:
    """`count` games for every side and opponent, as rows of the games table."""
    table = [
        _Game(side, opponent, n, games.start(), Random(reply_seed(seed, "game", side, opponent, n)))
        for side in games.sides
        for opponent in games.opponents
        for n in range(count)
    ]
    sampling = Sampling(max_new_tokens, greedy=True)
    while open_games := [game for game in table if game.result is None]:
        mine = [game for game in open_games if games.to_move(game.position) == game.side]
        for game in open_games:
            if games.to_move(game.position) != game.side:
                _move(game, games, games.opponents[game.opponent](game.position, game.random))
        if mine:
            _policy_moves(asker, games, mine, sampling)
    return [
        {
            "side": game.side,
            "opponent": game.opponent,
            "game": game.number,
            "result": game.result,
            "plies": len(game.moves),
            "moves": " ".join(map(str, game.moves)),
            "fault": game.fault,
        }
        for game in table
    ]


def _policy_moves(asker: Asker, games: Games, mine: Sequence[_Game], sampling: Sampling) -> None:
    read = _converse if isinstance(asker, EpisodeAsker) else _ask
    for game, reading in zip(mine, read(asker, games, mine, sampling)):
        if isinstance(reading, Fault):
            game.result, game.fault = "forfeit", reading.name
            continue
        move = games.move_of(reading)
        if games.is_legal(game.position, move):
            _move(game, games, move)
        else:
            game.result, game.fault = "forfeit", games.illegal


def _ask(asker: Asker, games: Games, mine: Sequence[_Game], sampling: Sampling) -> list[ToolCall | Fault]:
    # Greedy replies depend on the position alone: each position is asked once.
    records = {record["id"]: record for record in (games.record_of(game.position) for game in mine)}
    answers = dict(zip(records, asker.ask(list(records.values()), [[0]] * len(records), sampling)))
    return [answers[games.record_of(game.position)["id"]][0].reading for game in mine]


def _converse(asker: EpisodeAsker, games: Games, mine: Sequence[_Game], sampling: Sampling) -> list[ToolCall | Fault]:
    for game in mine:
        record = games.record_of(game.position)
        if game.conversation is None:
            game.conversation = Conversation(record["id"], asker.task.messages(record))
        else:
            game.conversation.go_on(asker.policy, asker.episodes.answer(record, game.moves[-1]))
    asker.speak([game.conversation for game in mine], [0] * len(mine), sampling)
    return [game.conversation.said[-1].reading for game in mine]


def _move(game: _Game, games: Games, move: int) -> None:
    game.position = games.apply(game.position, move)
    game.moves.append(move)
    winner = games.winner(game.position)
    if winner is not None:
        game.result = "drawn" if winner == "draw" else "won" if winner == game.side else "lost"


def summarise_games(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """`{side: {opponent: {result: share}}}`."""
    table: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        cell = table.setdefault(row["side"], {}).setdefault(row["opponent"], dict.fromkeys(RESULTS, 0))
        cell[row["result"]] += 1
    for opponents in table.values():
        for cell in opponents.values():
            total = sum(cell.values())
            for result in cell:
                cell[result] /= total
    return table
