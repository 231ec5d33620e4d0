"""One forward pass for the Llama/Qwen decoder family that computes shared prompts once.

A rollout batch is a tree: one *prefix* that all prompts share (system text, tools), one *suffix* a
group (the record), and the *replies* of each group. `DenseDecoder` runs the tree with every token
present once, packed in a single [tokens, hidden] matrix, so that neither padding nor a repeated prompt
costs arithmetic outside attention. It reads the parameters of a transformers model in place: gradients
reach that model, and saving that model saves what was trained.

Shape suffixes: T packed tokens · P prefix tokens · B groups · S longest suffix · G replies a group ·
N = B·G replies · L longest reply · H query heads · K key/value heads · R = H/K · D head width.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tuneloop.errors import UserError

SUPPORTED = ("qwen3", "llama", "qwen2")
"""`model_type`s whose forward pass this file reproduces (tests hold it against transformers)."""


@dataclass(frozen=True)
class Ragged:
    """Rows of unequal length: packed one after another, or padded on the right to the longest.

    `flat[i]` is the place of packed token i in the padded [rows · width] layout.
    """

    rows: int
    width: int
    flat: Tensor
    lengths: Tensor

    @staticmethod
    def of(lengths: Sequence[int], device: torch.device | str) -> Ragged:
        rows, width = len(lengths), max(lengths, default=0)
        flat = [row * width + i for row, length in enumerate(lengths) for i in range(length)]
        return Ragged(
            rows,
            width,
            torch.tensor(flat, dtype=torch.long, device=device),
            torch.tensor(list(lengths), dtype=torch.long, device=device),
        )

    def pad(self, packed: Tensor) -> Tensor:
        """[tokens, …] → [rows, width, …], zeros behind every row's end."""
        return _Pad.apply(packed, self.flat, self.rows * self.width).view(self.rows, self.width, *packed.shape[1:])

    def pack(self, padded: Tensor) -> Tensor:
        """[rows, width, …] → [tokens, …]."""
        return _Pack.apply(padded.reshape(self.rows * self.width, *padded.shape[2:]), self.flat)

    def mask(self) -> Tensor:
        """[rows, width], True on tokens."""
        return torch.arange(self.width, device=self.lengths.device)[None] < self.lengths[:, None]


class _Pad(torch.autograd.Function):
    # Every packed row lands in one place, so both directions are plain copies: exact, repeatable and
    # far cheaper than the accumulating scatter that indexing's own backward pass would be.
    @staticmethod
    def forward(ctx, packed: Tensor, flat: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(flat)
        out = packed.new_zeros(size, *packed.shape[1:])
        return out.index_copy_(0, flat, packed)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        (flat,) = ctx.saved_tensors
        return grad.index_select(0, flat), None, None


class _Pack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, padded: Tensor, flat: Tensor) -> Tensor:
        ctx.save_for_backward(flat)
        ctx.size = padded.shape[0]
        return padded.index_select(0, flat)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        (flat,) = ctx.saved_tensors
        out = grad.new_zeros(ctx.size, *grad.shape[1:])
        return out.index_copy_(0, flat, grad), None


@dataclass(frozen=True)
class PromptTree:
    """Prompts and replies of B groups, each token once. Build with `prompt_tree`."""

    ids: Tensor
    """[T] token ids: prefix, then suffixes, then replies."""
    positions: Tensor
    """[T] position of every token in its own sequence."""
    prefix: int
    suffix: Ragged
    replies: Ragged
    group_size: int
    predictors: Tensor
    """[reply tokens] place in `ids` of the token whose hidden state predicts each reply token."""

    @property
    def reply_ids(self) -> Tensor:
        """[reply tokens] the replies' token ids, packed."""
        return self.ids[self.prompt_tokens :]

    @property
    def prompt_tokens(self) -> int:
        return self.prefix + int(self.suffix.flat.numel())


def shared_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """How many leading ids all prompts share, leaving each at least one id of its own."""
    first, last = min(prompts), max(prompts)
    limit = min(len(p) for p in prompts) - 1
    length = 0
    while length < limit and first[length] == last[length]:
        length += 1
    return length


