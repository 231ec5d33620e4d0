"""DAPO, Decoupled Clip and Dynamic Sampling Policy Optimization (arXiv 2503.14476, eq. 8).

J = E[ 1/Σᵢ|yᵢ| Σᵢ Σₜ min( rᵢ,ₜ Aᵢ, clip(rᵢ,ₜ, 1−ε₋, 1+ε₊) Aᵢ ) ],   rᵢ,ₜ = πθ(yᵢ,ₜ) / πold(yᵢ,ₜ)

A mean over all tokens of the update, whichever reply they belong to. The paper's other parts are
settings: "clip higher" is `train.clip_high` above `train.clip_low` (0.28 and 0.2 there), dynamic
sampling is `train.oversample`.
"""

from __future__ import annotations

from tuneloop.training.objectives.contract import Clip, Counts, Replies, Terms, Unit
from tuneloop.training.objectives.grpo import token_terms

UNIT: Unit = "token"


def terms(replies: Replies, clip: Clip) -> Terms:
    return token_terms(replies.logp - replies.old_logp, replies.advantage, replies.mask, clip)


def normaliser(counts: Counts) -> float:
    return counts.tokens
