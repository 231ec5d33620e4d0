"""SFT and DPO: what of a group is trained on, the loss and its gradient, and training runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from example_batch import BATCH, CLIP, LIMIT, TEMPERATURE, without
from ranks_script import trainer_of
from runs import TASK, Start, assert_two_and_two_steps_equal_four, steps
from sequence_truth import gradients, relative_error, tiny_model, token_logprobs
from transformers import PreTrainedModel

from tuneloop.params import Params
from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.policy import load_policy
from tuneloop.rollout.engines import load_engine
from tuneloop.rollout.episodes import asker_for
from tuneloop.tasks import load_episodes
from tuneloop.training.batch import Group, logprobs_of, micro_batches
from tuneloop.training.history import IMITATION_COLUMNS
from tuneloop.training.objectives import objective_named
from tuneloop.training.selection import select
from tuneloop.training.trainer import Trainer
from tuneloop.training.update import UpdateLog, accumulate

BETA = 0.4

# What of a group is trained on


def group(*replies: list[int]) -> Group:
    return Group([1], list(replies), [[-1.0] * len(r) for r in replies], [0.5] * len(replies))


A, B, C = [5, 2], [6, 6, 2], [7, 2]


@pytest.mark.parametrize(
    ("rewards", "best", "worst"),
    [([0.0, 1.0, -1.0], B, C), ([0.8, 0.0, 0.8], A, B), ([-1.0, 0.8, -1.0], B, A)],  # ties: the first
)
def test_sft_takes_a_groups_best_reply_and_dpo_the_best_against_the_worst(
    rewards: list[float], best: list[int], worst: list[int]
) -> None:
    (taken,) = select("sft", [group(A, B, C)], [rewards])
    assert (taken.prompt, taken.replies, taken.advantages) == ([1], [best], [1.0])
    (pair,) = select("dpo", [group(A, B, C)], [rewards])
    assert (pair.replies, pair.advantages) == ([best, worst], [1.0, -1.0])


def test_a_group_of_equal_rewards_is_left_out_and_the_others_keep_their_order() -> None:
    groups = [group(A, B), group(B, C), group(C, A)]
    rewards = [[0.0, 1.0], [0.8, 0.8], [0.0, 0.8]]
    assert [g.replies for g in select("sft", groups, rewards)] == [[B], [A]]
    assert [g.replies for g in select("dpo", groups, rewards)] == [[B, A], [A, C]]


def test_a_best_reply_that_earned_too_little_is_not_imitated() -> None:
    groups, rewards = [group(A, B), group(B, C)], [[0.0, -1.0], [0.8, 0.0]]
    assert [g.replies for g in select("sft", groups, rewards, least=0.8)] == [[B]]
    assert len(select("dpo", groups, rewards, least=0.8)) == 2, "a pair needs no good reply, only a better one"


def test_a_reply_that_is_masked_out_is_neither_chosen_nor_rejected() -> None:
    masked = group(A, [], C)  # as `Group.of` leaves out a reply that the limit cut
    assert [g.replies for g in select("sft", [masked], [[0.0, 1.0, 0.8]])] == [[C]]
    assert [g.replies for g in select("dpo", [masked], [[0.8, -1.0, 0.0]])] == [[A, C]]
    assert select("dpo", [masked], [[0.8, -1.0, 0.8]]) == [], "the two that are left do not differ"
    assert [g.replies for g in select("sft", [masked], [[0.8, -1.0, 0.8]])] == [[A]], "better than the masked one"
    assert select("sft", [group([], [])], [[0.0, 1.0]]) == []


def test_reinforcement_learning_goes_on_taking_whole_groups() -> None:
    idle = Group([1], [A, B], [[-1.0] * 2, [-1.0] * 3], [0.0, 0.0])
    assert select("gspo", [group(A, B), idle], [[0.0, 1.0], [1.0, 1.0]]) == [group(A, B)]


# Loss and gradient, against the formulas one sequence at a time in float64

REWARDS = [[1.0, 0.0, 0.5], [0.2, 0.8, 0.8]] * 4
HOLEY = [without(BATCH[0], 1), *BATCH[1:3], without(BATCH[3], 0, 1, 2), *BATCH[4:]]


def chosen(algorithm: str, batch: Sequence[Group] = BATCH) -> list[Group]:
    """What is trained on of the batch, with the log-probabilities of another model as the base policy's."""
    groups = select(algorithm, batch, REWARDS)
    base = logprobs_of(DenseDecoder(tiny_model(seed=3)), groups, TEMPERATURE, 512)
    return [Group(g.prompt, g.replies, g.old_logprobs, g.advantages, base_logprobs=b) for g, b in zip(groups, base)]


