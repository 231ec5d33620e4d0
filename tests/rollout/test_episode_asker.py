"""Whole episodes in one batch: what the engine is given, what is kept, and that nothing depends on the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tuneloop.policies.policy import Policy, load_policy
from tuneloop.rollout.contract import Reply, Sampling, reply_seed
from tuneloop.rollout.episodes import EpisodeAsker, asker_for
from tuneloop.rollout.torch_engine import TorchEngine
from tuneloop.tasks import load_episodes, load_task
from tuneloop.toolcalls import ToolCall, load_dialect

TASK = load_task("tictactoe")
RECORD = TASK.parse("X../.O./...")
OTHER = TASK.parse("XX./OO./...")
LIMIT = Sampling(40)


def written(square: int) -> str:
    return load_dialect("hermes").render(ToolCall("choose_square", {"square": square}))


class Scripted:
    """Replies with the text that the script has for a seed; keeps what it was asked."""

    def __init__(self, policy: Policy, script: Mapping[int, str]):
        self.policy, self.script, self.calls = policy, script, []

    def generate(self, prompts: Sequence, seeds: Sequence, sampling: Sampling) -> list[list[Reply]]:
        self.calls.append(list(zip(map(tuple, prompts), map(tuple, seeds))))
        return [[self._reply(self.script[seed]) for seed in group] for group in seeds]

    def _reply(self, text: str) -> Reply:
        ids = [*self.policy.tokenizer(text, add_special_tokens=False)["input_ids"], self.policy.end_ids[0]]
        return Reply(ids, [-0.5] * len(ids), "stop")

    def weights_changed(self) -> None: ...


@pytest.fixture(scope="module")
def policy(tiny_policy: Path) -> Policy:
    return load_policy(tiny_policy)


def asker(policy: Policy, engine: object, opponent: str = "win_block", reward_at: str = "end") -> EpisodeAsker:
    return asker_for(policy, engine, TASK, load_episodes(TASK, "game", opponent, reward_at))


def turn(seed: int, number: int) -> int:
    return reply_seed(seed, "turn", number)


def test_a_whole_game_is_one_answer_with_all_its_turns(policy: Policy):
    """X at 1 and O at 5; X takes 2, O must block at 3; X takes 9, O completes 3 5 7."""
    thinking = "<think>\nmine: none\n</think>\n"
    engine = Scripted(policy, {7: thinking + written(2), turn(7, 1): written(9)})
    ((answer,),) = asker(policy, engine, reward_at="turn").ask([RECORD], [[7]], LIMIT)
    first, second = answer.trajectory.turns
    assert (answer.outcome.name, answer.outcome.reward) == ("lost", 0.4)
    assert answer.trajectory.outcome == answer.outcome and answer.length == len(first.reply.ids) + len(second.reply.ids)
    assert (first.text, first.reward, second.text, second.reward) == (thinking + written(2), 0.8, written(9), 0.0)
    assert first.result.startswith("O takes 3.\ntop 1X 2X 3O\n") and second.result is None
    assert first.prompt == policy.prompt_ids(TASK.messages(RECORD), TASK.tools)
    told = policy.tokenizer.decode(second.prompt)
    assert told.endswith(
        f"<|im_start|>assistant\n{written(2)}<|im_end|>\n"
        f"<|im_start|>user\n<tool_response>\n{first.result}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert [calls for calls in engine.calls] == [[(tuple(first.prompt), (7,))], [(tuple(second.prompt), (turn(7, 1),))]]


def test_all_episodes_are_in_flight_together_with_one_engine_call_a_turn(policy: Policy):
    """Seed 1 wins at once, 2 and 3 go on with the same conversation, of which 3 then makes nothing."""
    script = {1: written(3), 2: written(2), 3: written(2), turn(2, 1): written(9), turn(3, 1): "no"}
    engine = Scripted(policy, script)
    (won,), (lost, silent) = asker(policy, engine).ask([OTHER, RECORD], [[1], [2, 3]], LIMIT)
    assert [a.outcome.name for a in (won, lost, silent)] == ["won", "lost", "no_call"]
    assert [[seeds for _, seeds in call] for call in engine.calls] == [[(1,), (2, 3)], [(turn(2, 1), turn(3, 1))]]
    assert all(t.reward is None for a in (won, lost, silent) for t in a.trajectory.turns)


def test_an_episode_is_the_same_whatever_else_is_in_flight(policy: Policy):
    records = TASK.generate(6, 2)
    seeds = [[reply_seed("s", r["id"], i) for i in range(3)] for r in records]
    together = asker(policy, TorchEngine(policy.model, policy.end_ids), "mixed").ask(records, seeds, LIMIT)
    alone = [
        asker(policy, TorchEngine(policy.model, policy.end_ids), "mixed").ask([record], [group], LIMIT)[0]
        for record, group in zip(records, seeds)
    ]

    def played(answers: list) -> list:
        return [
            [(a.outcome, [(t.prompt, t.reply.ids, t.result) for t in a.trajectory.turns]) for a in g] for g in answers
        ]

    assert played(together) == played(alone)
    assert max(len(a.trajectory.turns) for group in together for a in group) > 1, "else nothing was shown"


def test_the_row_of_an_episode_has_every_turn(policy: Policy):
    engine = Scripted(policy, {7: written(2), turn(7, 1): written(2)})
    asking = asker(policy, engine)
    ((answer,),) = asking.ask([RECORD], [[7]], LIMIT)
    row = asking.row(RECORD, 0, answer, step=4)
    assert (row["step"], row["outcome"], row["reward"], row["text"]) == (4, "occupied", -1.0, written(2))
    assert [(t["text"], t["call"] is not None, t["result"] is None) for t in row["turns"]] == [
        (written(2), True, False),
        (written(2), True, True),
    ]
    assert row["length"] == sum(t["length"] for t in row["turns"]) == answer.length


def test_single_replies_are_asked_for_as_in_move_mode(policy: Policy):
    ((answer,),) = asker(policy, Scripted(policy, {7: written(2)})).single.ask([RECORD], [[7]], LIMIT)
    assert (answer.outcome.name, answer.trajectory) == ("optimal", None)
    assert type(asker_for(policy, None, TASK, None)).__name__ == "Asker"
