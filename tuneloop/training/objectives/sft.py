"""SFT, supervised fine-tuning: imitation of replies that are worth it.

L = −1/Σᵢ|yᵢ| Σᵢ Σₜ log πθ(yᵢ,ₜ)

The negative log-likelihood of the replies' tokens, end token included and prompt left out, as a mean over all tokens of
the update (TRL's SFTTrainer with `completion_only_loss`; of the group's best reply: best-of-n fine-tuning, RAFT,
arXiv 2304.06767). There is no ratio, so nothing is clipped and none is logged.
"""

from __future__ import annotations

from tuneloop.training.objectives.contract import Clip, Counts, Replies, Terms, Unit, no_ratio

UNIT: Unit = "token"


def terms(replies: Replies, clip: Clip) -> Terms:
    return no_ratio(-replies.logp[replies.mask].sum())


def normaliser(counts: Counts) -> float:
    return counts.tokens
