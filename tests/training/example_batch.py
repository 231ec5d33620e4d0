"""A batch that every objective is held against, its value by the papers, and one update over it."""

from __future__ import annotations

from collections.abc import Sequence

import sequence_truth as truth
import torch
from sequence_truth import Sampled, tiny_model, token_logprobs
from transformers import PreTrainedModel

from tuneloop.policies.decoder import DenseDecoder
from tuneloop.training.batch import Group
from tuneloop.training.objectives import OBJECTIVES, Clip
from tuneloop.training.update import UpdateLog, accumulate

CLIP = Clip(low=0.05, high=0.08)
LIMIT = 9
"""`max_new_tokens`, which no reply below reaches."""
TEMPERATURE = 0.8
GROUPS, SIZE = 8, 3


def batch() -> list[Group]:
    """Eight groups of three replies of 1 to 6 tokens, both signs of advantage, and old log-probabilities
    that put ratios below, in and above the clip range."""
    draw = torch.Generator().manual_seed(1)
    model = tiny_model()
    groups = []
    for g in range(GROUPS):
        prompt = [5, 9, 9, *torch.randint(0, truth.VOCABULARY, (1 + g % 4,), generator=draw).tolist()]
        replies = [
            torch.randint(0, truth.VOCABULARY, (1 + (g + 2 * i) % 6,), generator=draw).tolist() for i in range(SIZE)
        ]
        advantages = [[1.2, -0.7, -0.5], [-1.4, 0.9, 0.5]][g % 2]
        old = []
        for i, reply in enumerate(replies):
            with torch.no_grad():
                now = torch.stack(token_logprobs(model, prompt, reply, TEMPERATURE))
            shift = (-0.15, 0.0, 0.15)[(g // 2 + i) % 3]
            old.append((now + shift + 0.1 * torch.randn(len(reply), generator=draw, dtype=torch.float64)).tolist())
        groups.append(Group(prompt, replies, old, advantages))
    return groups


BATCH = batch()


def sampled(groups: Sequence[Group]) -> list[Sampled]:
    """Every reply that has tokens."""
    rows = [(g.prompt, *reply) for g in groups for reply in zip(g.replies, g.old_logprobs, g.advantages)]
    return [Sampled(*row) for row in rows if row[1]]


def expected_value(model: PreTrainedModel, name: str, groups: Sequence[Group]) -> torch.Tensor:
    """J by the paper."""
    new = [token_logprobs(model, s.prompt, s.reply, TEMPERATURE) for s in sampled(groups)]
    return truth.OBJECTIVES[name](new, sampled(groups), CLIP.low, CLIP.high, LIMIT)


def update(
    model: PreTrainedModel,
    name: str,
    groups: Sequence[Group] = BATCH,
    most: int = 512,
    dtype: torch.dtype | None = None,
    checkpoint_layers: bool = False,
    **options: float,
) -> tuple[UpdateLog, list[torch.Tensor]]:
    """One update's log and the gradient of its loss for every parameter."""
    model.zero_grad(set_to_none=True)
    decoder = DenseDecoder(model, dtype, checkpoint_layers)
    log = accumulate(decoder, groups, OBJECTIVES[name], CLIP, TEMPERATURE, LIMIT, most, **options)
    return log, [parameter.grad for parameter in model.parameters()]


def without(group: Group, *places: int) -> Group:
    """The group with the replies at `places` left out, as `Group.of` leaves them out."""
    out = [i in places for i in range(SIZE)]
    return Group(
        group.prompt,
        [[] if o else r for o, r in zip(out, group.replies)],
        [[] if o else p for o, p in zip(out, group.old_logprobs)],
        [0.0 if o else a for o, a in zip(out, group.advantages)],
    )


HOLEY = [BATCH[0], without(BATCH[1], 2), BATCH[2], without(BATCH[3], 0, 1), without(BATCH[4], 0, 1, 2), *BATCH[5:]]
HOLEY.append(Group([7, 7], [[4], [2], [11]], [[-0.5], [-1.0], [-9.0]], [1.0, -0.2, -0.8]))
"""The batch with some replies left out, one group with all of them, and one group of one-token replies."""
