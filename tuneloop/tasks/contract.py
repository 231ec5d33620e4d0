"""What a task is to the rest of the loop.

A task is one object with the attributes and methods of `Task`. Stages learn its name from
`params.yaml` (`task.name`) and reach it through `tuneloop.tasks.load_task`; nothing outside the
task's own folder may know more about it than this file says. Tasks know nothing of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from tuneloop.toolcalls.contract import Fault, ToolCall

Record = dict[str, Any]
"""A JSON object; `record["id"]` is unique in its table."""

Message = dict[str, Any]
"""A chat message: `{"role": …, "content": …}`."""


@dataclass(frozen=True)
class Outcome:
    """What one reply earned: a reason code of `Task.outcomes` and its reward."""

    name: str
    reward: float


@dataclass(frozen=True)
class Demonstration:
    """One reply to imitate in the warm start.

    `reasoning` goes between the policy's reasoning markers (None: no reasoning block at all);
    `content` is everything after it, tool calls already written in the policy's dialect.
    """

    record: Record
    reasoning: str | None
    content: str


@dataclass(frozen=True)
class Games:
    """Whole games against scripted opponents, for tasks that are moves of a game.

    A position is whatever `start` returns. `record_of` shows a position to the policy as a record
    that `Task.messages` accepts, from the side of the player to move.
    """

    sides: tuple[str, ...]
    opponents: Mapping[str, Callable[[Any, Random], int]]
    start: Callable[[], Any]
    to_move: Callable[[Any], str]
    record_of: Callable[[Any], Record]
    move_of: Callable[[ToolCall], int]
    is_legal: Callable[[Any, int], bool]
    illegal: str
    """The outcome of a readable but illegal move."""
    apply: Callable[[Any, int], Any]
    winner: Callable[[Any], str | None]
    """The side that has won, "draw" for a full board, None while the game is open."""


class Task(Protocol):
    name: str

    outcomes: tuple[str, ...]
    """Every reason code, worst first; shares over them sum to 1."""

    measures: Mapping[str, frozenset[str]]
    """Named yes/no measures: the outcomes that count as yes (e.g. legal, optimal)."""

    reward_range: tuple[float, float]

    tools: Sequence[dict[str, Any]]
    """OpenAI-style tool definitions, handed to the chat template."""

    games: Games | None

    def generate(self, count: int, seed: int) -> list[Record]:
        """`count` distinct records; the same arguments give the same records. Raises UserError
        where the request cannot be met."""

    def extra_records(self) -> list[Record]:
        """Records of kinds that `generate` never makes, though using the policy brings them (the last move of a
        game): `train.extra_records` trains on them too. None may be a record that `generate` can make, so none can
        be held out. May be empty."""

    def validate(self, record: Any, where: str) -> Record:
        """The record itself, or UserError naming `where` if it is not a valid record of this task."""

    def split_key(self, record: Record) -> str:
        """Records that share a key always land on the same side of the held-out split."""

    def stratum(self, record: Record) -> str:
        """The label under which results are broken down (e.g. the number of marks)."""

    def show(self, record: Record) -> str:
        """The record on one line, for tables (e.g. `X.O/.../XO.`)."""

    def parse(self, text: str) -> Record:
        """The record that `show` writes as `text`, under the id `text`; UserError if there is none."""

    def messages(self, record: Record) -> list[Message]: ...

    def score(self, record: Record, reading: ToolCall | Fault) -> Outcome: ...

    def demonstrations(
        self, records: Sequence[Record], count: int, seed: int, render: Callable[[ToolCall], str]
    ) -> list[Demonstration]:
        """Seeded replies that teach rules and format, never which answer is best."""

    def reference_players(self, records: Sequence[Record]) -> dict[str, dict[str, float]]:
        """Expected reward and measures of players that need no model, on these records:
        `{player: {"reward": …, <measure>: …}}`."""
