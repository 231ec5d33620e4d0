"""The trainer on a tiny policy: resume, order, what is used and what is written, and when it stops."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import TASK, Start, assert_two_and_two_steps_equal_four, same, steps, weights

from tuneloop.errors import UserError
from tuneloop.policies.policy import Policy
from tuneloop.rollout.contract import Reply, Sampling
from tuneloop.rollout.torch_engine import TorchEngine
from tuneloop.training import trainer as trainer_module
from tuneloop.training.order import passes
from tuneloop.training.trainer import Trainer

HISTORY = (
    "step,reward_mean,reward_std,reward_min,reward_max,"
    "share_no_call,share_several_calls,share_wrong_tool,share_bad_arguments,"
    "share_occupied,share_legal,share_optimal,share_win,"
    "length_all,length_finished,length_truncated,overlong_masked,"
    "ratio_mean,ratio_std,ratio_min,ratio_max,clip_low,clip_high,"
    "zero_variance_groups,entropy,kl,grad_norm,lr,engine_gap_mean,engine_gap_max,engine_ratio_capped,weights_changed"
)
"""The documented columns of history.csv, in order."""

REPLY = "step,id,board,stratum,cluster,sample,prompt_hash,text,call,outcome,reward,length,finish_reason"
"""The documented columns of the sampled reward table, in order."""


def groups_of(trainer: Trainer, step: int) -> dict[str, list[float]]:
    """Rewards by record of a step whose replies were kept; records of one step differ in the tiny setting."""
    groups: dict[str, list[float]] = {}
    for row in trainer.tables.replies:
        if row["step"] == step:
            groups.setdefault(row["id"], []).append(row["reward"])
    return groups


# Resume


def test_two_steps_and_two_more_from_the_saved_state_equal_four_steps_bit_for_bit(start: Start, tmp_path: Path) -> None:
    assert_two_and_two_steps_equal_four(start, tmp_path)


def test_a_run_whose_last_state_was_saved_has_nothing_left_to_do(start: Start) -> None:
    trainer = start({"train.steps": 1})
    steps(trainer)
    again = start({"train.steps": 1})
    again.restore(trainer.state())
    assert steps(again) == []
    assert len(again.tables.evaluations) == len(trainer.tables.evaluations) == 2


# Order


def test_the_records_of_the_steps_are_those_of_the_passes(start: Start, tiny_records: tuple[list, list]) -> None:
    trainer = start({"train.keep_replies_every": 1, "train.lr": 0.0})
    steps(trainer)
    asked = [row["id"] for row in trainer.tables.replies if row["sample"] == 0]
    assert asked == [record["id"] for record in passes(tiny_records[0], 0, 16, trainer.seed)]


UNSETTLED = {"train.visit": "unsettled", "train.keep_replies_every": 1, "train.boards_per_step": 16}
"""Three steps are a first pass over the 48 training records of the tiny setting."""


def test_the_first_steps_see_every_record_once_and_what_decides_the_next_is_each_ones_last_group(start: Start) -> None:
    trainer = start(UNSETTLED | {"train.steps": 5})
    steps(trainer)
    first = [key for step in (1, 2, 3) for key in groups_of(trainer, step)]
    assert sorted(first) == sorted(record["id"] for record in trainer.records)
    last = {key: rewards for step in range(1, 6) for key, rewards in groups_of(trainer, step).items()}
    noted = {key: (mean, agreed) for key, (mean, _, agreed) in trainer.visits.seen.items()}
    assert noted == {key: (pytest.approx(sum(r) / len(r)), len(set(r)) == 1) for key, r in last.items()}


def test_visiting_by_need_resumes_bit_for_bit(start: Start, tmp_path: Path) -> None:
    assert_two_and_two_steps_equal_four(lambda: start(UNSETTLED), tmp_path)


def test_shuffled_rewards_are_what_decides_the_visits_too(start: Start) -> None:
    trainer = start(UNSETTLED | {"train.steps": 1, "train.shuffle_rewards": True})
    steps(trainer)
    earned = groups_of(trainer, 1)
    noted = {key: seen[0] for key, seen in trainer.visits.seen.items()}
    assert noted.keys() == earned.keys()
    assert any(noted[key] != pytest.approx(sum(rewards) / len(rewards)) for key, rewards in earned.items())
    assert sum(noted.values()) == pytest.approx(sum(sum(r) / len(r) for r in earned.values()))


def test_a_record_that_is_visited_again_draws_other_replies(start: Start) -> None:
    trainer = start({"train.keep_replies_every": 1, "train.lr": 0.0})
    trainer.records = trainer.records[:1]
    steps(trainer)
    texts = [row["text"] for row in trainer.tables.replies]
    groups = {tuple(texts[i : i + 4]) for i in range(0, len(texts), 4)}
    assert len({row["id"] for row in trainer.tables.replies}) == 1
    assert len(groups) > 8, "four places in each of four steps; by place or step alone there would be four"


# What is used


def test_groups_whose_rewards_are_all_equal_are_left_out_and_counted(start: Start, used: list) -> None:
    trainer = start({"train.keep_replies_every": 1, "train.boards_per_step": 12, "train.steps": 3})
    found = steps(trainer)
    mixed = {s: [r for r in groups_of(trainer, s).values() if len(set(r)) > 1] for s in (1, 2, 3)}
    assert [row["zero_variance_groups"] for row in found] == [12 - len(mixed[s]) for s in (1, 2, 3)]
    assert any(row["zero_variance_groups"] for row in found), "else the test shows nothing"
    assert sum(map(len, used)) == sum(map(len, mixed.values()))
    assert all(any(group.advantages) for update in used for group in update)


def test_a_step_whose_groups_are_all_unanimous_updates_nothing_and_says_so(start: Start) -> None:
    trainer = start({"train.steps": 2})
    trainer.asker.task = Unmoved()
    before = weights(trainer)
    found = steps(trainer)
    assert same(before, weights(trainer))
    for row in found:
        assert row["zero_variance_groups"] == 4
        assert row["weights_changed"] == 0
        empty = ["ratio_mean", "ratio_std", "clip_low", "clip_high", "entropy", "grad_norm", "engine_gap_mean"]
        assert [row[name] for name in empty] == [None] * len(empty)


class Unmoved:
    """Tic-Tac-Toe in which every reply earns the same."""

    def __getattr__(self, name: str) -> Any:
        return getattr(TASK, name)

    def score(self, record: Any, reading: Any) -> Any:
        return type(TASK.score(record, reading))("legal", 0.0)


def test_oversampling_rolls_out_more_and_trains_on_at_most_boards_per_step_groups(start: Start, used: list) -> None:
    trainer = start(
        {"train.oversample": 4, "train.boards_per_step": 3, "train.steps": 2, "train.keep_replies_every": 1}
    )
    found = steps(trainer)
    for number, row in enumerate(found, 1):
        groups = groups_of(trainer, number)
        assert len(groups) == 12, "4 × 3 records were rolled out"
        mixed = sum(len(set(rewards)) > 1 for rewards in groups.values())
        assert row["zero_variance_groups"] == 12 - mixed
        assert mixed > 3, "else the limit is not reached"
        # updates_per_step 2: the groups are dealt out to two updates.
        assert [len(update) for update in used[2 * number - 2 : 2 * number]] == [2, 1]


def test_shuffled_rewards_change_what_is_trained_on_but_not_what_the_table_says(start: Start, used: list) -> None:
    knobs = {"train.steps": 1, "train.boards_per_step": 8, "train.updates_per_step": 1}
    honest, control = start(knobs), start(knobs | {"train.shuffle_rewards": True})
    rows = [steps(trainer)[0] for trainer in (honest, control)]
    sampled = [name for name in HISTORY.split(",") if name.startswith(("reward", "share", "length"))]
    assert [rows[0][name] for name in sampled] == [rows[1][name] for name in sampled]
    assert honest.tables.replies == control.tables.replies
    assert [g.advantages for g in used[0]] != [g.advantages for g in used[1]]
    assert not same(weights(honest), weights(control))


def test_shuffling_deals_out_the_same_rewards(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    dealt: list[list[float]] = []
    real = trainer_module.group_advantages
    monkeypatch.setattr(
        trainer_module, "group_advantages", lambda rewards, scale: dealt.append(list(rewards)) or real(rewards, scale)
    )
    trainer = start({"train.steps": 1, "train.boards_per_step": 8, "train.shuffle_rewards": True})
    steps(trainer)
    earned = [row["reward"] for row in trainer.tables.replies]
    flat = [reward for group in dealt for reward in group]
    assert Counter(flat) == Counter(earned)
    assert flat != earned


# What is written


def test_the_history_has_exactly_the_documented_columns_in_order(start: Start) -> None:
    trainer = start()
    assert [",".join(row) for row in steps(trainer)] == [HISTORY] * 4


def test_the_columns_of_a_step_without_any_update_are_the_same(start: Start) -> None:
    trainer = start({"train.steps": 1})
    trainer.asker.task = Unmoved()
    assert ",".join(steps(trainer)[0]) == HISTORY


def test_a_row_of_the_history_sums_up_the_replies_of_its_step(start: Start) -> None:
    trainer = start({"train.keep_replies_every": 1})
    for row in steps(trainer):
        replies = [r for r in trainer.tables.replies if r["step"] == row["step"]]
        rewards = [r["reward"] for r in replies]
        mean = math.fsum(rewards) / 16
        assert len(replies) == 16
        assert row["reward_mean"] == pytest.approx(mean, abs=1e-8)
        assert row["reward_std"] == pytest.approx(math.sqrt(sum((r - mean) ** 2 for r in rewards) / 16), abs=1e-8)
        assert (row["reward_min"], row["reward_max"]) == (min(rewards), max(rewards))
        for outcome in TASK.outcomes:
            assert row[f"share_{outcome}"] == sum(r["outcome"] == outcome for r in replies) / 16
        assert sum(row[f"share_{outcome}"] for outcome in TASK.outcomes) == pytest.approx(1, abs=1e-8)
        for column, ends in (("all", ("stop", "length")), ("finished", ("stop",)), ("truncated", ("length",))):
            lengths = [r["length"] for r in replies if r["finish_reason"] in ends]
            expected = pytest.approx(sum(lengths) / len(lengths), rel=1e-8) if lengths else None
            assert row[f"length_{column}"] == expected


def test_the_replies_of_the_first_and_every_kth_step_are_kept_whole(start: Start) -> None:
    trainer = start()
    steps(trainer)
    assert Counter(row["step"] for row in trainer.tables.replies) == {1: 16, 2: 16, 4: 16}
    assert all(",".join(row) == REPLY for row in trainer.tables.replies)
    assert {row["sample"] for row in trainer.tables.replies} == {0, 1, 2, 3}


def test_the_policy_is_evaluated_before_the_first_step_every_kth_and_after_the_last(start: Start) -> None:
    trainer = start({"train.steps": 3})
    steps(trainer)
    assert [row["step"] for row in trainer.tables.evaluations] == [0, 2, 3]
    assert all(list(row) == ["step", "reward", "legal", "optimal", "length"] for row in trainer.tables.evaluations)


# Ratios and the learning rate


def test_a_learning_rate_of_zero_leaves_every_weight_and_every_ratio_where_it_was(start: Start) -> None:
    trainer = start({"train.lr": 0.0, "train.weight_decay": 0.1})
    before = weights(trainer)
    for row in steps(trainer):
        assert row["weights_changed"] == 0
        assert row["grad_norm"] > 0, "there was something to learn"
        # What is left is the rounding between engine and trainer in float32.
        assert (row["ratio_min"], row["ratio_max"]) == (pytest.approx(1, abs=1e-5), pytest.approx(1, abs=1e-5))
        assert (row["clip_low"], row["clip_high"]) == (0, 0)
    assert same(before, weights(trainer))


def test_with_two_updates_a_step_the_ratio_moves_and_the_clip_acts(start: Start) -> None:
    rows = steps(start({"train.clip_low": 1e-4, "train.clip_high": 1e-4}))
    assert all(row["ratio_std"] > 1e-4 for row in rows[1:])
    assert any(row["clip_low"] + row["clip_high"] > 0 for row in rows)
    assert all(row["weights_changed"] > 0.9 for row in rows)


@pytest.mark.parametrize(
    ("total", "warmup", "expected"),
    [
        # By hand from the docstring: a rise of (step + 1) / warmup times a fall from 1 to 0.1 over steps − 1.
        (4, 0, [1.0, 0.7, 0.4, 0.1]),
        (4, 2, [0.5, 0.7, 0.4, 0.1]),
        (4, 8, [0.125, 0.25 * 0.7, 0.375 * 0.4, 0.5 * 0.1]),
        (1, 0, [1.0]),
    ],
)
def test_the_learning_rate_rises_then_falls_to_its_last_share(
    start: Start, total: int, warmup: int, expected: list[float]
) -> None:
    lr = 1e-3
    rows = steps(start({"train.steps": total, "train.lr": lr, "train.lr_warmup": warmup, "train.lr_final": 0.1}))
    assert [row["lr"] / lr for row in rows] == pytest.approx(expected, rel=1e-7)


# When it stops


class MeddlingEngine:
    """Samples honestly, then changes the weights behind the trainer's back: the engine's
    log-probabilities are those of older weights, as when an update never reached it."""

    def __init__(self, policy: Policy):
        self.inner, self.policy = TorchEngine(policy.model, policy.end_ids), policy

    def generate(self, prompts: Any, seeds: Any, sampling: Sampling) -> list[list[Reply]]:
        replies = self.inner.generate(prompts, seeds, sampling)
        if not sampling.greedy:
            with torch.no_grad():
                for weight in self.policy.model.parameters():
                    weight.mul_(1.02)
        return replies

    def weights_changed(self) -> None:
        self.inner.weights_changed()


def test_an_engine_with_other_weights_stops_the_run_before_any_update(start: Start) -> None:
    trainer = start(engine=MeddlingEngine)
    before = weights(trainer)
    with pytest.raises(UserError) as stop:
        steps(trainer)
    text = str(stop.value)
    assert text.startswith("train: engine and trainer disagree at step 1: mean |Δ log p| ")
    mean, largest = (float(part.split(" ")[-1]) for part in text.split(", limit")[0].split(", largest"))
    assert 1e-3 < mean < largest
    assert "limit train.engine_gap_limit=0.001" in text
    meddled = {name: value * 1.02 for name, value in before.items() if name != "lm_head.weight"}
    assert all(torch.equal(value, weights(trainer)[name]) for name, value in meddled.items())


def test_the_engines_gap_of_an_honest_run_is_rounding(start: Start) -> None:
    for row in steps(start()):
        # Float32 over a few dozen tokens; 1e-3 is where a run stops.
        assert 0 <= row["engine_gap_mean"] <= row["engine_gap_max"] < 1e-4


def test_a_gradient_that_is_not_a_number_stops_the_run(start: Start) -> None:
    trainer = start({"train.lr": 0.25})
    trainer.parameters[0].register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(UserError, match=r"the gradient of step 1 is not finite; lower train\.lr \(0\.25\)"):
        steps(trainer)


@pytest.mark.parametrize("knob", [{"rollout.top_p": 0.9}, {"rollout.top_k": 5}])
def test_sampling_that_the_probabilities_would_not_describe_is_refused(start: Start, knob: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"rollout\.top_p=.*training needs the whole distribution"):
        start(knob)
