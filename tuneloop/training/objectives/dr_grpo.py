"""Dr. GRPO, "GRPO done right" (arXiv 2503.20783, section 3.2).

J = E[ 1/G Σᵢ 1/M Σₜ min( rᵢ,ₜ Aᵢ, clip(rᵢ,ₜ, 1−ε₋, 1+ε₊) Aᵢ ) ],   rᵢ,ₜ = πθ(yᵢ,ₜ) / πold(yᵢ,ₜ)

GRPO with the reply's length replaced by a constant M, here the longest reply allowed
(`rollout.max_new_tokens`): every token weighs the same, and a long wrong reply is not let off lightly.
The paper's advantages are not divided by the group's standard deviation: set `train.scale_rewards: false`.
"""

from __future__ import annotations

from tuneloop.training.objectives.contract import Clip, Counts, Replies, Terms, Unit
from tuneloop.training.objectives.grpo import token_terms

UNIT: Unit = "token"


def terms(replies: Replies, clip: Clip) -> Terms:
    return token_terms(replies.logp - replies.old_logp, replies.advantage, replies.mask, clip)


def normaliser(counts: Counts) -> float:
    return counts.replies * counts.max_new_tokens
