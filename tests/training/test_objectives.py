"""Every objective and its gradient, packed and in micro-batches, against the papers' sums written one
sequence at a time."""

from __future__ import annotations

import itertools
import math

import pytest
import sequence_truth as truth
import torch
from example_batch import (
    BATCH,
    CLIP,
    GROUPS,
    HOLEY,
    LIMIT,
    SIZE,
    TEMPERATURE,
    expected_value,
    sampled,
    update,
    without,
)
from sequence_truth import gradients, relative_error, tiny_model, token_logprobs
from transformers import PreTrainedModel

from tuneloop.policies.decoder import DenseDecoder
from tuneloop.rollout.contract import Sampling
from tuneloop.rollout.torch_engine import TorchEngine
from tuneloop.training.batch import Group, micro_batches, score
from tuneloop.training.objectives import OBJECTIVES, Counts, Replies
from tuneloop.training.update import apply


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gradient_for_every_parameter_is_that_of_the_papers_objective(name: str) -> None:
    model = tiny_model()
    expected = gradients(model, -expected_value(model, name, BATCH))
    _, found = update(model, name)
    assert relative_error(found, expected) < 1e-9


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_loss_is_minus_the_papers_objective(name: str) -> None:
    model = tiny_model()
    with torch.no_grad():
        scored = score(DenseDecoder(model), BATCH, TEMPERATURE)
        replies = Replies(scored.logp, scored.old_logp, scored.mask, scored.advantage)
        counts = Counts(GROUPS * SIZE, sum(g.tokens for g in BATCH), LIMIT)
        loss = OBJECTIVES[name].terms(replies, CLIP).loss / OBJECTIVES[name].normaliser(counts)
        assert loss.item() == pytest.approx(-expected_value(model, name, BATCH).item(), rel=1e-10)


