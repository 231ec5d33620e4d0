"""GSPO, Group Sequence Policy Optimization (arXiv 2507.18071, eq. 5–7).

J = E[ 1/G Σᵢ min( sᵢ Aᵢ, clip(sᵢ, 1−ε₋, 1+ε₊) Aᵢ ) ],   sᵢ = exp( 1/|yᵢ| Σₜ log πθ(yᵢ,ₜ) / πold(yᵢ,ₜ) )

One ratio a reply: the geometric mean over its tokens. The loss is −J, averaged over the replies used.
"""

from __future__ import annotations

from torch import Tensor

from tuneloop.training.objectives.contract import Clip, Counts, Replies, Terms, Unit

UNIT: Unit = "reply"


def terms(replies: Replies, clip: Clip) -> Terms:
    used = replies.mask.any(-1)
    return clipped(sequence_log_ratio(replies).exp()[used], replies.advantage[used, 0], clip)


def normaliser(counts: Counts) -> float:
    return counts.replies


def sequence_log_ratio(replies: Replies) -> Tensor:
    """[N] mean over the reply's tokens of log πθ − log πold; 0 for an empty reply."""
    difference = (replies.logp - replies.old_logp).masked_fill(~replies.mask, 0.0)
    return difference.sum(-1) / replies.mask.sum(-1).clamp_min(1)


def clipped(ratio: Tensor, advantage: Tensor, clip: Clip) -> Terms:
    """−Σ min(ratio · A, clip(ratio) · A); where the clipped side is the smaller, its gradient is 0."""
    held = ratio.clamp(1 - clip.low, 1 + clip.high)
    loss = -(ratio * advantage).minimum(held * advantage).sum()
    fixed = ratio.detach()
    return Terms(
        loss,
        fixed.flatten(),
        ((fixed < 1 - clip.low) & (advantage < 0)).flatten(),
        ((fixed > 1 + clip.high) & (advantage > 0)).flatten(),
    )
