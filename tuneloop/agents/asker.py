"""Asking a policy through the user's agent: records in, scored episodes out, with the same interface as `Asker`."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tuneloop.agents.function import Agent, earned, load_agent
from tuneloop.errors import UserError
from tuneloop.params import RolloutParams
from tuneloop.rollout.ask import Answer, Asker
from tuneloop.rollout.contract import Reply, Sampling
from tuneloop.rollout.reply_table import hash_of_ids
from tuneloop.rollout.trajectory import Trajectory, Turn
from tuneloop.tasks.contract import Record, scored
from tuneloop.toolcalls import Fault, calls_as_json

if TYPE_CHECKING:
    from tuneloop.agents.door import Door

AT_ONCE = 256
"""Episodes that run at the same time: each has a connection, and its two ends are files of this process."""
FIRST = 8
"""An agent none of whose first episodes worked is given up."""
MOST_BLOCKED = 3
"""Episodes of one call that may be left behind because they blocked the others."""


class AgentAsker(Asker):
    """An asker whose answer to a record is what the agent made of it. Use `with_agent`, which opens the endpoint."""

    def __init__(self, asker: Asker, agent: Agent, params: RolloutParams):
        from tuneloop.agents.rounds import Rounds

        super().__init__(asker.policy, asker.engine, asker.task)
        self.agent, self.params = agent, params
        self.rounds = Rounds(asker.engine)
        self.doors: dict[str, Door] = {}
        self.url = ""
        self._ended = self._failed = 0
        self._told: dict[str, str] = {}
        self._playground: Any = None

    def ask(self, records: Sequence[Record], seeds: Sequence[Sequence[int]], sampling: Sampling) -> list[list[Answer]]:
        """For record b one episode a seed in `seeds[b]`; seeds as in `Asker.ask` for an agent that asks once. Raises
        UserError where every episode failed, and for what an agent may not return."""
        from tuneloop.agents.door import Door

        def door(b: int, i: int) -> Door:
            key = f"episode-{secrets.token_hex(16)}"
            return Door(key, records[b], (b, i), seeds[b][i], sampling, self.params.agent_turns)

        wanted = [(b, i) for b, group in enumerate(seeds) for i in range(len(group))]
        answers: list[list[Answer]] = [[] for _ in records]
        ended: list[Door] = []
        for start in range(0, len(wanted), AT_ONCE):
            for at, (door_, returned) in self._played([door(b, i) for b, i in wanted[start : start + AT_ONCE]]).items():
                answers[at[0]].append(self._answer_of(door_, returned))
                ended.append(door_)
        self._require_some(ended)
        return answers

    def row(self, record: Record, sample: int, answer: Answer, **kind: Any) -> dict[str, Any]:
        """The reply table's row: text, call and finish reason are those of the last reply, `turns` has all of them;
        `rewarded_by` says whether the task or the agent decided what the episode earned, `fault` why there was none."""
        turns = answer.trajectory.turns
        first = turns[0].prompt if turns else self.prompt(record, 0)
        return super().row(record, sample, answer, **kind) | {
            "prompt_hash": hash_of_ids(first),
            "turns": [{"text": t.text, "call": t.call, "length": len(t.reply.ids)} for t in turns],
            "rewarded_by": "agent" if answer.by_agent else "task",
            "fault": answer.fault,
        }

    def _played(self, doors: list[Door]) -> dict[tuple[int, int], tuple[Door, Any]]:
        """Every episode as it ended and what its agent returned, in the order of their places."""
        from tuneloop.agents.door import Door
        from tuneloop.agents.playing import Blocked, Playground, refuse_blocking

        found: dict[tuple[int, int], tuple[Door, Any]] = {}
        blocked = 0
        while doors:
            if self._playground is None:
                timeout = self.params.agent_timeout
                self._playground = Playground(self.url, self.agent, self.task, timeout, self.rounds.leave)
            playground = self._playground
            self.doors.update({door.key: door for door in doors})
            self.rounds.join(doors)
            playground.play(doors)
            left: list[Door] = []
            try:
                self.rounds.run(playground.watch)
            except Blocked as stuck:
                blocked += 1
                if stuck.door is None or blocked > MOST_BLOCKED:
                    raise refuse_blocking(stuck) from None
                stuck.door.end("timed_out", f"blocked the thread that all episodes share ({stuck.where})")
                # The others cannot go on there: those that have not ended begin anew, with the same seeds.
                going_on = self.rounds.dismiss()
                left = [
                    Door(f"{d.key}-again", d.record, d.place, d.seed, d.sampling, d.most_turns)
                    for d in doors
                    if d in going_on and d is not stuck.door
                ]
                playground.close()
                self._playground = None
            finally:
                for door in doors:
                    del self.doors[door.key]
                self.rounds.dismiss()
            again = {door.place for door in left}
            found |= {d.place: (d, playground.returned.pop(d.key, None)) for d in doors if d.place not in again}
            doors = left
        return dict(sorted(found.items()))

    def _answer_of(self, door: Door, returned: Any) -> Answer:
        if door.fault is None and not door.turns:
            door.end("silent", "returned without asking the policy for anything")
        if door.fault is not None:
            self._tell(door)
            # In tables it counts as what an empty reply earns.
            reading = Fault("no_call", f"the episode failed: {door.fault}")
            outcome = scored(self.task, door.record, reading, "", "stop")
            return Answer(
                Reply([], [], "stop"), "", reading, outcome, Trajectory(self._read_turns(door), outcome, door.fault)
            )
        last = door.turns[-1].reply
        text, reading = self.read(last)
        outcome, reading, by_agent = earned(returned, self.task, door.record, reading, text, last.finish_reason)
        return Answer(last, text, reading, outcome, Trajectory(self._read_turns(door), outcome), by_agent)

    def _read_turns(self, door: Door) -> list[Turn]:
        read = [self.read(turn.reply) for turn in door.turns]
        return [
            replace(turn, text=text, call=calls_as_json(reading)) for turn, (text, reading) in zip(door.turns, read)
        ]

    def _tell(self, door: Door) -> None:
        """Every kind of fault is told once."""
        if door.fault not in self._told:
            self._told[door.fault] = f"{door.fault} on record {door.record['id']}: {door.reason}"
            print(
                f"agent: an episode failed, {self._told[door.fault]} (others that end so are only counted)", flush=True
            )

    def _require_some(self, ended: Sequence[Door]) -> None:
        self._ended += len(ended)
        faults = Counter(door.fault for door in ended if door.fault)
        self._failed += faults.total()
        none_ever = self._failed == self._ended >= FIRST
        if none_ever or faults.total() == len(ended) >= FIRST:
            reasons = "; ".join(f"{count} {kind}, the first {self._told[kind]}" for kind, count in faults.items())
            raise UserError(f"rollout.agent={self.params.agent}: every episode failed: {reasons}")


@contextmanager
def with_agent(asker: Asker, params: RolloutParams) -> Iterator[Asker]:
    """`asker` itself where `rollout.agent` is null; else one that answers through the agent, with its endpoint open on
    127.0.0.1. Raises UserError where the agent cannot be loaded or a package is missing."""
    if params.agent is None:
        yield asker
        return
    missing = [name for name in ("openai", "starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UserError(f"rollout.agent needs {', '.join(missing)}; install with pip install -e '.[endpoint,serve]'")
    from tuneloop.agents.front import endpoint

    found = AgentAsker(asker, load_agent(params.agent), params)
    with endpoint(asker.policy, found.rounds, found.doors) as found.url:
        try:
            yield found
        finally:
            if found._playground is not None:
                found._playground.close()
