"""The arithmetic that a step needs, and the time it would take if a processor did nothing else.

Counted: 2 operations a weight and token forward, 6 forward and backward, in the layers for every token
and in the head for reply tokens only. Not counted: attention scores, norms, softmax, the optimizer,
padding, and anything computed twice to save memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FORWARD, FORWARD_AND_BACKWARD = 2, 6


@dataclass(frozen=True)
class Operations:
    """Floating-point operations of one step."""

    rollout: float
    train: float

    @property
    def whole(self) -> float:
        return self.rollout + self.train


def shared_prompts(policy: Mapping[str, Any], replies: int, new_tokens: int, updates: int) -> Operations:
    """tuneloop's: a prefix that all prompts share once, the rest of each prompt once a group. Updates
    take the log-probabilities of the rollout as the old ones.

    `policy` holds `prompt_tokens` (of every board), `shared_prefix`, `body_parameters` and
    `head_parameters`; `replies` is a number a board.
    """
    body, head = policy["body_parameters"], policy["head_parameters"]
    prefix, prompts = policy["shared_prefix"], policy["prompt_tokens"]
    suffixes = sum(prompts) - prefix * len(prompts)
    drawn = len(prompts) * replies * new_tokens
    fed_back = len(prompts) * replies * (new_tokens - 1)  # the last token drawn is not computed on
    rollout = FORWARD * (body * (prefix + suffixes + fed_back) + head * drawn)
    trained = body * (updates * prefix + suffixes + drawn) + head * drawn
    return Operations(rollout, FORWARD_AND_BACKWARD * trained)


def repeated_prompts(policy: Mapping[str, Any], replies: int, new_tokens: int, updates: int) -> Operations:
    """TRL's: every reply with its own copy of the prompt, and, where several updates share a rollout, one
    more forward pass for the old log-probabilities."""
    body, head = policy["body_parameters"], policy["head_parameters"]
    prompts: Sequence[int] = policy["prompt_tokens"]
    drawn = len(prompts) * replies * new_tokens
    rows = sum(prompts) * replies
    rollout = FORWARD * (body * (rows + len(prompts) * replies * (new_tokens - 1)) + head * drawn)
    once = body * (rows + drawn) + head * drawn
    return Operations(rollout, (FORWARD_AND_BACKWARD + (FORWARD if updates > 1 else 0)) * once)
