"""A rollout batch as training sees it: groups with prompts, replies, log-probabilities, advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.prompt_tree import PromptTree, prompt_tree
from tuneloop.policies.scoring import reply_logprobs
from tuneloop.rollout.contract import Reply


@dataclass(frozen=True)
class Group:
    """One record's replies, and log-probabilities (nats) of their tokens, `[g][t]` each.

    `old_logprobs` are numbers from before the step's first update. `engine_logprobs` are those of the
    engine that sampled, where the old ones are not (None: the old ones are). `base_logprobs` are those of
    the base policy, where the KL divergence to it is wanted. A reply that is left out has no tokens.
    """

    prompt: list[int]
    replies: list[list[int]]
    old_logprobs: list[list[float]]
    advantages: list[float]
    engine_logprobs: list[list[float]] | None = None
    base_logprobs: list[list[float]] | None = None

    @staticmethod
    def of(
        prompt: Sequence[int], replies: Sequence[Reply], advantages: Sequence[float], mask_overlong: bool = False
    ) -> Group:
        """The group that was sampled. `mask_overlong` leaves the replies out that the limit cut (DAPO's overlong
        filtering, arXiv 2503.14476, section 3.4): their rewards have shaped the advantages of the others
        by then, but they themselves have no part in the loss or in what it is divided by."""
        # The place is kept: all groups of a batch have equally many replies.
        kept = [not (mask_overlong and r.finish_reason == "length") for r in replies]
        return Group(
            list(prompt),
            [r.ids if keep else [] for r, keep in zip(replies, kept)],
            [r.logprobs if keep else [] for r, keep in zip(replies, kept)],
            [a if keep else 0.0 for a, keep in zip(advantages, kept)],
        )

    @property
    def used(self) -> int:
        """How many replies have tokens."""
        return sum(map(bool, self.replies))

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
    """A micro-batch's replies: log-probabilities `logp` (now, with gradient), `old_logp`, `engine_logp`
    and, where the groups have them, `base_logp`, [N, L] like `mask`; `entropy` [reply tokens];
    `advantage` [N, 1]."""

    logp: Tensor
    old_logp: Tensor
    engine_logp: Tensor
    base_logp: Tensor | None
    mask: Tensor
    entropy: Tensor
    advantage: Tensor


def score(decoder: DenseDecoder, groups: Sequence[Group], temperature: float) -> Scored:
    """The groups' replies under the decoder's present weights."""
    tree = _tree(decoder, groups)
    logp, entropy = reply_logprobs(decoder, tree, temperature)

    def padded(numbers: Sequence[list[list[float]]]) -> Tensor:
        # Through numpy: torch takes ten times as long to read a list.
        flat = torch.from_numpy(np.array([p for group in numbers for reply in group for p in reply], dtype=np.float64))
        return tree.replies.pad(flat.to(logp.dtype).to(logp.device)[:, None])[..., 0]

    old = padded([g.old_logprobs for g in groups])
    engine = [g.engine_logprobs for g in groups]
    base = [g.base_logprobs for g in groups]
    advantage = torch.tensor([a for g in groups for a in g.advantages], dtype=logp.dtype)
    return Scored(
        tree.replies.pad(logp[:, None])[..., 0],
        old,
        old if None in engine else padded(engine),
        None if None in base else padded(base),
        tree.replies.mask(),
        entropy,
        advantage.to(logp.device)[:, None],
    )


@torch.no_grad()
def logprobs_of(
    decoder: DenseDecoder, groups: Sequence[Group], temperature: float, micro_batch_replies: int
) -> list[list[list[float]]]:
    """For each group the log-probabilities of its replies' tokens under `decoder`, shaped as `Group`
    holds them. No gradient."""
    found = []
    for part in micro_batches(groups, micro_batch_replies):
        numbers = iter(reply_logprobs(decoder, _tree(decoder, part), temperature)[0].tolist())
        found += [[[next(numbers) for _ in reply] for reply in group.replies] for group in part]
    return found


def _tree(decoder: DenseDecoder, groups: Sequence[Group]) -> PromptTree:
    return prompt_tree([g.prompt for g in groups], [g.replies for g in groups], decoder.device)
