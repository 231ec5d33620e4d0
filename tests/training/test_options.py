"""KL to the base policy, weights for a mismatched engine, replies left out: an update with each of them
against the papers' sums written one sequence at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import sequence_truth as truth
import torch
from example_batch import BATCH, CLIP, HOLEY, LIMIT, TEMPERATURE, expected_value, sampled, update
from sequence_truth import Sampled, gradients, relative_error, tiny_model, token_logprobs
from transformers import PreTrainedModel

from tuneloop.policies.decoder import DenseDecoder
from tuneloop.rollout.contract import Reply
from tuneloop.training.batch import Group, logprobs_of
from tuneloop.training.objectives import OBJECTIVES
from tuneloop.training.update import engine_weights, kl_to_base

MICRO_BATCHES = pytest.mark.parametrize("most", [512, 3])
"""All at once, or one group at a time."""

# Log-probabilities from before the update


@pytest.mark.parametrize("most", [512, 6, 1])
def test_log_probabilities_of_a_batch_are_those_of_one_reply_at_a_time(most: int) -> None:
    model = tiny_model()
    found = logprobs_of(DenseDecoder(model), HOLEY, TEMPERATURE, most)
    assert [[len(reply) for reply in group] for group in found] == [[len(r) for r in g.replies] for g in HOLEY]
    for group, numbers in zip(HOLEY, found):
        for reply, logps in zip(group.replies, numbers):
            expected = [p.item() for p in token_logprobs(model, group.prompt, reply, TEMPERATURE)] if reply else []
            assert logps == pytest.approx(expected, rel=1e-9)


# KL to the base policy


def with_base(groups: Sequence[Group], base: PreTrainedModel) -> list[Group]:
    numbers = logprobs_of(DenseDecoder(base), groups, TEMPERATURE, 512)
    return [replace(g, base_logprobs=n) for g, n in zip(groups, numbers)]


def expected_kl(model: PreTrainedModel, base: PreTrainedModel, replies: Sequence[Sampled]) -> torch.Tensor:
    new = [token_logprobs(model, s.prompt, s.reply, TEMPERATURE) for s in replies]
    with torch.no_grad():
        old = [[p.item() for p in token_logprobs(base, s.prompt, s.reply, TEMPERATURE)] for s in replies]
    return truth.mean_kl(new, old)


@MICRO_BATCHES
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_kl_term_is_the_same_under_every_objective_and_micro_batch_split(name: str, most: int) -> None:
    model, base = tiny_model(0), tiny_model(1)
    kl = expected_kl(model, base, sampled(HOLEY))
    expected = gradients(model, -expected_value(model, name, HOLEY) + 0.3 * kl)
    log, found = update(model, name, with_base(HOLEY, base), most, kl_coefficient=0.3)
    assert relative_error(found, expected) < 1e-9
    assert log.kl_sum / log.replies == pytest.approx(kl.item(), rel=1e-9)
    assert kl > 0.1, "else the term is lost beside the objective"


def test_the_kl_term_of_the_base_policy_itself_is_0_and_pulls_nowhere() -> None:
    model = tiny_model()
    _, plain = update(model, "gspo")
    log, found = update(model, "gspo", with_base(BATCH, tiny_model()), kl_coefficient=100.0)
    assert 0 <= log.kl_sum < 1e-12
    assert relative_error(found, plain) < 1e-9


def test_the_estimates_mean_over_all_tokens_is_the_exact_kl_divergence() -> None:
    draw = torch.Generator().manual_seed(4)
    p, q = (torch.randn(20, generator=draw, dtype=torch.float64).log_softmax(-1) for _ in range(2))
    one = torch.ones(1, 1, dtype=torch.bool)
    estimates = torch.stack([kl_to_base(p[i].view(1, 1), q[i].view(1, 1), one) for i in range(20)])
    exact = (p.exp() * (p - q)).sum()
    assert (p.exp() @ estimates).item() == pytest.approx(exact.item(), rel=1e-12)
    assert (estimates > 0).all()


# Weights for an engine that computes other probabilities

CAP = 1.1


def with_engine(groups: Sequence[Group]) -> list[Group]:
    """The groups as an engine sampled them whose log-probabilities are off by about 0.1."""
    draw = torch.Generator().manual_seed(6)
    noisy = [
        [
            [p + 0.1 * torch.randn((), generator=draw, dtype=torch.float64).item() for p in reply]
            for reply in g.old_logprobs
        ]
        for g in groups
    ]
    return [replace(g, engine_logprobs=numbers) for g, numbers in zip(groups, noisy)]


def weighted(groups: Sequence[Group], name: str) -> list[Sampled]:
    """The replies with their weights: of the whole reply where the objective has one ratio a reply."""
    weights = truth.reply_weights if name.startswith("gspo") else truth.token_weights
    engine = [numbers for g in groups for numbers in g.engine_logprobs if numbers]
    return [replace(s, weights=weights(s.old, numbers, CAP)) for s, numbers in zip(sampled(groups), engine)]


@MICRO_BATCHES
@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_ratio_is_weighted_by_how_much_likelier_it_is_to_the_trainer_up_to_the_cap(name: str, most: int) -> None:
    model, groups = tiny_model(), with_engine(HOLEY)
    replies = weighted(groups, name)
    new = [token_logprobs(model, s.prompt, s.reply, TEMPERATURE) for s in replies]
    expected = gradients(model, -truth.OBJECTIVES[name](new, replies, CLIP.low, CLIP.high, LIMIT))
    log, found = update(model, name, groups, most, engine_ratio_cap=CAP)
    assert relative_error(found, expected) < 1e-9
    assert relative_error(update(model, name, groups, most)[1], expected) > 0.01, "else the weights do nothing"

    flat = [s.weights[:1] if name.startswith("gspo") else s.weights for s in replies]
    at_cap = [weight == CAP for weights in flat for weight in weights]
    assert log.capped.tolist() == at_cap and 0 < sum(at_cap) < len(at_cap)


def test_the_ratio_and_the_clip_know_nothing_of_the_engine() -> None:
    model = tiny_model()
    plain, _ = update(model, "gspo")
    log, _ = update(model, "gspo", with_engine(BATCH), engine_ratio_cap=CAP)
    for name in ("ratio", "clipped_low", "clipped_high"):
        assert torch.equal(getattr(plain, name), getattr(log, name))


def test_the_gap_is_that_of_the_engines_numbers() -> None:
    model, groups = tiny_model(), with_engine(BATCH)
    log, _ = update(model, "gspo", groups)
    new = [p for g in logprobs_of(DenseDecoder(model), groups, TEMPERATURE, 512) for r in g for p in r]
    engine = [p for g in groups for r in g.engine_logprobs for p in r]
    gaps = [abs(a - b) for a, b in zip(new, engine, strict=True)]
    assert log.gap_sum == pytest.approx(sum(gaps), rel=1e-9)
    assert log.gap_max == pytest.approx(max(gaps), rel=1e-9)


@pytest.mark.parametrize("unit", ["reply", "token"])
def test_an_engine_that_agrees_gets_weights_of_exactly_1_and_an_absurd_one_the_cap(unit: str) -> None:
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    weights, capped = engine_weights(torch.zeros(3, 2), mask, unit, 2.0)
    assert (weights == 1).all() and not capped.any()
    assert len(capped) == (2 if unit == "reply" else 3), "a reply that is left out has no weight"
    weights, capped = engine_weights(torch.full((3, 2), 1e4), mask, unit, 2.0)
    assert (weights[:2, 0] == 2).all() and capped.all()


# Replies that the limit cut


def test_a_reply_that_the_limit_cut_is_left_out_only_where_that_is_asked_for() -> None:
    replies = [Reply([4, 2], [-1.0, -2.0], "stop"), Reply([4, 4, 4], [-3.0, -4.0, -5.0], "length")]
    scored = Group.of([5], replies, [1.0, -1.0])
    assert (scored.replies, scored.advantages, scored.used) == ([[4, 2], [4, 4, 4]], [1.0, -1.0], 2)
    masked = Group.of([5], replies, [1.0, -1.0], mask_overlong=True)
    assert (masked.replies, masked.old_logprobs) == ([[4, 2], []], [[-1.0, -2.0], []])
    assert (masked.advantages, masked.used, masked.tokens) == ([1.0, 0.0], 1, 2)