def expected_loss(model: PreTrainedModel, algorithm: str, groups: Sequence[Group]) -> torch.Tensor:
    logp = [[sum(token_logprobs(model, g.prompt, r, TEMPERATURE)) for r in g.replies] for g in groups]
    if algorithm == "sft":
        return -sum(value for row in logp for value in row) / sum(len(r) for g in groups for r in g.replies)
    base = [[sum(numbers) for numbers in g.base_logprobs] for g in groups]
    margins = [(up - base_up) - (down - base_down) for (up, down), (base_up, base_down) in zip(logp, base)]
    return sum(-torch.log(1 / (1 + torch.exp(-BETA * margin))) for margin in margins) / len(groups)


def updated(
    model: PreTrainedModel, algorithm: str, groups: Sequence[Group], most: int = 512
) -> tuple[UpdateLog, list[torch.Tensor]]:
    model.zero_grad(set_to_none=True)
    objective = objective_named(algorithm, BETA)
    log = accumulate(DenseDecoder(model), groups, objective, CLIP, TEMPERATURE, LIMIT, most)
    return log, [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("batch", [BATCH, HOLEY], ids=["whole", "with replies left out"])
@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_loss_and_gradient_are_those_of_the_formula(algorithm: str, batch: Sequence[Group]) -> None:
    groups = chosen(algorithm, batch)
    model = tiny_model()
    expected = expected_loss(model, algorithm, groups)
    log, found = updated(model, algorithm, groups)
    assert log.loss == pytest.approx(expected.item(), rel=1e-10)
    assert relative_error(found, gradients(model, expected)) < 1e-9
    assert len(log.ratio) == len(log.clipped_low) == len(log.clipped_high) == 0, "there is no ratio"


@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_splitting_an_update_into_micro_batches_changes_neither_loss_nor_gradient(algorithm: str) -> None:
    groups = chosen(algorithm)
    assert len({g.tokens for g in groups}) > 1, "else a mean of means would be right too"
    model = tiny_model()
    whole, expected = updated(model, algorithm, groups)
    assert len(micro_batches(groups, 1)) == 8
    split, found = updated(model, algorithm, groups, most=1)
    assert relative_error(found, expected) < 1e-11
    assert split.loss == pytest.approx(whole.loss, rel=1e-12)
    assert (whole.pairs is None) == (algorithm == "sft")
    if algorithm == "dpo":
        assert torch.allclose(split.pairs, whole.pairs, rtol=1e-12)


def test_an_episode_of_several_rows_counts_as_one_reply_and_what_was_not_sampled_for_nothing() -> None:
    model, base = tiny_model(), tiny_model(seed=3)
    prompt, up, down = [5, 9], [3, 4, 8, 2], [7, 2, 6, 11]
    # Chosen: one row whose second token is a tool's. Rejected: two rows, as where the history was written anew.
    sampled = [[True, False, True, True], [True, True], [False, True]]
    pair = Group(prompt, [up, down[:2], down[2:]], [[0.0] * 3, [0.0] * 3], [1.0, -1.0], None, None, sampled, [0, 1, 1])
    numbers = logprobs_of(DenseDecoder(base), [pair], TEMPERATURE, 512)[0]
    log, _ = updated(model, "dpo", [Group(*list(vars(pair).values())[:5], numbers, sampled, [0, 1, 1])])

    def log_ratio(rows: Sequence[list[int]], kept: Sequence[list[bool]]) -> float:
        return sum(
            sign * token_logprobs(m, prompt, row, TEMPERATURE)[t].item()
            for row, flags in zip(rows, kept)
            for t, flag in enumerate(flags)
            if flag
            for m, sign in ((model, 1), (base, -1))
        )

    expected = [log_ratio([up], sampled[:1]), log_ratio([down[:2], down[2:]], sampled[1:])]
    assert log.pairs.tolist() == [pytest.approx(expected, rel=1e-9)]
    margin = expected[0] - expected[1]
    assert log.loss == pytest.approx(-math.log(1 / (1 + math.exp(-BETA * margin))), rel=1e-9)


def test_preferences_without_the_base_policys_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="needs the base policy's log-probabilities"):
        updated(tiny_model(), "dpo", select("dpo", BATCH, REWARDS))


# Training runs

ALL_KEPT = {"train.keep_replies_every": 1}


def rewards_of(trainer: Any) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in trainer.tables.replies:
        found.setdefault(row["id"], []).append(row["reward"])
    return found


