"""One forward pass for the Llama/Qwen decoder family that computes shared prompts once.

`DenseDecoder` runs a `PromptTree` (prefix, suffixes, replies; every token once) packed in a single
[tokens, hidden] matrix, so that neither padding nor a repeated prompt costs arithmetic outside
attention. It reads the parameters of a transformers model in place: gradients reach that model, and
saving that model saves what was trained.

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

from tuneloop.errors import UserError
from tuneloop.policies.kernels import rms_norm, rotary_table, rotate, swiglu
from tuneloop.policies.prompt_tree import PromptTree
from tuneloop.policies.tree_attention import Plan, tree_attention

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

    def fused(self) -> list[Fused]:
        """The layers' parameters as they stand now."""
        K, R, D = self.kv_heads, self.heads // self.kv_heads, self.head_width

        def pairs(rows: Tensor) -> Tensor:
            """[heads, D, …] with entries i and i + D/2 side by side."""
            return rows.unflatten(1, (2, D // 2)).transpose(1, 2).flatten(1, 2)

        def queries(rows: Tensor) -> Tensor:
            """[H · D, …], heads ordered [R, K]."""
            return pairs(rows.unflatten(0, (K, R, D)).transpose(0, 1).flatten(0, 1)).flatten(0, 1)

        def keys(rows: Tensor) -> Tensor:
            return pairs(rows.unflatten(0, (K, D))).flatten(0, 1)

        found = []
        for layer in self.model.model.layers:
            a, mlp = layer.self_attn, layer.mlp
            bias = None
            if a.q_proj.bias is not None:
                bias = torch.cat([queries(a.q_proj.bias), keys(a.k_proj.bias), a.v_proj.bias])
            qk_norm = None
            if hasattr(a, "q_norm"):
                one_each = torch.stack([a.q_norm.weight, a.k_norm.weight])
                qk_norm = torch.cat([w.expand(n, D) for w, n in zip(pairs(one_each), (K * R, K))])
            out = a.o_proj.weight.unflatten(1, (K, R, D)).transpose(1, 2).flatten(1)
            found.append(
                Fused(
                    layer.input_layernorm.weight,
                    torch.cat([queries(a.q_proj.weight), keys(a.k_proj.weight), a.v_proj.weight]),
                    bias,
                    qk_norm,
                    out,
                    a.o_proj.bias,
                    layer.post_attention_layernorm.weight,
                    mlp.gate_proj.weight,
                    mlp.up_proj.weight,
                    mlp.down_proj.weight,
                )
            )
        return found

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
        is not computed again: T then counts the other tokens only."""
        plan = Plan.of(tree, self.heads // self.kv_heads, self.embedding.dtype, skip=past is not None)
        x = F.embedding(tree.ids[plan.skipped :], self.embedding)
        rotary = self.rotary(tree.positions[plan.skipped :])
        for i, layer in enumerate(self.fused() if layers is None else layers):
            q, k, v = self.qkv(layer, x, rotary)
            if keep is not None:
                keep(k, v)
            if past is not None:
                k, v = (torch.cat(both) for both in zip(past[i], (k, v)))
            x = self.after_attention(layer, x, tree_attention(q, k, v, plan))
        return self.last(x)
