"""Attention over a `PromptTree`: prefix over itself, suffixes over prefix and self, replies over all three.

Three calls of torch's scaled-dot-product attention a layer, whose kernels hold no scores. Keys are laid
out once a row (prefix, suffix, own reply); query heads that share a key head are further rows of one
attention. Shape suffixes as in `tuneloop.policies.decoder`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tuneloop.policies.prompt_tree import PromptTree, Ragged


@dataclass(frozen=True)
class Level:
    """The queries of the suffixes or of the replies, padded to a rectangle, and what they look at."""

    rows: Ragged
    queries: Tensor
    """[rows · width] packed place of each padded query; behind a row's end any place."""
    keys: Tensor
    """[rows · key width] packed place of each key; masked ones any place."""
    key_width: int
    mask: Tensor
    """[rows, 1, width · R, key width] additive."""


@dataclass(frozen=True)
class Plan:
    """Where everything lies in the packed layout, for one tree."""

    prefix: int
    suffix: Ragged
    replies: Ragged
    group_size: int
    repeat: int
    skipped: int
    """Prefix tokens that have keys and values but no queries here."""
    levels: tuple[Level, ...]

    @staticmethod
    def of(tree: PromptTree, repeat: int, dtype: torch.dtype, skip: bool = False) -> Plan:
        """`repeat`: R; `dtype`: of the masks; `skip`: the prefix was computed before."""
        P, G, suffix, fed = tree.prefix, tree.group_size, tree.suffix, tree.fed
        skipped = P if skip else 0
        places = torch.arange(P, device=tree.ids.device)

        def level(rows: Ragged, start: int, above: list[tuple[Tensor, Tensor]]) -> Level:
            """`above`: places [rows, width] and openness [rows, width] of what lies between prefix and self."""
            own = rows.slots(start)
            N, W = rows.rows, rows.width
            causal = torch.ones(W, W, dtype=torch.bool, device=places.device).tril().expand(N, W, W)
            seen = [torch.ones(N, W, P, dtype=torch.bool, device=places.device)]
            seen += [open_[:, None].expand(N, W, open_.shape[1]) for _, open_ in above]
            allowed = torch.cat([*seen, causal], dim=-1)
            mask = torch.zeros(allowed.shape, dtype=dtype, device=places.device).masked_fill_(~allowed, -torch.inf)
            keys = torch.cat([places.expand(N, P), *(where for where, _ in above), own.view(N, W)], dim=-1)
            mask = mask.repeat_interleave(repeat, dim=1)[:, None]
            return Level(rows, (own - skipped).clamp_min(0), keys.reshape(-1), keys.shape[1], mask)

        levels = [level(suffix, P, [])]
        if fed.width:
            where = suffix.slots(P).view(suffix.rows, suffix.width).repeat_interleave(G, 0)
            levels.append(level(fed, tree.prompt_tokens, [(where, suffix.mask().repeat_interleave(G, 0))]))
        return Plan(P, suffix, fed, G, repeat, skipped, tuple(levels))


