"""One update: the gradient of the objective over some groups, and one optimizer step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tuneloop.policies.decoder import DenseDecoder
from tuneloop.training.batch import Group, micro_batches, score
from tuneloop.training.objectives import Clip, Counts, Objective, Replies


@dataclass
class UpdateLog:
    """What one update measured; tensors on the CPU."""

    ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    entropy_sum: float
    tokens: int
    gap_sum: float
    gap_max: float
    grad_norm: float


def accumulate(
    decoder: DenseDecoder,
    groups: Sequence[Group],
    objective: Objective,
    clip: Clip,
    temperature: float,
    max_new_tokens: int,
    micro_batch_replies: int,
    entropy_bonus: float = 0.0,
) -> UpdateLog:
    """Add the gradient of −(objective + bonus · mean entropy) over `groups` to the parameters'
    `.grad`. Every sum is divided by what the whole update uses, so that splitting it into
    micro-batches changes nothing but rounding."""
    counts = Counts(sum(len(g.replies) for g in groups), sum(g.tokens for g in groups), max_new_tokens)
    logs = []
    for part in micro_batches(groups, micro_batch_replies):
        scored = score(decoder, part, temperature)
        terms = objective.terms(Replies(scored.logp, scored.old_logp, scored.mask, scored.advantage), clip)
        loss = terms.loss / objective.normaliser(counts)
        if entropy_bonus:
            loss = loss - entropy_bonus * scored.entropy.sum() / counts.tokens
        loss.backward()
        gap = (scored.logp.detach() - scored.old_logp)[scored.mask].abs()
        logs.append(
            (
                terms.ratio.cpu(),
                terms.clipped_low.cpu(),
                terms.clipped_high.cpu(),
                scored.entropy.detach().sum().item(),
                gap.double().sum().item(),
                gap.max().item(),
            )
        )
    ratio, low, high, entropy, gaps, largest = zip(*logs)
    return UpdateLog(
        torch.cat(ratio), torch.cat(low), torch.cat(high), sum(entropy), counts.tokens, sum(gaps), max(largest), 0.0
    )


def apply(parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer, max_grad_norm: float, log: UpdateLog) -> None:
    """Clip the gradient to `max_grad_norm`, take the step, clear the gradient. Raises
    FloatingPointError, before the weights change, where the gradient is not finite."""
    log.grad_norm = torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm).item()
    if not math.isfinite(log.grad_norm):
        raise FloatingPointError(f"gradient norm {log.grad_norm}")
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
