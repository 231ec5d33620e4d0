"""Training through agents: rows are what the engine sampled, token by token, and faulty episodes cost no step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from agents.test_agents import assert_sampled

from tuneloop.agents.asker import FIRST
from tuneloop.training.trainer import Trainer

Training = Callable[..., Trainer]
SMALL = {"train.boards_per_step": 2, "train.evaluate_every": 20, "train.keep_replies_every": 10}


def assert_rows_were_sampled(groups: list, trainer: Trainer) -> None:
    """Every sampled run of every row, with its log-probabilities, is a reply of the engine to what stands before it."""
    replies = trainer.engine.replies
    for group in groups:
        masks = group.sampled or [[True] * len(row) for row in group.replies]
        for row, mask in zip(group.replies, masks):
            assert assert_sampled(group.prompt, row, mask, replies) >= 1
        given = [p for numbers in group.old_logprobs for p in numbers]
        assert len(given) == sum(map(sum, masks)) == group.tokens
        known = {p for found in replies.values() for reply in found for p in reply.logprobs}
        assert set(given) <= known


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["agent.one_call:choose", "agent.with_pydantic_ai:choose"])
def test_20_steps_with_an_agent_of_either_library_train_on_what_the_engine_sampled(
    training: Training, used: list, agent: str
) -> None:
    trainer = training(agent, SMALL | {"train.steps": 20, "train.lr": 3e-3})
    history = list(trainer.run())
    assert [row["step"] for row in history] == list(range(1, 21))
    assert sum(row["weights_changed"] > 0 for row in history) >= 10 and len(used) >= 10
    assert_rows_were_sampled(used, trainer)
    assert all(row[f"fault_{kind}"] == 0 for row in history for kind in ("raised", "timed_out", "flooded", "silent"))
    assert max(row["engine_gap_mean"] or 0 for row in history) < 1e-4
    assert history[0]["ratio_mean"] == pytest.approx(1, abs=0.05)


def test_two_steps_with_an_agent_of_one_call_are_those_without_an_agent_bit_for_bit(training: Training) -> None:
    plain, agent = (training(name, SMALL | {"train.steps": 2}) for name in (None, "agent.one_call:choose"))
    histories = [list(trainer.run()) for trainer in (plain, agent)]
    for one, other in zip(*histories):
        assert one == {name: value for name, value in other.items() if not name.startswith("fault_")}
        assert one["weights_changed"] > 0
    kept = [[(row["id"], row["text"], row["reward"]) for row in trainer.tables.replies] for trainer in (plain, agent)]
    assert kept[0] == kept[1]
    assert "faults" in agent.tables.evaluations[0] and "faults" not in plain.tables.evaluations[0]


@pytest.mark.parametrize("agent", ["goes_on", "rewrites"])
def test_agents_of_two_turns_are_trained_on_row_by_row(training: Training, used: list, agent: str) -> None:
    trainer = training(f"agents_of_tests:{agent}", SMALL | {"train.steps": 2, "train.boards_per_step": 4})
    history = list(trainer.run())
    assert used and all(row["engine_gap_mean"] is None or row["engine_gap_mean"] < 1e-4 for row in history)
    assert_rows_were_sampled(used, trainer)
    assert all(group.used == 4 for group in used)
    if agent == "goes_on":
        assert any(False in mask for group in used for mask in group.sampled or [])
    else:
        assert all(len(group.replies) == 8 and group.episode == [0, 0, 1, 1, 2, 2, 3, 3] for group in used)


def test_a_step_goes_on_without_the_episodes_that_failed_and_counts_them(training: Training, used: list) -> None:
    trainer = training("agents_of_tests:misbehaves", SMALL | {"train.steps": 1, "train.boards_per_step": 8})
    records = [{**r, "id": f"record-{i}{(0, 5, 4, 6)[i % 4]}"} for i, r in enumerate(trainer.records[:8])]
    trainer.records = records  # of eight records two raise and two say nothing
    row = next(trainer.run())
    assert FIRST < 4 * 8 and (row["fault_raised"], row["fault_silent"], row["fault_flooded"]) == (8, 8, 0)
    assert sum(value for name, value in row.items() if name.startswith("share_")) == pytest.approx(1)
    assert len(trainer.tables.replies) == 32 and len(trainer.visits.seen) == 4
    assert {tuple(group.prompt) for group in used} <= {
        tuple(trainer.asker.prompt(record, 0)) for record in records if record["id"][-1] in "56"
    }
