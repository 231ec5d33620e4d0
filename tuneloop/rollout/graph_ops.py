"""The parts of a decoding step between its matrix products, in plain torch: any device, any precision.

`graph_kernels` has the same functions for CUDA, a kernel each, without the waiting for the device that some
of these do. A *slot* is the place of one token's keys and values in the pool. Shape suffixes as in
`tuneloop.policies.decoder`; n: tokens computed in one pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tuneloop.policies.kernels import rms_norm, rotate, swiglu
from tuneloop.rollout.contract import Sampling
from tuneloop.rollout.sampling import next_tokens


@dataclass(frozen=True)
class Shape:
    """A model's attention: K key heads, R query heads to each (ordered [R, K]), head width D; and its norms' ε."""

    K: int
    R: int
    D: int
    eps: float


@dataclass(frozen=True)
class Rows:
    """The tokens of one pass, int64 [n] each: `position` in its own sequence, and where that sequence's tokens lie.

    Token j of a row's sequence is at slot j of the prefix while j < `prefix` [1], at `suffix` + j − prefix
    while j < `prompt`, then at `reply` + j − prompt. A row sees tokens 0 … position. `near`: few of them lie behind
    the prefix, which changes how fast, not what is computed.
    """

    position: Tensor
    suffix: Tensor
    prompt: Tensor
    reply: Tensor
    prefix: Tensor
    near: bool = False

    def slots(self, j: Tensor) -> Tensor:
        """[n, m] slots of tokens `j`, [n, m] or [m]."""
        suffix, prompt, reply = (x[:, None] for x in (self.suffix, self.prompt, self.reply))
        return torch.where(j < self.prefix, j, torch.where(j < prompt, suffix + j - self.prefix, reply + j - prompt))


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return rms_norm(x, weight, eps)


def gate(joined: Tensor) -> Tensor:
    """[n, I] silu(gate) · up from both side by side [n, 2I]."""
    return swiglu(*joined.chunk(2, dim=-1))


def place(
    joined: Tensor, qk_norm: Tensor | None, rotary: Tensor, rows: Rows, keys: Tensor, values: Tensor, shape: Shape
) -> Tensor:
    """Queries [n, R·K·D], rotated, from `joined` [n, (R·K + 2K)·D]; keys (rotated) and values go to the rows'
    slots of `keys` and `values` [slots, K, D]. `rotary` [positions, D/2, 2]: cosines and sines."""
    K, H = shape.K, shape.R * shape.K
    qk, v = joined.unflatten(1, (-1, shape.D)).split([H + K, K], dim=1)
    if qk_norm is not None:
        qk = rms_norm(qk, qk_norm, shape.eps)
    table = torch.view_as_complex(rotary.index_select(0, rows.position))[:, None]
    q, k = rotate(qk, table).split([H, K], dim=1)
    slots = rows.slots(rows.position[:, None])[:, 0]
    keys[slots], values[slots] = k, v
    return q.flatten(1)


def attend(q: Tensor, rows: Rows, keys: Tensor, values: Tensor, shape: Shape) -> Tensor:
    """[n, R·K·D] what every row's queries [n, R·K·D] find among the tokens it sees."""
    K, R, D = shape.K, shape.R, shape.D
    j = torch.arange(int(rows.position.max()) + 1, device=q.device)
    seen = j <= rows.position[:, None]
    slots = torch.where(seen, rows.slots(j), 0)
    k, v = keys[slots], values[slots]  # [n, J, K, D]
    scores = torch.einsum("nrkd,njkd->nrkj", q.view(-1, R, K, D) * D**-0.5, k)
    weights = scores.masked_fill(~seen[:, None, None], float("-inf")).softmax(-1)
    return torch.einsum("nrkj,njkd->nrkd", weights, v).flatten(1)


def logits(hidden: Tensor, head: Tensor) -> Tensor:
    """[n, vocabulary], in float32 at least."""
    found = hidden @ head.T
    return found if found.dtype == torch.float64 else found.float()


def draw(logits: Tensor, sampling: Sampling, u: Tensor) -> tuple[Tensor, Tensor]:
    """See `tuneloop.rollout.sampling.next_tokens`."""
    return next_tokens(logits, sampling, u)


def record(tokens: Tensor, logp: Tensor, at: Tensor, ends: Tensor, ids: Tensor, logps: Tensor, running: Tensor) -> None:
    """Write what was drawn [n] to places `at` [n] of `ids` and `logps`, and take down `running` [n] where an
    end token came."""
    ids[at], logps[at] = tokens, logp.to(logps.dtype)
    running &= ~torch.isin(tokens, ends)
