"""The hand-written backward passes against autograd's own, in float64."""

from __future__ import annotations

import pytest
import torch
from policies.tiny_models import relative_error
from torch import Tensor
from torch.autograd import gradcheck

from tuneloop.policies import kernels
from tuneloop.policies.kernels import rms_norm, rotary_table, rotate, swiglu, token_logprobs


def numbers(*shape: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(("shape", "weight"), [((5, 8), (8,)), ((5, 3, 8), (8,)), ((5, 3, 8), (3, 8)), ((1, 2), (2,))])
def test_the_norm_and_its_gradients_are_those_of_its_formula(shape: tuple[int, ...], weight: tuple[int, ...]) -> None:
    x, w = numbers(*shape), numbers(*weight, seed=1)
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w
    assert relative_error(rms_norm(x, w, 1e-5), expected) < 1e-14
    assert gradcheck(lambda x, w: rms_norm(x, w, 1e-5), (x, w))
    with torch.no_grad():
        assert torch.equal(rms_norm(x, w, 1e-5), rms_norm(x.detach(), w.detach(), 1e-5))


def test_a_row_of_zeros_has_norm_zero_and_a_finite_gradient() -> None:
    x = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
    out = rms_norm(x, torch.ones(4, dtype=torch.float64), 1e-6)
    out.sum().backward()
    assert torch.equal(out, torch.zeros_like(out)) and x.grad.isfinite().all()


def test_the_gated_activation_and_its_gradients_are_those_of_its_formula() -> None:
    gate, up = numbers(5, 7), numbers(5, 7, seed=1)
    assert relative_error(swiglu(gate, up), gate / (1 + (-gate).exp()) * up) < 1e-14
    assert gradcheck(swiglu, (gate, up))


def test_turning_is_by_the_angle_of_position_and_pair() -> None:
    # e^(i · position · theta^(−2j/D)): for D = 4 and theta = 100, angles p and p/10.
    table = rotary_table(torch.tensor([0, 3]), 4, 100.0, torch.float64)
    x = numbers(2, 1, 4)
    turned = rotate(x, table)
    assert torch.equal(turned[0], x[0])
    for pair, angle in ((0, torch.tensor(3.0)), (1, torch.tensor(0.3))):
        a, b = x[1, 0, 2 * pair], x[1, 0, 2 * pair + 1]
        expected = torch.stack([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()])
        assert relative_error(turned[1, 0, 2 * pair : 2 * pair + 2], expected) < 1e-6  # angles are float32
    assert gradcheck(lambda x: rotate(x, table), (x,))


def reference(hidden: Tensor, head: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    rows = (hidden @ head.T / temperature).log_softmax(-1)
    return rows.gather(1, ids[:, None])[:, 0], -(rows.exp() * rows).sum(-1)


@pytest.mark.parametrize("rows", [100, 3])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_entropies_and_gradients_are_those_of_log_softmax(
    monkeypatch: pytest.MonkeyPatch, temperature: float, rows: int
) -> None:
    monkeypatch.setattr(kernels, "CHUNK_ELEMENTS", rows * 11)
    hidden, head, ids = numbers(7, 5), numbers(11, 5, seed=1), torch.tensor([0, 10, 3, 3, 7, 1, 0])
    for one, other in zip(token_logprobs(hidden, head, ids, temperature), reference(hidden, head, ids, temperature)):
        assert relative_error(one, other) < 1e-13
    assert gradcheck(lambda h, w: token_logprobs(h, w, ids, temperature), (hidden, head))
    # Each output alone: the other then has no gradient at all.
    for which in (0, 1):
        assert gradcheck(lambda h, w, which=which: token_logprobs(h, w, ids, temperature)[which], (hidden, head))


def test_a_certain_token_has_log_probability_and_entropy_zero_and_no_nan() -> None:
    hidden = torch.tensor([[1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    head = torch.tensor([[2000.0, 0.0], [-2000.0, 0.0]], dtype=torch.float64)
    logp, entropy = token_logprobs(hidden, head, torch.tensor([0]))
    (logp + entropy).sum().backward()
    assert logp.item() == entropy.item() == 0 and torch.equal(hidden.grad, torch.zeros_like(hidden))


def test_nothing_to_score_is_nothing() -> None:
    logp, entropy = token_logprobs(numbers(0, 5), numbers(11, 5), torch.zeros(0, dtype=torch.long))
    assert logp.shape == entropy.shape == (0,)
