"""A rollout batch as training sees it: groups with prompts, replies, log-probabilities, advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tuneloop.policies.decoder import DenseDecoder, PromptTree, prompt_tree
from tuneloop.policies.scoring import reply_logprobs
from tuneloop.rollout.contract import Reply


@dataclass(frozen=True)
class Group:
    """One record's replies. `old_logprobs[g]` are numbers from before the step's first update."""

    prompt: list[int]
    replies: list[list[int]]
    old_logprobs: list[list[float]]
    advantages: list[float]

    @staticmethod
    def of(prompt: Sequence[int], replies: Sequence[Reply], advantages: Sequence[float]) -> Group:
        return Group(list(prompt), [r.ids for r in replies], [r.logprobs for r in replies], list(advantages))

    @property
    def tokens(self) -> int:
        return sum(map(len, self.replies))


def micro_batches(groups: Sequence[Group], most_replies: int) -> list[Sequence[Group]]:
    """Consecutive groups with at most `most_replies` replies together (at least one group each)."""
    parts: list[list[Group]] = []
    for group in groups:
        if parts and sum(len(g.replies) for g in parts[-1]) + len(group.replies) <= most_replies:
            parts[-1].append(group)
        else:
            parts.append([group])
    return parts


@dataclass(frozen=True)
class Scored:
    """Log-probabilities of a micro-batch's replies: `logp`, `old_logp`, `mask` [N, L], `entropy`
    [reply tokens], `advantage` [N]."""

    logp: Tensor
    old_logp: Tensor
    mask: Tensor
    entropy: Tensor
    advantage: Tensor


def score(decoder: DenseDecoder, groups: Sequence[Group], temperature: float) -> Scored:
    """The groups' replies under the decoder's present weights."""
    tree: PromptTree = prompt_tree([g.prompt for g in groups], [g.replies for g in groups], decoder.device)
    logp, entropy = reply_logprobs(decoder, tree, temperature)
    old = torch.tensor([p for g in groups for reply in g.old_logprobs for p in reply], dtype=logp.dtype)
    advantage = torch.tensor([a for g in groups for a in g.advantages], dtype=logp.dtype)
    return Scored(
        tree.replies.pad(logp[:, None])[..., 0],
        tree.replies.pad(old.to(logp.device)[:, None])[..., 0],
        tree.replies.mask(),
        entropy,
        advantage.to(logp.device),
    )