def tree_attention(q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Tensor:
    """[T, R·K·D] from queries [T, R·K, D], heads ordered [R, K], and keys and values [T, K, D] (of the
    skipped prefix tokens too)."""
    K, D = k.shape[1:]
    R = plan.repeat
    queries = _Spread.apply(q.flatten(1), plan)
    keys = _Share.apply(k.flatten(1), plan)
    values = _Share.apply(v.flatten(1), plan)
    parts = []
    first = 0
    if plan.prefix and not plan.skipped:
        # [R, K, P, D] over the same keys for every R.
        over = [x.view(-1, K, D).transpose(0, 1).expand(R, -1, -1, -1) for x in (keys[0], values[0])]
        mixed = F.scaled_dot_product_attention(queries[0].view(-1, R, K, D).permute(1, 2, 0, 3), *over, is_causal=True)
        parts.append(mixed.permute(2, 0, 1, 3).reshape(-1, R * K * D))
        first = 1
    for i, level in enumerate(plan.levels):
        over = [x.view(level.rows.rows, level.key_width, K, D).transpose(1, 2) for x in (keys[i + 1], values[i + 1])]
        rows = queries[i + first].view(level.rows.rows, level.rows.width * R, K, D).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(rows, *over, attn_mask=level.mask)
        parts.append(mixed.transpose(1, 2).reshape(-1, R * K * D))
    return _Gather.apply(plan, *parts)


class _Spread(torch.autograd.Function):
    """Packed queries [T, C] → prefix [P, C] (unless skipped), then every level's padded [rows · width, C]."""

    @staticmethod
    def forward(ctx, packed: Tensor, plan: Plan) -> tuple[Tensor, ...]:
        ctx.plan = plan
        own = [packed[: plan.prefix]] if plan.prefix and not plan.skipped else []
        return (*own, *(packed.index_select(0, level.queries) for level in plan.levels))

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, None]:
        return torch.cat(_packed(ctx.plan, grads)), None


def _packed(plan: Plan, parts: tuple[Tensor, ...]) -> list[Tensor]:
    """The packed rows of prefix (if it is there) and levels, one tensor each."""
    ahead = len(parts) - len(plan.levels)
    levels = zip(parts[ahead:], plan.levels)
    return [*parts[:ahead], *(part.index_select(0, level.rows.flat) for part, level in levels)]


class _Gather(torch.autograd.Function):
    """The way back: prefix and padded levels → packed [T, C]."""

    @staticmethod
    def forward(ctx, plan: Plan, *parts: Tensor) -> Tensor:
        ctx.plan, ctx.sizes = plan, [part.shape[0] for part in parts]
        return torch.cat(_packed(plan, parts))

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        ahead = len(ctx.sizes) - len(ctx.plan.levels)
        counts = [*ctx.sizes[:ahead], *(len(level.rows.flat) for level in ctx.plan.levels)]
        found: list[Tensor | None] = [None]
        for i, part in enumerate(grad.split(counts)):
            if i >= ahead:
                level = ctx.plan.levels[i - ahead]
                # Padded queries must pull at nothing: zeros behind every row's end.
                part = part.new_zeros(ctx.sizes[i], part.shape[1]).index_copy_(0, level.rows.flat, part)
            found.append(part)
        return tuple(found)


class _Share(torch.autograd.Function):
    """Packed keys or values [T, C] → prefix [P, C], then for every level [rows · key width, C]: each row
    its own copy of what it sees. The way back sums over the copies, in a fixed order."""

    @staticmethod
    def forward(ctx, packed: Tensor, plan: Plan) -> tuple[Tensor, ...]:
        ctx.plan = plan
        return (packed[: plan.prefix], *(packed.index_select(0, level.keys) for level in plan.levels))

    @staticmethod
    def backward(ctx, to_prefix: Tensor | None, *grads: Tensor) -> tuple[Tensor, None]:
        plan = ctx.plan
        P, G, suffix, fed = plan.prefix, plan.group_size, plan.suffix, plan.replies
        on_suffix = grads[0].view(suffix.rows, P + suffix.width, -1)
        prefix, own = to_prefix + on_suffix[:, :P].sum(0), on_suffix[:, P:]
        packed = []
        if len(grads) > 1:
            on_reply = grads[1].view(fed.rows, P + suffix.width + fed.width, -1)
            prefix = prefix + on_reply[:, :P].sum(0)
            above = on_reply[:, P : P + suffix.width]
            own = own + above.reshape(suffix.rows, G, suffix.width, -1).sum(1)
            packed.append(on_reply[:, P + suffix.width :].flatten(0, 1).index_select(0, fed.flat))
        return torch.cat([prefix, own.flatten(0, 1).index_select(0, suffix.flat), *packed]), None
