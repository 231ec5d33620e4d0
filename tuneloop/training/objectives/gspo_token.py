"""GSPO-token (arXiv 2507.18071, eq. 13–17): GSPO written so that every token may have an advantage of its own.

J = E[ 1/G Σᵢ 1/|yᵢ| Σₜ min( sᵢ,ₜ Aᵢ,ₜ, clip(sᵢ,ₜ, 1−ε₋, 1+ε₊) Aᵢ,ₜ ) ],   sᵢ,ₜ = sg[sᵢ] · πθ(yᵢ,ₜ) / sg[πθ(yᵢ,ₜ)]

with GSPO's sᵢ, and sg[·] its value without gradient: sᵢ,ₜ equals sᵢ, and its gradient is that of token t
alone. Here Aᵢ,ₜ = Aᵢ for every token, so value and gradient are GSPO's. The loss is −J.
"""

from __future__ import annotations

from tuneloop.training.objectives.contract import Clip, Counts, Replies, Terms, Unit
from tuneloop.training.objectives.grpo import per_token_of_mean, token_terms
from tuneloop.training.objectives.gspo import sequence_log_ratio

UNIT: Unit = "reply"


def terms(replies: Replies, clip: Clip) -> Terms:
    token = replies.logp - replies.logp.detach()  # 0, with the gradient of log πθ(yᵢ,ₜ)
    log_ratio = sequence_log_ratio(replies).detach()[:, None] + token
    return token_terms(log_ratio, per_token_of_mean(replies), replies.mask, clip)


def normaliser(counts: Counts) -> float:
    return counts.replies