@pytest.mark.parametrize(("most", "parts"), [(512, 1), (3, 8)])
@pytest.mark.parametrize("layout", ["one at a time", "left", "right"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_replies_left_out_count_for_nothing_however_the_rest_is_laid_out(
    name: str, layout: str, most: int, parts: int
) -> None:
    model = tiny_model()
    kept = sampled(HOLEY)
    assert len(kept) == 3 * 9 - 6 and len(micro_batches([g for g in HOLEY if g.tokens], most)) == parts
    if layout == "one at a time":
        value = expected_value(model, name, HOLEY)
    else:
        new = truth.padded_logprobs(model, kept, layout, TEMPERATURE)
        value = truth.OBJECTIVES[name](new, kept, CLIP.low, CLIP.high, LIMIT)
    expected = gradients(model, -value)
    log, found = update(model, name, HOLEY, most)
    assert relative_error(found, expected) < 1e-9
    assert (log.replies, log.tokens) == (len(kept), sum(len(s.reply) for s in kept))
    assert len(log.ratio) == (log.replies if name == "gspo" else log.tokens)


def test_an_update_without_any_token_is_refused() -> None:
    with pytest.raises(ValueError, match="a reply with tokens"):
        update(tiny_model(), "gspo", [without(BATCH[0], 0, 1, 2)])


def test_an_advantage_that_would_spread_over_tokens_is_refused() -> None:
    square = torch.zeros(3, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"advantage is \[3\], not \[3, 1\] or \[3, 3\]"):
        Replies(square, square, square == 0, torch.ones(3, dtype=torch.float64))


# 24 replies in groups of 3: all at once; two groups at a time; 3, 3 and 2 groups; one group at a time.
@pytest.mark.parametrize(("most", "sizes"), [(512, [8]), (6, [2] * 4), (10, [3, 3, 2]), (3, [1] * 8), (1, [1] * 8)])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_splitting_an_update_into_micro_batches_changes_nothing(name: str, most: int, sizes: list[int]) -> None:
    assert [len(part) for part in micro_batches(BATCH, most)] == sizes
    model = tiny_model()
    whole, expected = update(model, name, entropy_bonus=0.1)
    split, found = update(model, name, most=most, entropy_bonus=0.1)
    assert relative_error(found, expected) < 1e-11
    assert torch.allclose(split.ratio, whole.ratio, rtol=1e-12)
    assert torch.equal(split.clipped_low, whole.clipped_low) and torch.equal(split.clipped_high, whole.clipped_high)
    assert (split.tokens, split.gap_max) == (whole.tokens, pytest.approx(whole.gap_max, rel=1e-9))
    assert split.gap_sum == pytest.approx(whole.gap_sum, rel=1e-9)
    assert split.entropy_sum == pytest.approx(whole.entropy_sum, rel=1e-9)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_micro_batches_of_unlike_size_weigh_what_they_hold(name: str) -> None:
    # Three replies of 9 tokens and one of 2, a micro-batch each: a mean of their means would differ.
    first, second = BATCH[0], BATCH[1]
    groups = [first, Group(second.prompt, second.replies[:1], second.old_logprobs[:1], second.advantages[:1])]
    assert [(len(g.replies), g.tokens) for g in groups] == [(3, 9), (1, 2)]
    model = tiny_model()
    expected = gradients(model, -expected_value(model, name, groups))
    _, found = update(model, name, groups, most=1)
    assert relative_error(found, expected) < 1e-9


def test_the_entropy_bonus_is_the_mean_entropy_over_reply_tokens() -> None:
    model = tiny_model()
    bonus = 0.3 * truth.mean_entropy(model, sampled(BATCH), TEMPERATURE)
    expected = gradients(model, -(expected_value(model, "gspo", BATCH) + bonus))
    log, found = update(model, "gspo", entropy_bonus=0.3)
    assert relative_error(found, expected) < 1e-9
    assert log.entropy_sum / log.tokens == pytest.approx(bonus.item() / 0.3, rel=1e-9)


def test_the_logged_ratios_and_clip_shares_are_those_of_the_papers_ratios() -> None:
    model = tiny_model()
    with torch.no_grad():
        expected = [
            truth.sequence_ratio(token_logprobs(model, s.prompt, s.reply, TEMPERATURE), s.old).item()
            for s in sampled(BATCH)
        ]
    log, _ = update(model, "gspo")
    assert log.ratio.tolist() == pytest.approx(expected, rel=1e-9)
    advantages = [s.advantage for s in sampled(BATCH)]
    low = [r < 0.95 and a < 0 for r, a in zip(expected, advantages)]
    high = [r > 1.08 and a > 0 for r, a in zip(expected, advantages)]
    assert (log.clipped_low.tolist(), log.clipped_high.tolist()) == (low, high)
    # The batch has every case: clipped on both sides, outside the range on the side that is not, and inside.
    free = [r < 0.95 and a > 0 for r, a in zip(expected, advantages)]
    wide = [r > 1.08 and a < 0 for r, a in zip(expected, advantages)]
    inside = [0.95 <= r <= 1.08 for r in expected]
    assert min(map(sum, (low, high, free, wide, inside))) >= 2


@pytest.mark.parametrize("name", ["gspo_token", "grpo", "dr_grpo", "dapo"])
def test_token_level_objectives_log_one_ratio_a_sampled_token(name: str) -> None:
    log, _ = update(tiny_model(), name, most=6)
    tokens = sum(len(s.reply) for s in sampled(BATCH))
    assert len(log.ratio) == len(log.clipped_low) == len(log.clipped_high) == tokens == log.tokens
    assert 0 < log.clipped_low.sum() < tokens and 0 < log.clipped_high.sum() < tokens


def test_gspo_token_is_gspo_in_value_and_gradient() -> None:
    draw = torch.Generator().manual_seed(2)
    mask = torch.arange(7) < torch.tensor([7, 1, 4, 2, 6])[:, None]
    old = torch.randn(5, 7, generator=draw, dtype=torch.float64).masked_fill(~mask, 0)
    new = (old + 0.1 * torch.randn(5, 7, generator=draw, dtype=torch.float64)).masked_fill(~mask, 0).requires_grad_()
    advantage = torch.tensor([[1.0], [-2.0], [0.5], [-0.25], [0.0]], dtype=torch.float64)
    losses = [OBJECTIVES[n].terms(Replies(new, old, mask, advantage), CLIP).loss for n in ("gspo", "gspo_token")]
    one, other = (torch.autograd.grad(loss, new)[0] for loss in losses)
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-12)
    assert torch.allclose(one, other, rtol=1e-12, atol=0)


RATIOS = [0.5, 0.94, 0.96, 1.0, 1.07, 1.09, 2.0]


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_gradient_of_a_clipped_ratio_is_exactly_0_and_of_any_other_it_is_not(name: str, sign: float) -> None:
    # Every token of a reply has the same ratio, so that sequence and token ratios agree.
    old = torch.full((len(RATIOS), 3), -1.5, dtype=torch.float64)
    new = (old + torch.tensor(RATIOS, dtype=torch.float64).log()[:, None]).requires_grad_()
    advantage = torch.full((len(RATIOS), 1), 0.7 * sign, dtype=torch.float64)
    terms = OBJECTIVES[name].terms(Replies(new, old, torch.ones(len(RATIOS), 3, dtype=torch.bool), advantage), CLIP)
    terms.loss.backward()
    clipped = [r > 1.08 if sign > 0 else r < 0.95 for r in RATIOS]
    assert [not row.any() for row in new.grad] == clipped
    # d(−r·A)/d log p = −r·A, shared by three tokens where the reply's mean is taken.
    share = 3 if name in ("gspo", "gspo_token", "grpo") else 1
    for ratio, row, is_clipped in zip(RATIOS, new.grad, clipped):
        if not is_clipped:
            assert row.tolist() == pytest.approx([-ratio * 0.7 * sign / share] * 3, rel=1e-9)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize(("sign", "shift"), [(1.0, -0.5), (-1.0, 0.5)])
def test_an_update_of_clipped_replies_alone_moves_no_parameter(name: str, sign: float, shift: float) -> None:
    model = tiny_model()
    groups = []
    for group in BATCH[:3]:
        with torch.no_grad():
            now = [token_logprobs(model, group.prompt, reply, TEMPERATURE) for reply in group.replies]
        old = [[p.item() + shift for p in reply] for reply in now]
        groups.append(Group(group.prompt, group.replies, old, [sign] * SIZE))
    log, found = update(model, name, groups)
    assert (log.clipped_high if sign > 0 else log.clipped_low).all()
    assert not any(gradient.any() for gradient in found)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_what_stands_behind_a_replys_end_counts_for_nothing(name: str) -> None:
    mask = torch.tensor([[True, True, False], [True, False, False]])
    old = torch.tensor([[-1.0, -2.0, 0.0], [-0.5, 0.0, 0.0]], dtype=torch.float64)
    new = torch.tensor([[-0.9, -2.1, 500.0], [-0.6, math.inf, -900.0]], dtype=torch.float64)
    advantage = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    clean = new.masked_fill(~mask, 0).requires_grad_()
    dirty = new.clone().requires_grad_()
    for logp in (clean, dirty):
        OBJECTIVES[name].terms(Replies(logp, old, mask, advantage), CLIP).loss.backward()
    assert torch.equal(clean.grad[mask], dirty.grad[mask]) and not dirty.grad[~mask].any()


# ---- A real rollout: engine, then two updates, in float32 as in training.


def rolled_out(model: PreTrainedModel) -> list[Group]:
    prompts = [group.prompt for group in BATCH]
    seeds = [[10 * b + i for i in range(4)] for b in range(GROUPS)]
    groups = TorchEngine(model, [2]).generate(prompts, seeds, Sampling(LIMIT, TEMPERATURE))
    return [Group.of(p, replies, [1.0, -1.0, 0.5, -0.5]) for p, replies in zip(prompts, groups)]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_ratio_is_1_before_the_first_step_and_real_after_it(name: str) -> None:
    model = tiny_model(dtype=torch.float32)
    groups = rolled_out(model)
    first, _ = update(model, name, groups)
    assert (first.ratio - 1).abs().max() < 1e-4
    assert first.gap_max < 5e-5 and first.gap_sum / first.tokens < 1e-5
    assert not first.clipped_low.any() and not first.clipped_high.any()

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    apply(list(model.parameters()), optimizer, 1.0, first)
    second, _ = update(model, name, groups)
    with torch.no_grad():
        new = [token_logprobs(model, s.prompt, s.reply, TEMPERATURE) for s in sampled(groups)]
    if name.startswith("gspo"):
        expected = [truth.sequence_ratio(n, s.old) for n, s in zip(new, sampled(groups))]
        if name == "gspo_token":
            expected = [ratio for ratio, s in zip(expected, sampled(groups)) for _ in s.reply]
    else:
        expected = [(a - b).exp() for n, s in zip(new, sampled(groups)) for a, b in zip(n, s.old)]
    assert second.ratio.tolist() == pytest.approx([r.item() for r in expected], rel=1e-4)
    assert (second.ratio - 1).abs().max() > 0.1
    assert second.clipped_low.any() and second.clipped_high.any()


def test_a_step_raises_the_objective_it_took_the_gradient_of() -> None:
    model = tiny_model()
    groups = rolled_out(model)
    before = expected_value(model, "gspo", groups).item()
    log, _ = update(model, "gspo", groups)
    apply(list(model.parameters()), torch.optim.SGD(model.parameters(), lr=1e-3), 1e9, log)
    assert expected_value(model, "gspo", groups).item() > before


def test_applying_an_update_clips_the_gradient_to_the_norm_it_logs_and_clears_it() -> None:
    model = tiny_model()
    log, found = update(model, "gspo")
    norm = math.sqrt(sum(float((g**2).sum()) for g in found))
    before = [p.detach().clone() for p in model.parameters()]
    apply(list(model.parameters()), torch.optim.SGD(model.parameters(), lr=1.0), norm / 2, log)
    moved = math.sqrt(sum(float(((a - b.detach()) ** 2).sum()) for a, b in zip(before, model.parameters())))
    assert log.grad_norm == pytest.approx(norm, rel=1e-9)
    assert moved == pytest.approx(norm / 2, rel=1e-5)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_end_token_that_is_also_the_padding_token_is_trained_on() -> None:
    model = tiny_model()
    assert model.config.pad_token_id == model.config.eos_token_id == 2
    group = Group([5, 9], [[3, 2], [2]], [[-1.0, -1.0], [-1.0]], [1.0, -1.0])
    scored = score(DenseDecoder(model), [group], 1.0)
    assert scored.mask.tolist() == [[True, True], [True, False]]
    expected = [token_logprobs(model, [5, 9], reply) for reply in ([3, 2], [2])]
    assert torch.allclose(scored.logp[scored.mask], torch.stack([*expected[0], *expected[1]]), rtol=1e-9)


def test_micro_batches_keep_every_group_once_and_in_order() -> None:
    for most in range(1, 30):
        parts = micro_batches(BATCH, most)
        assert list(itertools.chain(*parts)) == BATCH
        assert all(sum(len(g.replies) for g in part) <= most or len(part) == 1 for part in parts)
