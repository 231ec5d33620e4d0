"""One update: the gradient of the objective over some groups, and one optimizer step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.lanes import TRAINED, add_gradients, lanes, split
from tuneloop.training.batch import Group, micro_batches, score
from tuneloop.training.objectives import Clip, Counts, Objective, Replies, Unit
from tuneloop.training.ranks import ALONE, Ranks, clip_gradients, sum_gradients


@dataclass
class UpdateLog:
    """What one update measured over the replies that it used; tensors on the CPU. `kl_sum` is a sum over
    replies, None where there is no KL term; `capped` [weights] is None where nothing is weighted. The gap's numbers
    are None where no engine sampled the replies. `loss` is the objective's alone; `pairs` as in `Terms`."""

    ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    entropy_sum: float
    replies: int
    tokens: int
    gap_sum: float | None
    gap_max: float | None
    kl_sum: float | None
    capped: Tensor | None
    grad_norm: float
    loss: float
    pairs: Tensor | None


def accumulate(
    decoder: DenseDecoder,
    groups: Sequence[Group],
    objective: Objective,
    clip: Clip,
    temperature: float,
    max_new_tokens: int,
    micro_batch_replies: int,
    entropy_bonus: float = 0.0,
    kl_coefficient: float = 0.0,
    engine_ratio_cap: float | None = None,
    ranks: Ranks = ALONE,
) -> UpdateLog:
    """Add the gradient of −(objective + bonus · mean entropy − coefficient · mean KL) over `groups` to the
    parameters' `.grad`. Every sum is divided by what the whole update uses, so that splitting it into
    micro-batches changes nothing but rounding. `kl_coefficient` wants the groups' `base_logprobs`,
    `engine_ratio_cap` (see `engine_weights`) their `engine_logprobs`. Raises ValueError where no reply
    has tokens. Several `ranks` are all given all groups; each computes its share, and the log is of all."""
    groups = [g for g in groups if g.used]
    if not groups:
        raise ValueError("an update needs a reply with tokens")
    counts = Counts(sum(g.used for g in groups), sum(g.tokens for g in groups), max_new_tokens, len(groups))
    weigh = Weighing(objective, clip, counts, temperature, entropy_bonus, kl_coefficient, engine_ratio_cap)
    if ranks.alone:
        parts = split(groups, lanes(decoder.model, counts.replies, TRAINED))
        size = -(-micro_batch_replies // len(parts))  # together in memory at once: what was asked for
        jobs = [partial(_losses, decoder, micro_batches(part, size), weigh) for part in parts]
    else:
        jobs = [partial(_shared_losses, decoder, groups, micro_batch_replies, weigh, ranks)]
    parameters = [p for p in decoder.model.parameters() if p.requires_grad]
    logs = [log for found in ranks.gather(add_gradients(parameters, jobs)) for log in found if log is not None]
    sum_gradients(parameters, ranks)
    ratio, low, high, entropy, gaps, largest, kls, at_cap, losses, pairs = zip(*logs)
    return UpdateLog(
        torch.cat(ratio),
        torch.cat(low),
        torch.cat(high),
        sum(entropy),
        counts.replies,
        counts.tokens,
        sum(gaps),
        max(largest),
        sum(kls) if kl_coefficient else None,
        torch.cat(at_cap) if engine_ratio_cap is not None else None,
        0.0,
        sum(losses),
        torch.cat(pairs) if pairs[0] is not None else None,
    )


@dataclass(frozen=True)
class Weighing:
    """What a whole update's loss is made of."""

    objective: Objective
    clip: Clip
    counts: Counts
    temperature: float
    entropy_bonus: float
    kl_coefficient: float
    engine_ratio_cap: float | None


def _losses(
    decoder: DenseDecoder, parts: Sequence[Sequence[Group]], weigh: Weighing
) -> Iterator[tuple[Tensor, tuple[Any, ...]]]:
    """Each micro-batch's share of the update's loss, and what is logged of it."""
    for part in parts:
        scored = score(decoder, part, weigh.temperature)
        advantage, kl, capped = scored.advantage, None, None
        if weigh.engine_ratio_cap is not None:
            mismatch = scored.old_logp - scored.engine_logp
            weights, capped = engine_weights(mismatch, scored.mask, weigh.objective.UNIT, weigh.engine_ratio_cap)
            # min(r·A, clip(r)·A) scales with A, so a weight of the term is a weight of its advantage.
            advantage = weights * advantage
        rows = [len(group.advantages) for group in part]
        replies = Replies(scored.logp, scored.old_logp, scored.mask, advantage, scored.base_logp, rows)
        terms = weigh.objective.terms(replies, weigh.clip)
        loss = objective = terms.loss / weigh.objective.normaliser(weigh.counts)
        if weigh.entropy_bonus:
            loss = loss - weigh.entropy_bonus * scored.entropy.sum() / weigh.counts.tokens
        if weigh.kl_coefficient:
            kl = kl_to_base(scored.logp, scored.base_logp, scored.mask)
            loss = loss + weigh.kl_coefficient * kl / weigh.counts.replies
        gap = (scored.logp.detach() - scored.engine_logp)[scored.mask].abs()
        yield (
            loss,
            (
                terms.ratio.cpu(),
                terms.clipped_low.cpu(),
                terms.clipped_high.cpu(),
                scored.entropy.detach().sum().item(),
                gap.double().sum().item(),
                gap.max().item(),
                None if kl is None else kl.item(),
                None if capped is None else capped.cpu(),
                objective.item(),
                None if terms.pairs is None else terms.pairs.cpu(),
            ),
        )


def _shared_losses(
    decoder: DenseDecoder, groups: Sequence[Group], micro_batch_replies: int, weigh: Weighing, ranks: Ranks
) -> Iterator[tuple[Tensor, tuple[Any, ...] | None]]:
    """This rank's part of the losses: as many as on every other rank, because a gradient is added up by all ranks
    together. One that has no groups left computes what counts for nothing and is not logged."""
    shares = [micro_batches(share, micro_batch_replies) for share in split(groups, ranks.size)]
    mine = shares[ranks.rank] if ranks.rank < len(shares) else []
    yield from _losses(decoder, mine, weigh)
    for _ in range(max(map(len, shares)) - len(mine)):
        yield 0.0 * score(decoder, groups[:1], weigh.temperature).logp.sum(), None


def engine_weights(mismatch: Tensor, mask: Tensor, unit: Unit, cap: float) -> tuple[Tensor, Tensor]:
    """Truncated importance weights min(πold / πengine, cap) for an engine that samples from another
    distribution than the trainer computes; `mismatch` [N, L] is log πold − log πengine.

    Yao, Liu et al., "On the Rollout-Training Mismatch in Modern RL Systems", 2025 (openreview.net/forum?id=xsonlP8DRV;
    first at fengyao.notion.site/off-policy-rl). The weight belongs to what the objective's ratio belongs to:
    a token [N, L], as in the source, or a whole reply [N, 1]. A reply's is the product over its tokens,
    not GSPO's geometric mean, because it corrects an expectation over whole replies, and the product is
    their importance weight. Also gives [weights in use] whether each was cut to the cap. Neither has a gradient.
    """
    log_weight, used = mismatch.masked_fill(~mask, 0.0), mask
    if unit == "reply":
        log_weight, used = log_weight.sum(-1, keepdim=True), mask.any(-1, keepdim=True)
    weight = log_weight.exp()
    return weight.clamp(max=cap), (weight > cap)[used]


def kl_to_base(logp: Tensor, base_logp: Tensor, mask: Tensor) -> Tensor:
    """Σ over replies of the mean over the reply's tokens of the KL divergence from the base policy, estimated from
    the sampled token alone (arXiv 2402.03300, eq. 4; Schulman's k3, never negative):

        πbase / πθ − log(πbase / πθ) − 1

    Divided by the number of replies it is the KL term of GRPO's eq. 3. It is so under every objective,
    whatever that divides its own sum by: one coefficient then means the same strength in all of them, and a long
    reply is not held to the base more than a short one.
    """
    log_ratio = (base_logp - logp).masked_fill(~mask, 0.0)
    return ((log_ratio.expm1() - log_ratio).sum(-1) / mask.sum(-1).clamp_min(1)).sum()


def apply(
    parameters: Sequence[Tensor],
    optimizer: torch.optim.Optimizer,
    max_grad_norm: float,
    log: UpdateLog,
    ranks: Ranks = ALONE,
) -> None:
    """Clip the gradient to `max_grad_norm`, take the step, clear the gradient. Raises
    FloatingPointError, before the weights change, where the gradient is not finite."""
    log.grad_norm = clip_gradients(parameters, max_grad_norm, ranks)
    if not math.isfinite(log.grad_norm):
        raise FloatingPointError(f"gradient norm {log.grad_norm}")
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def changed_share(before: Sequence[Tensor], after: Sequence[Tensor], ranks: Ranks = ALONE) -> float:
    """Share of stored weights whose value differs, of those on all ranks."""
    # Added up where they are: asked for one by one, each number would wait for the device.
    mine = int(sum((a != b).sum() for a, b in zip(before, after))), sum(b.numel() for b in before)
    changed, stored = map(sum, zip(*ranks.gather(mine)))
    return changed / stored
