"""Training that computes in bfloat16: what is rounded, and what must not be."""

from __future__ import annotations

import copy

import pytest
import torch
from example_batch import BATCH, TEMPERATURE, sampled, update
from runs import Start, steps, weights
from sequence_truth import tiny_model, token_logprobs

from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.kernels import rms_norm
from tuneloop.policies.kernels import token_logprobs as head_logprobs
from tuneloop.policies.prompt_tree import prompt_tree
from tuneloop.policies.scoring import reply_logprobs

HALF = 2.0**-9
"""The largest relative error of rounding to bfloat16, which has eight significant bits."""


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


def scored(decoder: DenseDecoder) -> torch.Tensor:
    tree = prompt_tree([g.prompt for g in BATCH], [g.replies for g in BATCH])
    return reply_logprobs(decoder, tree, TEMPERATURE)[0]


@pytest.fixture(scope="module")
def errors() -> dict[str, list[float]]:
    """Relative errors of every gradient in bfloat16: of ours, and of a model whose weights are bfloat16, as
    transformers would train it; the numbers it computes with are the same, so the truth is too."""
    rounded = tiny_model().bfloat16().float()
    rounded.zero_grad(set_to_none=True)

    def gradients(model: torch.nn.Module, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
        scored(DenseDecoder(model, dtype)).sum().backward()
        found = [p.grad for p in model.parameters()]
        model.zero_grad(set_to_none=True)
        return found

    truth = gradients(copy.deepcopy(rounded).double())
    found = {"ours": gradients(rounded, torch.bfloat16), "weights": gradients(copy.deepcopy(rounded).bfloat16())}
    assert {g.dtype for g in found["ours"]} == {torch.float32}
    assert any((g.bfloat16().float() != g).any() for g in found["ours"]), "else they were rounded on their way"
    return {name: [relative(f, t) for f, t in zip(many, truth)] for name, many in found.items()}


def test_gradients_reach_float32_weights_with_no_larger_errors_than_those_of_bfloat16_weights(
    errors: dict[str, list[float]],
) -> None:
    assert 0 < max(errors["ours"]) < 0.1
    assert sum(errors["ours"]) <= 1.05 * sum(errors["weights"])


def test_log_probabilities_are_float32_and_as_close_as_those_of_transformers_in_bfloat16() -> None:
    model = tiny_model().bfloat16().float()
    exact, rounded = scored(DenseDecoder(model)), scored(DenseDecoder(model, torch.bfloat16))
    half = copy.deepcopy(model).bfloat16()
    theirs = torch.cat([torch.stack(token_logprobs(half, s.prompt, s.reply, TEMPERATURE)) for s in sampled(BATCH)])
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).abs().mean() <= 1.1 * (theirs.float() - exact).abs().mean()


def test_a_norm_takes_its_mean_square_in_float32_and_its_weights_gradient_sums_there() -> None:
    # 4,096 rows of ones: a bfloat16 sum of the gradients would stop at 256, where 1 more is rounded away.
    x = torch.ones(4096, 8, dtype=torch.bfloat16)
    weight = torch.ones(8, requires_grad=True)
    out = rms_norm(x, weight, 1e-6)
    out.backward(torch.ones_like(out))
    assert out.dtype == torch.bfloat16
    assert weight.grad.tolist() == [4096.0] * 8


def test_the_heads_gradient_adds_up_in_float32_over_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    # One row a chunk, 600 equal rows: a sum in bfloat16 would stop growing after a few hundred.
    monkeypatch.setattr("tuneloop.policies.kernels.CHUNK_ELEMENTS", 4)
    hidden = torch.full((600, 2), 0.5, dtype=torch.bfloat16)
    ids = torch.zeros(600, dtype=torch.long)

    def gradient(head: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        head_logprobs(hidden, head.requires_grad_(), ids)[0].sum().backward()
        return head.grad

    start = torch.tensor([[0.5, -0.25], [0.125, 0.5], [-0.5, 0.25], [1.0, 0.5]])
    found, expected = gradient(start.clone(), hidden), gradient(start.double(), hidden.double())
    assert found.dtype == torch.float32
    assert relative(found, expected) < HALF


def test_an_update_in_bfloat16_logs_the_same_within_its_rounding() -> None:
    model = tiny_model().float()
    log, gradients = update(model, "gspo")
    half, rounded = update(model, "gspo", dtype=torch.bfloat16)
    assert half.tokens == log.tokens
    assert half.ratio.mean().item() == pytest.approx(log.ratio.mean().item(), abs=0.02)
    assert max(relative(r, g) for r, g in zip(rounded, gradients)) < 0.1


BF16 = {"train.dtype": "bfloat16", "train.old_logprobs": "trainer", "train.engine_gap_limit": 0.1, "train.lr": 1e-5}


def test_a_trainer_in_bfloat16_moves_its_float32_weights_by_less_than_bfloat16_could_store(start: Start) -> None:
    trainer = start(BF16 | {"train.steps": 2, "train.lr_warmup": 0})
    before = weights(trainer)
    rows = steps(trainer)
    after = weights(trainer)
    assert all(value.dtype == torch.float32 for value in after.values())
    assert all(row["weights_changed"] > 0.9 for row in rows)
    # At a learning rate of 1e-5 most weights of size 0.02 and more would stay where they are in bfloat16.
    stored = [(before[n].bfloat16() == after[n].bfloat16()).float().mean().item() for n in before]
    assert sum(stored) / len(stored) > 0.5
    gaps = [row["engine_gap_mean"] for row in rows]
    assert all(1e-5 < gap < 0.1 for gap in gaps), "the engine computes in float32, the trainer does not"


def test_the_base_policy_of_the_kl_term_is_computed_in_the_same_type(start: Start) -> None:
    # Otherwise rounding alone would look like a divergence: at step 1, before any update, it is 0.
    trainer = start(BF16 | {"train.steps": 1, "train.updates_per_step": 1, "train.kl_coefficient": 0.1})
    assert steps(trainer)[0]["kl"] == 0
