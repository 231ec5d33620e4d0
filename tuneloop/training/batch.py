"""A rollout batch as training sees it: groups with prompts, replies, log-probabilities, advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.prompt_tree import PromptTree, Ragged, prompt_tree
from tuneloop.policies.scoring import reply_logprobs
from tuneloop.rollout.contract import Reply


@dataclass(frozen=True)
class Group:
    """One record's episodes: rows of tokens, and log-probabilities (nats) of those that the policy sampled.

    A one-turn episode is one reply, and a reply is a row. An episode of several turns is one row as long as every
    prompt goes on from the tokens before it, else several; `replies[row]` is everything behind `prompt`, which all
    rows share, and `sampled[row][i]` tells which of it the policy sampled (None: all). Row i is the whole of episode
    i, or `episode[i]` names the episode (rows of one stand together, episodes in order).

    Numbers belong to episodes, `[e][t]` for the t-th token that was sampled in it, through all its rows.
    `old_logprobs` are from before the step's first update. `engine_logprobs` are those of the engine that sampled,
    where the old ones are not (None: the old ones are). `base_logprobs` are those of the base policy, where the KL
    divergence to it is wanted. An episode that is left out has no tokens.
    """

    prompt: list[int]
    replies: list[list[int]]
    old_logprobs: list[list[float]]
    advantages: list[float]
    engine_logprobs: list[list[float]] | None = None
    base_logprobs: list[list[float]] | None = None
    sampled: list[list[bool]] | None = None
    episode: list[int] | None = None

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
    def lengths(self) -> list[int]:
        """How many tokens were sampled in each episode."""
        rows = [len(row) for row in self.replies] if self.sampled is None else [sum(row) for row in self.sampled]
        if self.episode is None:
            return rows
        lengths = [0] * len(self.advantages)
        for place, length in zip(self.episode, rows):
            lengths[place] += length
        return lengths

    @property
    def used(self) -> int:
        """How many episodes have tokens."""
        return sum(map(bool, self.lengths))

    @property
    def tokens(self) -> int:
        """How many were sampled."""
        return sum(self.lengths)

    def of_places(self, places: Sequence[int], advantages: Sequence[float]) -> Group:
        """The group cut to the episodes at `places`, in that order, with new advantages."""
        rows_of: list[list[int]] = [[] for _ in self.advantages]
        for row, place in enumerate(range(len(self.replies)) if self.episode is None else self.episode):
            rows_of[place].append(row)
        rows = [row for place in places for row in rows_of[place]]

        def cut(values: list[list[float]] | None) -> list[list[float]] | None:
            return None if values is None else [values[place] for place in places]

        return Group(
            self.prompt,
            [self.replies[row] for row in rows],
            [self.old_logprobs[place] for place in places],
            list(advantages),
            cut(self.engine_logprobs),
            cut(self.base_logprobs),
            None if self.sampled is None else [self.sampled[row] for row in rows],
            None if self.episode is None else [i for i, place in enumerate(places) for _ in rows_of[place]],
        )


def micro_batches(groups: Sequence[Group], most_replies: int) -> list[Sequence[Group]]:
    """Consecutive groups with at most `most_replies` rows together (at least one group each)."""
    parts: list[list[Group]] = []
    for group in groups:
        if parts and sum(len(g.replies) for g in parts[-1]) + len(group.replies) <= most_replies:
            parts[-1].append(group)
        else:
            parts.append([group])
    return parts


@dataclass(frozen=True)
class Scored:
    """A micro-batch's episodes, one a line, what was sampled in them alone: log-probabilities `logp` (now, with
    gradient), `old_logp`, `engine_logp` and, where the groups have them, `base_logp`, [N, L] like `mask`; `entropy`
    [sampled tokens]; `advantage` [N, 1]."""

    logp: Tensor
    old_logp: Tensor
    engine_logp: Tensor
    base_logp: Tensor | None
    mask: Tensor
    entropy: Tensor
    advantage: Tensor


def score(decoder: DenseDecoder, groups: Sequence[Group], temperature: float) -> Scored:
    """The groups' episodes under the decoder's present weights."""
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
    """For each group the log-probabilities of its sampled tokens under `decoder`, shaped as `Group` holds them. No
    gradient."""
    found = []
    for part in micro_batches(groups, micro_batch_replies):
        numbers = iter(reply_logprobs(decoder, _tree(decoder, part), temperature)[0].tolist())
        found += [[[next(numbers) for _ in range(length)] for length in group.lengths] for group in part]
    return found


def _tree(decoder: DenseDecoder, groups: Sequence[Group]) -> PromptTree:
    """The groups' rows as one tree whose `replies` are the lines of `Scored`: episodes, their sampled tokens alone."""
    most = max(len(g.replies) for g in groups)
    # A tree's groups are all of one size: an empty row has no tokens.
    rows = [[*g.replies, *([] for _ in range(most - len(g.replies)))] for g in groups]
    tree = prompt_tree([g.prompt for g in groups], rows, decoder.device)
    if all(g.sampled is None and g.episode is None and len(g.replies) == most for g in groups):
        return tree
    flags = [g.sampled if g.sampled is not None else [[True] * len(row) for row in g.replies] for g in groups]
    kept = torch.from_numpy(np.flatnonzero([flag for group in flags for row in group for flag in row]))
    kept = kept.to(tree.ids.device)
    return replace(
        tree,
        replies=Ragged.of([length for g in groups for length in g.lengths], tree.ids.device),
        reply_ids=tree.reply_ids.index_select(0, kept),
        predictors=tree.predictors.index_select(0, kept),
    )
