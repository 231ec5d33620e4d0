"""Norm, gated activation, rotary positions and log-probabilities with backward passes written by hand.

A small model on a CPU is bound by the number of passes over its activations, not by arithmetic:
autograd's own passes for these took longer than the matrix products. Each function is held against
autograd in float64 by the tests.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_ELEMENTS = 1 << 24
"""Logits held at once (64 MB in float32): memory does not grow with vocabulary × batch."""
CHUNK_ELEMENTS_GPU = 1 << 28
"""The same on a GPU (1 GB), which small pieces leave idle."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last axis; `weight` broadcasts against `x`. In half
    precision the quotient is taken in float32 and rounded before the product, as transformers does. The result
    has the type of `x`."""
    return _RmsNorm.apply(x, weight, eps) if torch.is_grad_enabled() else (_normed(x, eps)[0] * weight).to(x.dtype)


def _normed(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The quotient, and 1 / sqrt(mean(x²) + eps) [..., 1]."""
    wide = x.float() if x.element_size() < 4 else x
    inverse = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (wide * inverse).to(x.dtype), inverse


class _RmsNorm(torch.autograd.Function):
    # With x̂ = x/rms: dx = (g − x̂ · mean(g x̂)) / rms, where g = dy · weight.
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        normed, inverse = _normed(x, eps)
        ctx.save_for_backward(normed, inverse, weight)
        return (normed * weight).to(x.dtype)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, inverse, weight = ctx.saved_tensors
        product = grad * normed
        to_weight = product.sum(tuple(range(product.dim() - weight.dim())), dtype=weight.dtype)
        along = product.mul_(weight).mean(-1, keepdim=True)
        to_x = torch.addcmul((grad * weight).to(normed.dtype), normed, along.to(normed.dtype), value=-1)
        return to_x.mul_(inverse.to(to_x.dtype)), to_weight, None


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up."""
    return _SwiGlu.apply(gate, up) if torch.is_grad_enabled() else F.silu(gate).mul_(up)


class _SwiGlu(torch.autograd.Function):
    # silu(gate) is made again in the backward pass: kept, it would be an eighth of all that training keeps.
    @staticmethod
    def forward(ctx, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        return torch.ops.aten.silu_backward(grad * up, gate), F.silu(gate).mul_(grad)


def rotary_table(positions: Tensor, head_width: int, theta: float, dtype: torch.dtype) -> Tensor:
    """[T, 1, head_width / 2] complex: e^(i · angle); angles in float32, as in transformers."""
    steps = torch.arange(0, head_width, 2, device=positions.device, dtype=torch.float32)
    angles = positions.float()[:, None] * (1.0 / theta ** (steps / head_width))[None]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return torch.complex(angles.cos().to(wide), angles.sin().to(wide))[:, None, :]


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """[T, heads, D] turned by `table`: a head's even and odd entries are real and imaginary parts."""
    wide = x.float() if x.element_size() < 4 else x
    turned = torch.view_as_complex(wide.unflatten(-1, (-1, 2))) * table
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def token_logprobs(hidden: Tensor, head: Tensor, ids: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy (nats) of `ids` [n], both [n], under softmax(hidden · headᵀ /
    temperature), from hidden states [n, hidden] and head [vocabulary, hidden].

    In float32 at least; a head in a wider type than `hidden` is rounded for the products with it and its
    gradient is not. Logits are made a chunk of rows at a time and, where there are several chunks, made
    again in the backward pass.
    """
    elements = CHUNK_ELEMENTS_GPU if hidden.is_cuda else CHUNK_ELEMENTS
    return _TokenLogprobs.apply(hidden, head, ids, temperature, max(1, elements // head.shape[0]))


class _TokenLogprobs(torch.autograd.Function):
    # d log p(id) / dz = onehot(id) − p;  d entropy / dz = −p (log p + entropy).
    @staticmethod
    def forward(ctx, hidden: Tensor, head: Tensor, ids: Tensor, temperature: float, rows: int) -> tuple[Tensor, Tensor]:
        parts, weight = [], head.to(hidden.dtype)
        for h, i in zip(hidden.split(rows), ids.split(rows)):
            shifted = _shifted_logits(h, weight, temperature)
            chosen = shifted.gather(-1, i[:, None])[:, 0]
            exp = shifted.exp()
            total = exp.sum(-1)
            entropy = total.log() - exp.mul_(shifted).sum(-1) / total
            parts.append((chosen - total.log(), entropy, total))
        logp, entropy, total = (torch.cat(p) for p in zip(*parts)) if parts else 3 * (hidden.new_zeros(0),)
        kept = [shifted] if len(parts) == 1 else []
        ctx.save_for_backward(hidden, head, ids, entropy, total, *kept)
        ctx.temperature, ctx.rows = temperature, rows
        ctx.set_materialize_grads(False)
        return logp, entropy

    @staticmethod
    def backward(ctx, to_logp: Tensor | None, to_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        if to_logp is None and to_entropy is None:
            return None, None, None, None, None
        hidden, head, ids, entropy, total, *kept = ctx.saved_tensors
        to_hidden, to_head, weight = torch.empty_like(hidden), torch.zeros_like(head), head.to(hidden.dtype)
        for start in range(0, len(ids), ctx.rows):
            part = slice(start, start + ctx.rows)
            shifted = kept[0] if kept else _shifted_logits(hidden[part], weight, ctx.temperature)
            p = shifted.exp().div_(total[part, None])
            if to_entropy is None:
                grad = p.mul_(-to_logp[part, None])
            else:
                pull = to_entropy[part, None]
                # log p + entropy = shifted − log total + entropy
                level = (entropy[part, None] - total[part, None].log()) * pull
                level = level if to_logp is None else level + to_logp[part, None]
                grad = torch.addcmul(level, shifted, pull).mul_(p).neg_()
            if to_logp is not None:
                grad.scatter_add_(-1, ids[part, None], to_logp[part, None])
            grad = grad.div_(ctx.temperature).to(hidden.dtype)
            to_hidden[part] = grad @ weight
            if to_head.dtype == grad.dtype:
                to_head.addmm_(grad.T, hidden[part])
            else:
                to_head += grad.T @ hidden[part]
        return to_hidden, to_head, None, None, None


def _shifted_logits(hidden: Tensor, head: Tensor, temperature: float) -> Tensor:
    """[n, vocabulary] logits / temperature, minus the largest of each row."""
    logits = hidden @ head.T
    # Half precision stops at the logits: sums of exponentials need float32.
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if temperature != 1:
        logits = logits.div_(temperature)
    return logits.sub_(logits.amax(-1, keepdim=True))
