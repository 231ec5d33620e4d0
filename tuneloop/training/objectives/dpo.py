"""DPO, Direct Preference Optimization (arXiv 2305.18290, eq. 7).

L = −1/P Σₚ log σ( β [ log πθ(y⁺)/πbase(y⁺) − log πθ(y⁻)/πbase(y⁻) ] )

Every group is one pair: the rows with a positive advantage are the chosen reply y⁺, those with a negative one the
rejected y⁻ (several rows where a reply is an episode of several turns: their log-probabilities add up). The reference
is the base policy. A mean over the pairs of the update (TRL's DPOTrainer, loss type "sigmoid"). There is no ratio to
the policy that sampled, so nothing is clipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from tuneloop.training.objectives.contract import Clip, Counts, Replies, Terms, Unit, no_ratio


@dataclass(frozen=True)
class Dpo:
    """The objective with its `beta` (`train.dpo_beta`): how dear it is to leave the base policy."""

    beta: float
    UNIT: ClassVar[Unit] = "reply"

    def terms(self, replies: Replies, clip: Clip) -> Terms:
        """Raises ValueError where the replies come without base log-probabilities or groups."""
        chosen, rejected = log_ratios(replies)
        loss = -logsigmoid(self.beta * (chosen - rejected)).sum()
        return no_ratio(loss, torch.stack([chosen, rejected], 1).detach())

    def normaliser(self, counts: Counts) -> float:
        return counts.groups


def log_ratios(replies: Replies) -> tuple[Tensor, Tensor]:
    """[pairs] each: log πθ/πbase (nats) of the chosen and of the rejected reply as wholes."""
    if replies.base_logp is None or replies.rows is None:
        raise ValueError("a preference needs the base policy's log-probabilities, and to know which replies are a pair")
    row = (replies.logp - replies.base_logp).masked_fill(~replies.mask, 0.0).sum(-1)
    pairs = torch.arange(len(replies.rows)).repeat_interleave(torch.tensor(replies.rows)).to(row.device)
    mine = pairs == torch.arange(len(replies.rows), device=row.device)[:, None]  # [pairs, N]
    sign = replies.advantage[:, 0]
    # A sum over all rows, not a scatter: that has no fixed order of additions on a GPU.
    return (mine & (sign > 0)).mul(row).sum(-1), (mine & (sign < 0)).mul(row).sum(-1)
