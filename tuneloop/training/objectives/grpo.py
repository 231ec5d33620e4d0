"""GRPO, Group Relative Policy Optimization (arXiv 2402.03300, eq. 3; its KL term is
`train.kl_coefficient`, which goes with every objective).

J = E[ 1/G Σᵢ 1/|yᵢ| Σₜ min( rᵢ,ₜ Aᵢ, clip(rᵢ,ₜ, 1−ε₋, 1+ε₊) Aᵢ ) ],   rᵢ,ₜ = πθ(yᵢ,ₜ) / πold(yᵢ,ₜ)

One ratio a token; a mean over the tokens of each reply, then over the replies used, so that a token of
a short reply weighs more than one of a long reply. The loss is −J.
"""

from __future__ import annotations

from torch import Tensor

from tuneloop.training.objectives.contract import Clip, Counts, Replies, Terms, Unit
from tuneloop.training.objectives.gspo import clipped

UNIT: Unit = "token"


def terms(replies: Replies, clip: Clip) -> Terms:
    return token_terms(replies.logp - replies.old_logp, per_token_of_mean(replies), replies.mask, clip)


def normaliser(counts: Counts) -> float:
    return counts.replies


def per_token_of_mean(replies: Replies) -> Tensor:
    """The advantage of each token where a reply counts as the mean of its tokens, shaped as it is: min and
    clip scale with the advantage, so the mean is a sum with the advantage divided by the reply's length."""
    return replies.advantage / replies.mask.sum(-1, keepdim=True).clamp_min(1)


def token_terms(log_ratio: Tensor, advantage: Tensor, mask: Tensor, clip: Clip) -> Terms:
    """The clipped terms of every sampled token: `log_ratio` [N, L], `advantage` [N, 1] or [N, L]."""
    return clipped(log_ratio[mask].exp(), advantage.expand_as(mask)[mask], clip)