@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_a_step_trains_on_what_is_selected_of_its_own_groups(
    algorithm: str, start: Start, used: list[list[Group]]
) -> None:
    trainer = start(ALL_KEPT | {"train.algorithm": algorithm, "train.steps": 1})
    (row,) = steps(trainer)
    rewards = rewards_of(trainer)
    differing = sum(len(set(earned)) > 1 for earned in rewards.values())
    assert 0 < differing < len(rewards)
    trained = [g for update in used for g in update]
    assert len(trained) == differing == len(rewards) - row["zero_variance_groups"]
    by_prompt = {tuple(trainer.asker.prompt(r, 40)): rewards[r["id"]] for r in trainer.records if r["id"] in rewards}
    replies = {
        (tuple(trainer.asker.prompt(r, 40)), row["text"]): row["reward"]
        for r in trainer.records
        for row in trainer.tables.replies
        if row["id"] == r["id"]
    }
    for g in trained:
        earned = [replies[tuple(g.prompt), trainer.asker.policy.decode(ids)] for ids in g.replies]
        extremes = [max(by_prompt[tuple(g.prompt)]), min(by_prompt[tuple(g.prompt)])]
        assert earned == extremes[: len(earned)]
        assert len(earned) == (1 if algorithm == "sft" else 2)


def test_the_columns_of_the_history_say_what_there_is_and_leave_the_ratio_empty(start: Start) -> None:
    for algorithm, columns in IMITATION_COLUMNS.items():
        rows = steps(start({"train.algorithm": algorithm, "train.updates_per_step": 1}))
        for row in rows:
            assert list(row)[-len(columns) :] == list(columns)
            assert all(row[name] is None for name in ("ratio_mean", "ratio_std", "ratio_max", "clip_low", "kl"))
            assert row["engine_gap_mean"] < 1e-5 and row["entropy"] > 0 and row["grad_norm"] > 0
            assert all(row[name] is not None for name in columns)
        if algorithm == "dpo":
            # The policy is the base policy before the first update: σ(0) = 1/2 for every pair.
            assert rows[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
            assert rows[0]["log_ratio_margin"] == pytest.approx(0, abs=1e-5)
            assert rows[-1]["log_ratio_margin"] > 0.01
            margin = rows[-1]["log_ratio_chosen"] - rows[-1]["log_ratio_rejected"]
            assert rows[-1]["log_ratio_margin"] == pytest.approx(margin, rel=1e-6)


@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_a_run_continues_bit_for_bit(algorithm: str, start: Start, tmp_path: Path) -> None:
    changes = {"train.algorithm": algorithm, "train.visit": "unsettled"}
    assert_two_and_two_steps_equal_four(lambda: start(changes), tmp_path)


def test_after_training_on_pairs_the_policy_prefers_the_chosen_replies(start: Start) -> None:
    rows = steps(start({"train.algorithm": "dpo", "train.steps": 12, "train.evaluate_every": 12}))
    assert rows[-1]["pair_accuracy"] > 0.6 and rows[-1]["loss"] < math.log(2)


@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_whole_games_are_imitated_and_set_against_one_another_with_all_their_turns(
    algorithm: str, tiny_policy: Path, tiny_records: tuple[list, list], tiny_params: Callable[..., Params], used: list
) -> None:
    changes = {"train.algorithm": algorithm, "task.mode": "game", "task.reward_at": "turn", "train.steps": 2}
    params = tiny_params(changes | {"train.boards_per_step": 8, "train.keep_replies_every": 1})
    policy = load_policy(tiny_policy)
    engine = load_engine(policy, params.rollout)
    episodes = load_episodes(TASK, params.task.mode, params.task.opponent, params.task.reward_at)
    asker = asker_for(policy, engine, TASK, episodes)
    trainer = Trainer(asker, engine, *tiny_records, params.train, params.rollout, params.seed)
    rows = steps(trainer)
    groups = [g for update in used for g in update]
    assert {tuple(g.advantages) for g in groups} == {(1.0,) if algorithm == "sft" else (1.0, -1.0)}
    sampled = [row["length"] for row in trainer.tables.replies]
    assert all(length in sampled for g in groups for length in g.lengths), "episodes as wholes, every sampled token"
    assert any(len(g.replies) > len(g.advantages) or g.sampled is not None for g in groups), "some had several turns"
    assert all(row["engine_gap_max"] < 1e-4 and math.isfinite(row["loss"]) for row in rows)


def test_with_adapters_the_reference_is_the_policy_without_them(
    tiny_policy: Path, tiny_records: tuple[list, list], tiny_params: Callable[..., Params], used: list[list[Group]]
) -> None:
    changes = {"train.algorithm": "dpo", "train.updates_per_step": 1, "train.lora.rank": 3, "train.lr": 5e-3}
    trainer = trainer_of(tiny_policy, tiny_records, tiny_params(changes))
    assert trainer.base is None, "no second copy of the model"
    rows = steps(trainer)
    assert rows[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert abs(rows[-1]["log_ratio_chosen"]) > 0.01, "the policy has left the base policy"
    last = used[-1]
    expected = logprobs_of(DenseDecoder(load_policy(tiny_policy).model), last, 1.0, 512)
    assert [g.base_logprobs for g in last] == [[pytest.approx(reply, abs=1e-5) for reply in g] for g in expected]
