"""One forward pass for the Llama/Qwen decoder family that computes shared prompts once.

`DenseDecoder` runs a `PromptTree` (prefix, suffixes, replies; every token once) packed in a single
[tokens, hidden] matrix, so that neither padding nor a repeated prompt costs arithmetic outside
attention. It reads the parameters of a transformers model in place: gradients reach that model, and
saving that model saves what was trained. With a `dtype` of its own it computes on copies of the parameters in
that type, made where they are used; gradients still reach the model's parameters in theirs.

Inside, heads stand in another order than in the model's matrices, and the entries of queries and keys
too (`Fused`): query heads that share a key head become further rows of one attention, and a rotary pair
becomes a complex number. Neither changes a dot product.

Shape suffixes: T packed tokens · P prefix tokens · B groups · S longest suffix · G replies a group ·
N = B·G replies · L longest reply without its last token · H query heads · K key/value heads · R = H/K ·
D head width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tuneloop.errors import UserError
from tuneloop.policies.adapters import merged_weight
from tuneloop.policies.kernels import rms_norm, rotary_table, rotate, swiglu
from tuneloop.policies.prompt_tree import PromptTree
from tuneloop.policies.tree_attention import Plan, tree_attention
from tuneloop.policies.within import within

SUPPORTED = ("qwen3", "llama", "qwen2")
"""`model_type`s whose forward pass this file reproduces (tests hold it against transformers)."""

KeysAndValues = tuple[Tensor, Tensor]
"""Of one layer: rotated keys and values, both [tokens, K, D]."""


@dataclass(frozen=True)
class Fused:
    """One layer's parameters as they are used: joined and reordered (copies that keep the gradient's
    way to the model's own), or the model's own.

    Rows of `qkv`: queries ordered [R, K, D], keys [K, D], values [K, D]; in queries and keys a head's
    entries i and i + D/2, which one rotary angle turns, stand side by side. Columns of `out` follow the
    queries' heads.
    """

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None  # [H + K, D]
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


class DenseDecoder:
    """The forward pass of a Llama, Qwen2 or Qwen3 model over that model's own parameters."""

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype | None = None, checkpoint_layers: bool = False):
        """`dtype`: what is computed in; None: the parameters' own. `checkpoint_layers`: keep a layer's input alone
        for the backward pass and compute the layer a second time there. Raises UserError for an architecture
        outside `SUPPORTED` or one with a sliding window, scaled rotary positions, MLP biases or another
        activation, whose forward pass would differ."""
        config = model.config
        if config.model_type not in SUPPORTED:
            raise UserError(
                f"policy: models of type {config.model_type!r} are not supported here ({', '.join(SUPPORTED)} are)"
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
        self.dtype, self.checkpoint_layers = dtype, checkpoint_layers
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

    def fused(self) -> list[Fused]:
        """The layers' parameters as they stand now."""
        return [self._fused(layer) for layer in self.model.model.layers]

    def _cast(self, weight: Tensor) -> Tensor:
        return weight if self.dtype is None else weight.to(self.dtype)

    def _fused(self, layer: torch.nn.Module) -> Fused:
        K, R, D = self.kv_heads, self.heads // self.kv_heads, self.head_width

        def pairs(rows: Tensor) -> Tensor:
            """[heads, D, …] with entries i and i + D/2 side by side."""
            return rows.unflatten(1, (2, D // 2)).transpose(1, 2).flatten(1, 2)

        def queries(rows: Tensor) -> Tensor:
            """[H · D, …], heads ordered [R, K]."""
            return pairs(rows.unflatten(0, (K, R, D)).transpose(0, 1).flatten(0, 1)).flatten(0, 1)

        def keys(rows: Tensor) -> Tensor:
            return pairs(rows.unflatten(0, (K, D))).flatten(0, 1)

        a, mlp = layer.self_attn, layer.mlp
        q, k, v, o = (self._cast(merged_weight(part)) for part in (a.q_proj, a.k_proj, a.v_proj, a.o_proj))
        bias = None
        if a.q_proj.bias is not None:
            bias = self._cast(torch.cat([queries(a.q_proj.bias), keys(a.k_proj.bias), a.v_proj.bias]))
        qk_norm = None
        if hasattr(a, "q_norm"):
            one_each = torch.stack([a.q_norm.weight, a.k_norm.weight])
            qk_norm = torch.cat([w.expand(n, D) for w, n in zip(pairs(one_each), (K * R, K))])
        return Fused(
            layer.input_layernorm.weight,
            torch.cat([queries(q), keys(k), v]),
            bias,
            qk_norm,
            o.unflatten(1, (K, R, D)).transpose(1, 2).flatten(1),
            None if a.o_proj.bias is None else self._cast(a.o_proj.bias),
            layer.post_attention_layernorm.weight,
            *(self._cast(merged_weight(part)) for part in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)),
        )

    def rotary(self, positions: Tensor) -> Tensor:
        """[T, 1, D/2] complex, for `rotate`."""
        return rotary_table(positions, self.head_width, self.theta, self.embedding.dtype)

    def qkv(self, layer: Fused, x: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [T, R·K, D], rotated keys and values [T, K, D] of hidden states [T, hidden]."""
        H, K, D = self.heads, self.kv_heads, self.head_width
        joined = F.linear(rms_norm(x, layer.input_norm, self.eps), layer.qkv, layer.qkv_bias)
        qk, v = joined.unflatten(1, (-1, D)).split([H + K, K], dim=1)
        if layer.qk_norm is not None:
            qk = rms_norm(qk, layer.qk_norm, self.eps)
        q, k = rotate(qk, rotary).split([H, K], dim=1)
        return q, k, v

    def after_attention(self, layer: Fused, x: Tensor, mixed: Tensor) -> Tensor:
        """The rest of a layer: `mixed` [T, R·K·D] joins the hidden states [T, hidden], then the MLP."""
        x = torch.addmm(x, mixed, layer.out.T)
        if layer.out_bias is not None:
            x = x + layer.out_bias
        normed = rms_norm(x, layer.mlp_norm, self.eps)
        return torch.addmm(x, swiglu(F.linear(normed, layer.gate), F.linear(normed, layer.up)), layer.down.T)

    def last(self, x: Tensor) -> Tensor:
        """What the head is applied to."""
        return rms_norm(x, self.final_norm, self.eps)

    def forward(
        self,
        tree: PromptTree,
        keep: Callable[[Tensor, Tensor], None] | None = None,
        past: Sequence[KeysAndValues] | None = None,
        layers: Sequence[Fused] | None = None,
    ) -> Tensor:
        """Final hidden states [T, hidden], after the last norm. `keep` is called once a layer with the
        keys and values [T, K, D]. With `past`, the prefix's keys and values of every layer, the prefix
        is not computed again: T then counts the other tokens only. `layers`: what `fused` gave, for whoever
        joins the weights once for many calls."""
        plan = Plan.of(tree, self.heads // self.kv_heads, self.dtype or self.embedding.dtype, skip=past is not None)
        x = self._cast(F.embedding(tree.ids[plan.skipped :], self.embedding))
        rotary = self.rotary(tree.positions[plan.skipped :])
        for i, layer in enumerate(self.model.model.layers):
            joined, before = (None if given is None else given[i] for given in (layers, past))
            x = within(layer, self._layer, layer, joined, x, rotary, plan, keep, before)
        return self.last(x)

    def _layer(
        self,
        module: torch.nn.Module,
        joined: Fused | None,
        x: Tensor,
        rotary: Tensor,
        plan: Plan,
        keep: Callable[[Tensor, Tensor], None] | None,
        past: KeysAndValues | None,
    ) -> Tensor:
        """Hidden states [T, hidden] after a layer of the model, from those before it. `joined`: its parameters
        where `fused` gave them already."""

        def computed(x: Tensor) -> Tensor:
            layer = self._fused(module) if joined is None else joined
            q, k, v = self.qkv(layer, x, rotary)
            if keep is not None:
                keep(k, v)
            if past is not None:
                k, v = (torch.cat(both) for both in zip(past, (k, v)))
            return self.after_attention(layer, x, tree_attention(q, k, v, plan))

        if self.checkpoint_layers and torch.is_grad_enabled():
            return checkpoint(computed, x, use_reentrant=False, preserve_rng_state=False)
        return computed(x)
