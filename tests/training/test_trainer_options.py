"""The trainer with the options that are off by default: KL to the base policy, the trainer's own old
log-probabilities, weights for a coarse engine, replies that the limit cut left out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import Start, assert_two_and_two_steps_equal_four, same, steps, weights

from tuneloop.policies.policy import Policy
from tuneloop.rollout.contract import Reply, Sampling
from tuneloop.rollout.torch_engine import TorchEngine
from tuneloop.training import trainer as trainer_module
from tuneloop.training.batch import logprobs_of
from tuneloop.training.schedule import kl_coefficient

KL = {"train.kl_coefficient": 0.2}
WEIGHTS = {"train.old_logprobs": "trainer", "train.engine_ratio_cap": 1.0}
MASK = {"train.overlong": "mask", "rollout.max_new_tokens": 14}


class CoarseEngine:
    """Samples from a bfloat16 copy of the policy, as large engines do."""

    def __init__(self, policy: Policy):
        self.policy, self.copy = policy, copy.deepcopy(policy.model).bfloat16()
        self.inner = TorchEngine(self.copy, policy.end_ids)

    def generate(self, prompts: Any, seeds: Any, sampling: Sampling) -> list[list[Reply]]:
        return self.inner.generate(prompts, seeds, sampling)

    def weights_changed(self) -> None:
        with torch.no_grad():
            for coarse, exact in zip(self.copy.parameters(), self.policy.model.parameters(), strict=True):
                coarse.copy_(exact)
        self.inner.weights_changed()


WIDE = {"train.engine_gap_limit": 0.5}
COARSE = WIDE | {"train.updates_per_step": 1}


@pytest.mark.parametrize("options", [KL, WEIGHTS, MASK, KL | WEIGHTS | MASK], ids=["kl", "weights", "mask", "all"])
def test_two_steps_and_two_more_equal_four_with_every_option(
    start: Start, tmp_path: Path, options: dict[str, Any]
) -> None:
    whole = assert_two_and_two_steps_equal_four(lambda: start(WIDE | options, CoarseEngine), tmp_path)
    plain = start(WIDE | {"rollout.max_new_tokens": whole.rollout.max_new_tokens}, CoarseEngine)
    steps(plain)
    assert not same(weights(whole), weights(plain)), "else the option does nothing"


def test_options_that_are_off_compute_nothing_and_leave_their_columns_empty(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("computed")

    monkeypatch.setattr(trainer_module, "logprobs_of", refuse)
    trainer = start({"train.steps": 1})
    row = steps(trainer)[0]
    assert trainer.base is None
    assert [row[name] for name in ("kl", "overlong_masked", "engine_ratio_capped")] == [None] * 3


# KL to the base policy


def test_the_kl_is_measured_from_the_weights_that_training_started_from(start: Start) -> None:
    trainer = start(KL | {"train.updates_per_step": 1})
    before = weights(trainer)
    rows = steps(trainer)
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-9), "nothing has moved yet"
    assert all(row["kl"] > 1e-6 for row in rows[1:])
    assert same(before, trainer.base.model.state_dict())
    assert not any(p.requires_grad for p in trainer.base.model.parameters())
    # A run that goes on from a state measures from there too, not from the weights of the state.
    again = start(KL | {"train.updates_per_step": 1})
    again.restore(trainer.state())
    assert same(before, again.base.model.state_dict()) and same(weights(trainer), weights(again))


def test_the_base_policys_log_probabilities_are_computed_once_a_step_for_the_groups_used(
    start: Start, used: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[Any]] = []

    def spy(decoder: Any, groups: Any, *rest: Any) -> Any:
        assert decoder is trainer.base
        asked.append(list(groups))
        return logprobs_of(decoder, groups, *rest)

    monkeypatch.setattr(trainer_module, "logprobs_of", spy)
    trainer = start(KL | {"train.steps": 2, "train.epochs_per_step": 2})
    steps(trainer)
    assert len(asked) == 2 and len(used) == 2 * 2 * 2
    assert sum(map(len, asked)) == sum(map(len, used)) / 2
    assert all(group.base_logprobs for update in used for group in update)


def test_a_large_coefficient_holds_the_policy_to_the_base(start: Start) -> None:
    held, free = (start({"train.kl_coefficient": c, "train.steps": 8, "train.lr": 3e-3}) for c in (20.0, 1e-9))
    ends = [steps(trainer)[-1]["kl"] for trainer in (held, free)]
    assert ends[0] < ends[1] / 4


# An engine whose log-probabilities are coarse


def test_with_a_coarse_engine_the_first_ratio_is_1_only_by_the_trainers_own_log_probabilities(start: Start) -> None:
    by = {}
    for source in ("engine", "trainer"):
        by[source] = steps(start(COARSE | {"train.old_logprobs": source, "train.steps": 2}, CoarseEngine))
    for row in by["trainer"]:
        assert max(abs(row["ratio_min"] - 1), abs(row["ratio_max"] - 1)) < 1e-4
        assert 1e-3 < row["engine_gap_mean"] < row["engine_gap_max"], "the gap is still the engine's"
    assert by["engine"][0]["ratio_max"] - by["engine"][0]["ratio_min"] > 1e-3
    # The same replies of the same engine, so the same gap, up to the order of sums in float32.
    for name in ("engine_gap_mean", "engine_gap_max"):
        assert by["engine"][0][name] == pytest.approx(by["trainer"][0][name], abs=1e-5)


def test_after_an_update_the_ratio_moves_with_the_trainers_log_probabilities_too(start: Start) -> None:
    rows = steps(start({"train.old_logprobs": "trainer"}))
    assert all(row["ratio_std"] > 1e-4 for row in rows[1:])


@pytest.mark.parametrize("algorithm", ["gspo", "grpo"])
def test_the_weights_of_a_coarse_engine_are_logged_and_change_the_training(start: Start, algorithm: str) -> None:
    knobs = COARSE | {"train.old_logprobs": "trainer", "train.algorithm": algorithm, "train.steps": 2}
    plain, weighted = start(knobs, CoarseEngine), start(knobs | {"train.engine_ratio_cap": 1.0}, CoarseEngine)
    rows = [steps(trainer) for trainer in (plain, weighted)]
    assert [row["engine_ratio_capped"] for row in rows[0]] == [None, None]
    assert all(0 < row["engine_ratio_capped"] < 1 for row in rows[1])
    assert not same(weights(plain), weights(weighted))


# Replies that the limit cut


def test_cut_replies_are_left_out_of_the_loss_and_still_count_in_their_groups_mean(start: Start, used: list) -> None:
    knobs = {**MASK, "train.steps": 1, "train.boards_per_step": 12, "train.updates_per_step": 1}
    scored, masked = start(knobs | {"train.overlong": "score"}), start(knobs)
    steps(scored)
    row = steps(masked)[0]
    whole, left = ({tuple(group.prompt): group for group in update} for update in used)
    assert left and left.keys() <= whole.keys()
    for prompt, group in left.items():
        full = whole[prompt]
        for i, reply in enumerate(group.replies):
            cut = masked.asker.policy.end_ids[0] != full.replies[i][-1]
            assert reply == ([] if cut else full.replies[i])
            assert group.advantages[i] == (0.0 if cut else full.advantages[i])
        assert any(group.advantages)
    finishes = [r["finish_reason"] for r in masked.tables.replies]
    assert row["overlong_masked"] == pytest.approx(finishes.count("length") / len(finishes), abs=1e-8)
    assert 0 < row["overlong_masked"] < 1 and sum(g.used < 4 for g in left.values()) > 0


def test_a_step_in_which_the_limit_cut_every_reply_updates_nothing_and_says_so(start: Start) -> None:
    trainer = start({"train.overlong": "mask", "train.steps": 1}, all_cut)
    before = weights(trainer)
    row = steps(trainer)[0]
    assert same(before, weights(trainer))
    assert (row["overlong_masked"], row["weights_changed"], row["ratio_mean"]) == (1, 0, None)
    assert row["zero_variance_groups"] < 4, "the rewards differ: that is not why nothing was learned"


def all_cut(policy: Policy) -> TorchEngine:
    engine = TorchEngine(policy.model, policy.end_ids)
    generate: Callable[..., list[list[Reply]]] = engine.generate
    engine.generate = lambda *asked: [[replace(r, finish_reason="length") for r in g] for g in generate(*asked)]
    return engine


def test_the_kl_coefficient_falls_linearly_to_nothing_and_stays_there(start: Start) -> None:
    # 0.2 · (1 − step / (0.5 · 4)): 0.2, 0.1, 0, 0; without kl_until it stays.
    trainer = start({"train.kl_coefficient": 0.2, "train.kl_until": 0.5, "train.steps": 4})
    strengths = []
    for _ in trainer.run():
        strengths.append(trainer.tables.history[-1]["kl"])
    assert [kl is None for kl in strengths] == [False, False, True, True]
    for step, expected in enumerate((0.2, 0.1, 0.0, 0.0)):
        assert kl_coefficient(trainer.params, step) == pytest.approx(expected)
    assert kl_coefficient(trainer.params.model_copy(update={"kl_until": None}), 3) == 0.2