def prompt_tree(
    prompts: Sequence[Sequence[int]],
    replies: Sequence[Sequence[Sequence[int]]],
    device: torch.device | str = "cpu",
    prefix: int | None = None,
) -> PromptTree:
    """The tree of B prompts with G replies each (`replies[b][g]` ids; may be empty).

    `prefix` fixes the shared length (at most what is really shared); None finds the longest.
    Raises ValueError where a prompt is empty or groups differ in size.
    """
    if not prompts or not all(prompts):
        raise ValueError("every group needs a prompt of at least one token")
    sizes = {len(group) for group in replies} or {0}
    if len(sizes) != 1 or len(replies) not in (0, len(prompts)):
        raise ValueError(f"every group needs equally many replies, got {sorted(sizes)}")
    shared = shared_prefix(prompts)
    prefix = shared if prefix is None else min(prefix, shared)
    suffixes = [list(prompt[prefix:]) for prompt in prompts]
    flat_replies = [list(reply) for group in replies for reply in group]
    starts = [len(prompt) for prompt, group in zip(prompts, replies) for _ in group]
    ids = [*prompts[0][:prefix], *(i for s in suffixes for i in s), *(i for r in flat_replies for i in r)]
    positions = [
        *range(prefix),
        *(prefix + i for s in suffixes for i in range(len(s))),
        *(start + i for start, r in zip(starts, flat_replies) for i in range(len(r))),
    ]
    ends = itertools.accumulate(map(len, suffixes), initial=prefix)
    last_of_prompt = [end - 1 for end in list(ends)[1:]]
    begins = list(itertools.accumulate(map(len, flat_replies), initial=prefix + sum(map(len, suffixes))))
    predictors = [
        begin + i - 1 if i else last_of_prompt[n // len(replies[0])]
        for n, (begin, r) in enumerate(zip(begins, flat_replies))
        for i in range(len(r))
    ]
    return PromptTree(
        torch.tensor(ids, dtype=torch.long, device=device),
        torch.tensor(positions, dtype=torch.long, device=device),
        prefix,
        Ragged.of([len(s) for s in suffixes], device),
        Ragged.of([len(r) for r in flat_replies], device),
        sizes.pop(),
        torch.tensor(predictors, dtype=torch.long, device=device),
    )


@dataclass(frozen=True)
class LayerWeights:
    """The parameters of one layer, as the transformers model holds them; biases and norms of
    query and key where the family has them."""

    input_norm: Tensor
    q: tuple[Tensor, Tensor | None]
    k: tuple[Tensor, Tensor | None]
    v: tuple[Tensor, Tensor | None]
    o: tuple[Tensor, Tensor | None]
    q_norm: Tensor | None
    k_norm: Tensor | None
    mlp_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


class DenseDecoder:
    """The forward pass of a Llama, Qwen2 or Qwen3 model over that model's own parameters."""

    def __init__(self, model: torch.nn.Module):
        """Raises UserError for an architecture outside `SUPPORTED` or one with a sliding window, scaled
        rotary positions, MLP biases or another activation, whose forward pass would differ."""
        config = model.config
        if config.model_type not in SUPPORTED:
            raise UserError(
                f"policy: the torch engine computes {', '.join(SUPPORTED)} models, not {config.model_type!r}; "
                "set rollout.engine to one that runs it"
            )
        rope = config.rope_parameters
        if rope.get("rope_type", "default") != "default":
            raise UserError(f"policy: rotary positions of type {rope['rope_type']!r} are not supported here")
        if getattr(config, "use_sliding_window", False):
            raise UserError("policy: models with a sliding attention window are not supported here")
        if getattr(config, "mlp_bias", False):
            raise UserError("policy: models with biases in the MLP (mlp_bias) are not supported here")
        if config.hidden_act not in ("silu", "swish"):
            raise UserError(f"policy: the activation {config.hidden_act!r} is not supported here (silu is)")
        self.model = model
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_width = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps = config.rms_norm_eps
        self.theta = float(rope["rope_theta"])

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def embedding(self) -> Tensor:
        """[vocabulary, hidden]"""
        return self.model.model.embed_tokens.weight

    @property
    def head(self) -> Tensor:
        """[vocabulary, hidden]; the embedding itself where they are tied."""
        return self.model.lm_head.weight

    @property
    def final_norm(self) -> Tensor:
        return self.model.model.norm.weight

    def layers(self) -> list[LayerWeights]:
        found = []
        for layer in self.model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            found.append(
                LayerWeights(
                    layer.input_layernorm.weight,
                    *((p.weight, p.bias) for p in (attention.q_proj, attention.k_proj, attention.v_proj)),
                    (attention.o_proj.weight, attention.o_proj.bias),
                    attention.q_norm.weight if hasattr(attention, "q_norm") else None,
                    attention.k_norm.weight if hasattr(attention, "k_norm") else None,
                    layer.post_attention_layernorm.weight,
                    mlp.gate_proj.weight,
                    mlp.up_proj.weight,
                    mlp.down_proj.weight,
                )
            )
        return found

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.eps)

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, [T, 1, D], in the parameters' type; angles in float32, as in transformers."""
        steps = torch.arange(0, self.head_width, 2, device=positions.device, dtype=torch.float32)
        angles = positions.float()[:, None] * (1.0 / self.theta ** (steps / self.head_width))[None]
        angles = torch.cat([angles, angles], dim=-1)[:, None, :]
        return angles.cos().to(self.embedding.dtype), angles.sin().to(self.embedding.dtype)

    def qkv(self, layer: LayerWeights, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [T, H, D], rotated keys and values [T, K, D] of normed inputs [T, hidden]."""
        q = F.linear(x, *layer.q).view(-1, self.heads, self.head_width)
        k = F.linear(x, *layer.k).view(-1, self.kv_heads, self.head_width)
        v = F.linear(x, *layer.v).view(-1, self.kv_heads, self.head_width)
        if layer.q_norm is not None:
            q, k = self.norm(q, layer.q_norm), self.norm(k, layer.k_norm)
        return rotated(q, cos, sin), rotated(k, cos, sin), v

    def mlp(self, layer: LayerWeights, x: Tensor) -> Tensor:
        return F.linear(F.silu(F.linear(x, layer.gate)) * F.linear(x, layer.up), layer.down)

    def forward(self, tree: PromptTree, keep: Callable[[Tensor, Tensor], None] | None = None) -> Tensor:
        """Final hidden states [T, hidden], after the last norm. `keep` is called once a layer with
        the packed keys and values [T, K, D]."""
        x = F.embedding(tree.ids, self.embedding)
        cos, sin = self.rotary(tree.positions)
        masks = _Masks.of(tree)
        for layer in self.layers():
            q, k, v = self.qkv(layer, self.norm(x, layer.input_norm), cos, sin)
            if keep is not None:
                keep(k, v)
            mixed = tree_attention(q, k, v, tree, masks)
            x = x + F.linear(mixed.reshape(-1, self.heads * self.head_width), *layer.o)
            x = x + self.mlp(layer, self.norm(x, layer.mlp_norm))
        return self.norm(x, self.final_norm)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos + turned * sin


@dataclass(frozen=True)
class _Masks:
    """Where attention may look, as additive scores: suffix over [prefix, suffix], reply over
    [prefix, suffix, reply]."""

    suffix: Tensor  # [B, 1, S, P+S]
    reply: Tensor | None  # [N, 1, L, P+S+L]

    @staticmethod
    def of(tree: PromptTree) -> _Masks:
        device = tree.ids.device
        own = tree.suffix.mask()
        B, S, P = tree.suffix.rows, tree.suffix.width, tree.prefix
        open_prefix = torch.ones(1, device=device, dtype=torch.bool)
        causal = torch.ones(S, S, device=device, dtype=torch.bool).tril()
        suffix = torch.cat([open_prefix.expand(B, S, P), causal[None] & own[:, None, :]], dim=-1)
        # A padded query sees at least itself, so that no row of scores is empty.
        suffix[:, :, P:] |= torch.eye(S, device=device, dtype=torch.bool)
        reply = None
        if tree.replies.rows:
            N, L = tree.replies.rows, tree.replies.width
            causal = torch.ones(L, L, device=device, dtype=torch.bool).tril()
            reply = torch.cat(
                [
                    open_prefix.expand(N, L, P),
                    own.repeat_interleave(tree.group_size, 0)[:, None, :].expand(N, L, S),
                    causal[None].expand(N, L, L),
                ],
                dim=-1,
            )
            reply = _additive(reply)
        return _Masks(_additive(suffix), reply)


def _additive(allowed: Tensor) -> Tensor:
    return torch.zeros(allowed.shape, device=allowed.device).masked_fill_(~allowed, float("-inf"))[:, None]


def tree_attention(q: Tensor, k: Tensor, v: Tensor, tree: PromptTree, masks: _Masks) -> Tensor:
    """Attention outputs [T, H, D] of packed queries [T, H, D], keys and values [T, K, D]."""
    P, end = tree.prefix, tree.prompt_tokens
    K, D = k.shape[1:]
    R = q.shape[1] // K
    scale = 1.0 / math.sqrt(D)
    parts = []
    prefix_k, prefix_v = k[:P].permute(1, 2, 0), v[:P].transpose(0, 1)  # [K, D, P], [K, P, D]
    if P:
        prefix_q = q[:P].transpose(0, 1)[None]
        mixed = F.scaled_dot_product_attention(
            prefix_q,
            k[:P].transpose(0, 1)[None],
            v[:P].transpose(0, 1)[None],
            is_causal=True,
            scale=scale,
            enable_gqa=True,
        )
        parts.append(mixed[0].transpose(0, 1))

    B, S = tree.suffix.rows, tree.suffix.width
    suffix_k = tree.suffix.pad(k[P:end]).permute(2, 0, 3, 1)  # [K, B, D, S]
    suffix_v = tree.suffix.pad(v[P:end]).permute(2, 0, 1, 3)  # [K, B, S, D]
    suffix_q = tree.suffix.pad(q[P:end]).view(B, S, K, R, D).permute(2, 0, 3, 1, 4) * scale  # [K, B, R, S, D]
    scores = torch.cat(
        [
            (suffix_q.reshape(K, B * R * S, D) @ prefix_k).view(K, B, R, S, P),
            (suffix_q.reshape(K, B, R * S, D) @ suffix_k).view(K, B, R, S, S),
        ],
        dim=-1,
    )
    weights = (scores + masks.suffix.to(scores.dtype)).softmax(-1)
    mixed = (weights[..., :P].reshape(K, B * R * S, P) @ prefix_v).view(K, B, R, S, D)
    mixed = mixed + (weights[..., P:].reshape(K, B, R * S, S) @ suffix_v).view(K, B, R, S, D)
    parts.append(tree.suffix.pack(mixed.permute(1, 3, 0, 2, 4).reshape(B, S, K * R, D)))

    if tree.replies.rows:
        N, L, G = tree.replies.rows, tree.replies.width, tree.group_size
        reply_k = tree.replies.pad(k[end:]).permute(2, 0, 3, 1)  # [K, N, D, L]
        reply_v = tree.replies.pad(v[end:]).permute(2, 0, 1, 3)  # [K, N, L, D]
        reply_q = tree.replies.pad(q[end:]).view(N, L, K, R, D).permute(2, 0, 3, 1, 4) * scale  # [K, N, R, L, D]
        scores = torch.cat(
            [
                (reply_q.reshape(K, N * R * L, D) @ prefix_k).view(K, N, R, L, P),
                (reply_q.reshape(K, B, G * R * L, D) @ suffix_k).view(K, N, R, L, S),
                (reply_q.reshape(K, N, R * L, D) @ reply_k).view(K, N, R, L, L),
            ],
            dim=-1,
        )
        weights = (scores + masks.reply.to(scores.dtype)).softmax(-1)
        mixed = (weights[..., :P].reshape(K, N * R * L, P) @ prefix_v).view(K, N, R, L, D)
        mixed = mixed + (weights[..., P : P + S].reshape(K, B, G * R * L, S) @ suffix_v).view(K, N, R, L, D)
        mixed = mixed + (weights[..., P + S :].reshape(K, N, R * L, L) @ reply_v).view(K, N, R, L, D)
        parts.append(tree.replies.pack(mixed.permute(1, 3, 0, 2, 4).reshape(N, L, K * R, D)))
    return torch.cat(parts)
