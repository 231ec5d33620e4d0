"""What a task is to the rest of the loop.

A task is one object with the attributes and methods of `Task`. Stages learn its name from
`params.yaml` (`task.name`) and reach it through `tuneloop.tasks.load_task`; nothing outside the
task's own folder may know more about it than this file says. Tasks know nothing of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, Protocol

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
    `content` is everything after it, tool calls already written in the policy's dialect. `messages` is the
    conversation that it answers, where that is not `Task.messages` of the record.
    """

    record: Record
    reasoning: str | None
    content: str
    messages: Sequence[Message] | None = None


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


class Episode(Protocol):
    """One record worked on in several replies: what the task's side of the conversation says and keeps."""

    messages: list[Message]
    """What the policy is shown first."""

    outcome: Outcome | None
    """Exactly one code of `Episodes.outcomes` and the whole episode's reward; None while the episode is open."""

    rewards: list[float]
    """What every reply taken so far earned by itself; stays empty where only the end counts."""

    def take(self, reading: ToolCall | Fault) -> str | None:
        """Go on with the next reply, read as `reading`. The tool's answer that is shown before the next reply,
        or None: the episode has ended, and `outcome` is there."""


@dataclass(frozen=True)
class Episodes:
    """How a task is done in whole episodes (`task.mode: game`), where it can be."""

    outcomes: tuple[str, ...]
    """Every reason code of an episode, worst first; shares over them sum to 1."""
    measures: Mapping[str, frozenset[str]]
    """Named yes/no measures over `outcomes`."""
    reward_range: tuple[float, float]
    """Of an episode, and of one reply where replies have rewards."""
    most_turns: int
    """Replies in the longest episode."""
    start: Callable[[Record, int], Episode]
    """An episode that begins with a record. Its luck comes from the seed (int) alone: episodes of one record and
    one seed that are answered alike go alike."""
    answer: Callable[[Record, int], str]
    """For whole games (`Games`): the tool's answer that shows the opponent's last move (int) and the position after
    it, as `Games.record_of` shows it to the policy."""
    demonstrations: Callable[[Sequence[Record], int, int, Callable[[ToolCall], str]], list[Demonstration]]
    """As `Task.demonstrations`, with conversations among them that have gone on for some replies."""


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

    episodes: Callable[[str, str], Episodes] | None
    """The task in whole episodes, given `task.opponent` and `task.reward_at` (UserError for values that it does not
    know); None, or no such member, for a task of single replies. See `tuneloop.tasks.load_episodes`."""

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


def scored(
    task: Task, record: Record, reading: ToolCall | Fault, text: str, finish_reason: Literal["stop", "length"] = "stop"
) -> Outcome:
    """What a reply earned: the one way to `Task.score`. A task whose reward sees more of a reply than its call has,
    beside it, `score_reply(record, reading, text, finish_reason)`, which is then asked instead."""
    score_reply = getattr(task, "score_reply", None)
    return task.score(record, reading) if score_reply is None else score_reply(record, reading, text, finish_reason)
