"""Tic-Tac-Toe through a `choose_square` tool call: X is to move, the reply names a square."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tuneloop.errors import UserError
from tuneloop.tasks.contract import Demonstration, Episodes, Games, Message, Outcome, Record
from tuneloop.tasks.tictactoe import board as rules
from tuneloop.tasks.tictactoe import game, generator, players, prompt, reward
from tuneloop.tasks.tictactoe.demonstrations import demonstrations
from tuneloop.toolcalls.contract import Fault, ToolCall


class TicTacToe:
    """The task object; see `tuneloop.tasks.contract.Task` for what each member means."""

    name = "tictactoe"
    outcomes = tuple(reward.REWARDS)
    measures = reward.MEASURES
    reward_range = (min(reward.REWARDS.values()), max(reward.REWARDS.values()))
    tools = prompt.TOOLS

    games = Games(
        sides=("X", "O"),
        opponents={name: players.opponent_move(name) for name in players.OPPONENTS},
        start=lambda: rules.EMPTY,
        to_move=rules.to_move,
        # The policy only ever saw itself as X: as O it is shown the board with the marks exchanged.
        record_of=lambda board: {
            "id": f"game-{board}",
            "board": generator.to_rows(board if rules.to_move(board) == "X" else board.translate(_EXCHANGE)),
        },
        move_of=lambda call: call.arguments["square"],
        is_legal=lambda board, square: square in rules.free_squares(board),
        illegal="occupied",
        apply=lambda board, square: rules.place(board, square, rules.to_move(board)),
        winner=rules.winner,
    )

    def episodes(self, opponent: str, reward_at: str) -> Episodes:
        return game.episodes(opponent, reward_at)

    def generate(self, count: int, seed: int) -> list[Record]:
        return generator.generate(count, seed)

    def extra_records(self) -> list[Record]:
        return generator.last_moves()

    def validate(self, record: Any, where: str) -> Record:
        return validate(record, where)

    def split_key(self, record: Record) -> str:
        return rules.symmetry_class(generator.from_rows(record["board"]))

    def stratum(self, record: Record) -> str:
        return f"{9 - generator.from_rows(record['board']).count('.')} marks"

    def show(self, record: Record) -> str:
        return "/".join("".join(row) for row in record["board"])

    def parse(self, text: str) -> Record:
        return parse(text)

    def messages(self, record: Record) -> list[Message]:
        return prompt.messages(generator.from_rows(record["board"]))

    def score(self, record: Record, reading: ToolCall | Fault) -> Outcome:
        return reward.score(generator.from_rows(record["board"]), reading)

    def demonstrations(
        self, records: Sequence[Record], count: int, seed: int, render: Callable[[ToolCall], str]
    ) -> list[Demonstration]:
        return demonstrations(records, count, seed, render)

    def reference_players(self, records: Sequence[Record]) -> dict[str, dict[str, float]]:
        boards = [generator.from_rows(record["board"]) for record in records]
        return players.reference_players(boards, self.measures)


_EXCHANGE = str.maketrans("XO", "OX")


def validate(record: Any, where: str) -> Record:
    """A record of this task: an id, 3×3 cells of X, O or `.`, X to move, the game open."""

    def refuse(problem: str) -> UserError:
        return UserError(f'{where}: {problem}; a record looks like {{"id":"a","board":[["X",".","O"],[…],[…]]}}')

    if not isinstance(record, dict) or not isinstance(record.get("id"), str) or not record["id"]:
        raise refuse('no "id" (a non-empty text)')
    rows = record.get("board")
    if not (
        isinstance(rows, list)
        and len(rows) == 3
        and all(isinstance(row, list) and len(row) == 3 for row in rows)
        and all(cell in ("X", "O", ".") for row in rows for cell in row)
    ):
        raise refuse(f'record {record["id"]}: "board" is not 3 rows of 3 cells "X", "O" or "."')
    board = generator.from_rows(rows)
    end = rules.winner(board)
    if end is not None:
        raise refuse(f"record {record['id']}: the game on {board} is over ({end})")
    if board.count("X") != board.count("O"):
        raise refuse(f"record {record['id']}: X is not to move on {board} ({board.count('X')} X, {board.count('O')} O)")
    return record


def parse(text: str) -> Record:
    """A board on one line, such as `X.O/.../XO.`, as a record whose id is the text."""
    rows = [list(row) for row in text.split("/")]
    if [len(row) for row in rows] != [3, 3, 3] or not set(text) <= set("XO./"):
        raise UserError(f"board {text!r}: write three rows of X, O or . with a slash between them, like X.O/.../XO.")
    return validate({"id": text, "board": rows}, "board")


TASK = TicTacToe()
