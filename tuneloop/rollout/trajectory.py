"""What one episode was, token by token, and the training rows that it becomes.

A task of one tool call has one turn; a game or an agent's work has several. What is trained on is never text that
was tokenised again: every turn keeps the ids that the policy saw and the ids that it sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tuneloop.rollout.contract import FinishReason, Reply
from tuneloop.tasks.contract import Outcome


@dataclass(frozen=True)
class Turn:
    """One call of the policy: the prompt's token ids as the engine got them, and what it sampled. `reward`: of this
    turn alone, where a task scores turns. For tables: the decoded `text`, its valid `call` as JSON, and the `result`
    that the tool answered (None: the episode ended)."""

    prompt: list[int]
    reply: Reply
    reward: float | None = None
    text: str = ""
    call: str | None = None
    result: str | None = None


@dataclass(frozen=True)
class Trajectory:
    """One episode on one record. `fault`: what ended it that was not the policy's doing (an agent that raised, hung
    or flooded); an episode with a fault earned nothing and is not trained on."""

    turns: list[Turn]
    outcome: Outcome
    fault: str | None = None

    @property
    def length(self) -> int:
        """Tokens that the policy sampled."""
        return sum(len(turn.reply.ids) for turn in self.turns)

    @property
    def finish_reason(self) -> FinishReason:
        """Of the last turn; "length" for an episode without one."""
        return self.turns[-1].reply.finish_reason if self.turns else "length"


@dataclass(frozen=True)
class Row:
    """A run of tokens that the policy saw in one piece. `sampled[i]` tells whether it sampled `ids[i]`, and then
    `logprobs[i]` (nats) is the engine's number; elsewhere (tool results, the template's marks) it is 0."""

    prompt: list[int]
    ids: list[int]
    sampled: list[bool]
    logprobs: list[float]
    turns: list[int] = field(default_factory=list)
    """Which turns of the trajectory are in it."""


def rows(turns: Sequence[Turn]) -> list[Row]:
    """The fewest rows that are exact: a turn whose prompt goes on from the last row's tokens, id by id, joins it;
    where the chat template wrote the history differently, a new row begins."""
    found: list[Row] = []
    for place, turn in enumerate(turns):
        reply = turn.reply
        if found:
            last = found[-1]
            seen = len(last.prompt) + len(last.ids)
            if turn.prompt[:seen] == last.prompt + last.ids:
                between = turn.prompt[seen:]
                last.ids.extend([*between, *reply.ids])
                last.sampled.extend([False] * len(between) + [True] * len(reply.ids))
                last.logprobs.extend([0.0] * len(between) + list(reply.logprobs))
                last.turns.append(place)
                continue
        found.append(Row(list(turn.prompt), list(reply.ids), [True] * len(reply.ids), list(reply.logprobs), [place]))
    return found
