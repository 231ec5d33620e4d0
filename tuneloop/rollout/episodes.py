"""Whole episodes, batched: every episode of a call is in flight at once, with one call of the engine a turn.

A conversation is rendered anew for every turn, by the policy's own chat template, with the assistant messages that
`tuneloop serve` would have answered: an agent that does the same over HTTP sees the same prompts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tuneloop.artifacts import compact_json
from tuneloop.policies.policy import Policy
from tuneloop.rollout.ask import READINGS_KEPT, Answer, Asker
from tuneloop.rollout.contract import Engine, Reply, Sampling, reply_seed
from tuneloop.rollout.trajectory import Trajectory, Turn
from tuneloop.tasks.contract import Episode, Episodes, Message, Record, Task
from tuneloop.toolcalls import Fault, ToolCall, calls_as_json
from tuneloop.toolcalls.message import assistant_message


@dataclass(frozen=True)
class Said:
    """One reply in a conversation: the prompt's ids as the engine got them, what it sampled, what was read."""

    prompt: list[int]
    reply: Reply
    text: str
    reading: ToolCall | Fault


@dataclass
class Conversation:
    """What one record was asked and what the policy said, so far. `name` is for people."""

    name: str
    messages: list[Message]
    said: list[Said] = field(default_factory=list)

    def go_on(self, policy: Policy, answer: str) -> None:
        """Add the last reply as the message that it is, and the tool's answer to its call."""
        last, call_id = self.said[-1], f"call_{len(self.said)}"
        message = assistant_message(last.text, last.reading, policy.card.reasoning, call_id)
        self.messages = [*self.messages, message, {"role": "tool", "tool_call_id": call_id, "content": answer}]


@dataclass
class _Flight:
    episode: Episode
    seed: int
    conversation: Conversation
    results: list[str | None] = field(default_factory=list)


class EpisodeAsker(Asker):
    """An asker whose answer to a record is a whole episode."""

    def __init__(self, policy: Policy, engine: Engine, task: Task, episodes: Episodes):
        super().__init__(policy, engine, task)
        self.episodes = episodes
        self._single = Asker(policy, engine, task)
        self._written: dict[str, list[int]] = {}

    @property
    def single(self) -> Asker:
        return self._single

    @property
    def outcomes(self) -> tuple[str, ...]:
        return self.episodes.outcomes

    @property
    def reward_range(self) -> tuple[float, float]:
        return self.episodes.reward_range

    def ask(self, records: Sequence[Record], seeds: Sequence[Sequence[int]], sampling: Sampling) -> list[list[Answer]]:
        """For record b one episode a seed in `seeds[b]`. Its first reply is drawn with the seed itself, reply t (from
        0) with `reply_seed(seed, "turn", t)`. The task's own luck comes from the group's first seed: it is the same
        for all episodes of a group. No episode depends on what else is in flight."""
        groups = [
            [self._start(record, seed, reply_seed(group[0], "episode")) for seed in group]
            for record, group in zip(records, seeds)
        ]
        flying = list(itertools.chain(*groups))
        for turn in itertools.count():
            if not flying:
                break
            drawn = [flight.seed if turn == 0 else reply_seed(flight.seed, "turn", turn) for flight in flying]
            self.speak([flight.conversation for flight in flying], drawn, sampling)
            for flight in flying:
                flight.results.append(flight.episode.take(flight.conversation.said[-1].reading))
                if flight.results[-1] is not None:
                    flight.conversation.go_on(self.policy, flight.results[-1])
            flying = [flight for flight in flying if flight.results[-1] is not None]
        return [[_answer(flight) for flight in group] for group in groups]

    def _start(self, record: Record, seed: int, luck: int) -> _Flight:
        episode = self.episodes.start(record, luck)
        return _Flight(episode, seed, Conversation(f"record {record['id']}", episode.messages))

    def speak(self, conversations: Sequence[Conversation], seeds: Sequence[int], sampling: Sampling) -> None:
        """Add one reply to each conversation, drawn with its seed. Conversations that are alike so far are one prompt
        to the engine, and one reply where their seeds are the same."""
        prompts = [tuple(self._ids(conversation.messages)) for conversation in conversations]
        for prompt, conversation in zip(prompts, conversations):
            self.policy.require_room(prompt, sampling.max_new_tokens, conversation.name)
        wanted: dict[tuple[int, ...], list[int]] = {prompt: [] for prompt in prompts}
        for prompt, seed in dict.fromkeys(zip(prompts, seeds)):
            wanted[prompt].append(seed)
        found = self.engine.generate([list(prompt) for prompt in wanted], list(wanted.values()), sampling)
        said = {
            (prompt, seed): Said(list(prompt), reply, *self.read(reply))
            for (prompt, of_prompt), replies in zip(wanted.items(), found)
            for seed, reply in zip(of_prompt, replies)
        }
        for prompt, seed, conversation in zip(prompts, seeds, conversations):
            conversation.said.append(said[prompt, seed])

    def _ids(self, messages: Sequence[Message]) -> list[int]:
        # A template takes longer to render than the rest of a turn on the host, and games repeat themselves.
        key = compact_json(messages)
        if key not in self._written:
            if len(self._written) >= READINGS_KEPT:
                self._written.clear()
            self._written[key] = self.policy.prompt_ids(messages, self.task.tools)
        return self._written[key]

    def row(self, record: Record, sample: int, answer: Answer, **kind: Any) -> dict[str, Any]:
        """The reply table's row: text, call and finish reason are those of the last reply, `turns` has all of them."""
        turns = [
            {
                "text": turn.text,
                "call": turn.call,
                "result": turn.result,
                "reward": turn.reward,
                "length": len(turn.reply.ids),
            }
            for turn in answer.trajectory.turns
        ]
        return super().row(record, sample, answer, **kind) | {"turns": turns}


def asker_for(policy: Policy, engine: Engine, task: Task, episodes: Episodes | None) -> Asker:
    """The one place where `task.mode` decides how the policy is asked."""
    return Asker(policy, engine, task) if episodes is None else EpisodeAsker(policy, engine, task, episodes)


def _answer(flight: _Flight) -> Answer:
    episode, said = flight.episode, flight.conversation.said
    rewards = episode.rewards or [None] * len(said)
    turns = [
        Turn(s.prompt, s.reply, reward, s.text, calls_as_json(s.reading), result)
        for s, reward, result in zip(said, rewards, flight.results)
    ]
    last = said[-1]
    return Answer(last.reply, last.text, last.reading, episode.outcome, Trajectory(turns, episode.outcome))
