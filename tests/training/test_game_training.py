"""Training on whole games: the trainer's ordinary steps, with episodes in place of single replies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from runs import TASK, steps, weights

from tuneloop.params import Params
from tuneloop.policies.policy import load_policy
from tuneloop.rollout.engines import load_engine
from tuneloop.rollout.episodes import asker_for
from tuneloop.tasks import load_episodes
from tuneloop.training.trainer import Trainer

THREE_STEPS = {
    "task.mode": "game",
    "train.steps": 3,
    "train.boards_per_step": 8,
    "train.keep_replies_every": 1,
    "train.kl_coefficient": 0.1,
}


@pytest.fixture
def start(tiny_params: Callable[..., Params], tiny_policy: Path, tiny_records: tuple[list, list]):
    def make(reward_at: str) -> Trainer:
        params = tiny_params(THREE_STEPS | {"task.reward_at": reward_at})
        policy = load_policy(tiny_policy)
        engine = load_engine(policy, params.rollout)
        episodes = load_episodes(TASK, params.task.mode, params.task.opponent, params.task.reward_at)
        asker = asker_for(policy, engine, TASK, episodes)
        return Trainer(asker, engine, *tiny_records, params.train, params.rollout, params.seed)

    return make


@pytest.mark.parametrize("reward_at", ["end", "turn"])
def test_three_steps_on_whole_games_train_on_what_was_sampled(start: Callable[[str], Trainer], reward_at: str):
    trainer = start(reward_at)
    before = weights(trainer)
    history = steps(trainer)
    outcomes = trainer.asker.episodes.outcomes
    assert len(history) == 3
    assert all(sum(row[f"share_{name}"] for name in outcomes) == pytest.approx(1) for row in history)
    # The trainer finds the engine's log-probabilities again: the rows hold the tokens that were seen and sampled.
    gaps = [row["engine_gap_max"] for row in history if row["engine_gap_max"] is not None]
    assert gaps and max(gaps) < 1e-4
    assert any(not value.equal(before[name]) for name, value in weights(trainer).items())
    turns = [len(row["turns"]) for row in trainer.tables.replies]
    assert max(turns) > 1, "else no episode was longer than a move"
    assert all((t["reward"] is None) == (reward_at == "end") for row in trainer.tables.replies for t in row["turns"])


def test_a_training_on_games_is_evaluated_as_one_on_moves_is(start: Callable[[str], Trainer]):
    trainer = start("end")
    steps(trainer, 1)
    assert {"step", "reward", *TASK.measures} <= trainer.tables.evaluations[0].keys()
