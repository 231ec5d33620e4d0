"""The torch engine: batched sampling over `DenseDecoder`, shared prompts computed once.

All prompts of a call share their longest common prefix, every group shares its suffix, and a reply
that has ended leaves the batch. Keys and values are kept where they are shared: [prefix], [group],
[reply]. Shape suffixes as in `tuneloop.policies.decoder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tuneloop.policies.decoder import DenseDecoder, LayerWeights, prompt_tree, rotated
from tuneloop.rollout.contract import Reply, Sampling
from tuneloop.rollout.sampling import next_tokens, uniforms

COMPACT_SHARE = 0.25
"""Finished replies are carried along until they are this share of the batch, then dropped: moving
the keys and values of the others costs about as much as a few steps."""


class TorchEngine:
    """Samples from a transformers model in this process; see `tuneloop.rollout.contract.Engine`."""

    def __init__(self, model: torch.nn.Module, end_ids: Sequence[int], batch_replies: int = 1024):
        """`end_ids`: tokens that end a reply. `batch_replies`: about how many replies are in
        flight at once (whole groups, at least one)."""
        self.decoder = DenseDecoder(model)
        self.end_ids = list(end_ids)
        self.batch_replies = batch_replies

    def weights_changed(self) -> None:
        """Nothing is kept between calls, so nothing can be stale."""

    @torch.inference_mode()
    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Reply]]:
        if len(prompts) != len(seeds):
            raise ValueError(f"{len(prompts)} prompts but seeds for {len(seeds)}")
        largest = max(map(len, seeds), default=1)
        groups = max(1, self.batch_replies // max(1, largest))
        replies: list[list[Reply]] = []
        for start in range(0, len(prompts), groups):
            part = slice(start, start + groups)
            replies += _Batch(self.decoder, prompts[part], seeds[part], sampling).run(self.end_ids)
        return replies


@dataclass(frozen=True)
class _Fused:
    """A layer's matrices that share an input, joined: fewer and larger products a token."""

    layer: LayerWeights
    qkv: Tensor
    qkv_bias: Tensor | None
    gate_up: Tensor

    @staticmethod
    def of(layer: LayerWeights) -> _Fused:
        three = (layer.q, layer.k, layer.v)
        bias = None if layer.q[1] is None else torch.cat([b for _, b in three])
        return _Fused(layer, torch.cat([w for w, _ in three]), bias, torch.cat([layer.gate, layer.up]))


class _Batch:
    """The replies in flight of one call."""

    def __init__(
        self,
        decoder: DenseDecoder,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
    ):
        self.decoder, self.sampling = decoder, sampling
        device = decoder.device
        self.sizes = [len(s) for s in seeds]
        self.layers = [_Fused.of(layer) for layer in decoder.layers()]
        self.prefix: list[tuple[Tensor, Tensor]] = []  # per layer [K, D, P], [K, P, D]
        self.suffix: list[tuple[Tensor, Tensor]] = []  # per layer [K, B, D, S], [K, B, S, D]
        tree = prompt_tree(prompts, [], device)
        P, end = tree.prefix, tree.prompt_tokens

        def keep(k: Tensor, v: Tensor) -> None:
            self.prefix.append((k[:P].permute(1, 2, 0).contiguous(), v[:P].transpose(0, 1).contiguous()))
            self.suffix.append(
                (
                    tree.suffix.pad(k[P:end]).permute(2, 0, 3, 1).contiguous(),
                    tree.suffix.pad(v[P:end]).permute(2, 0, 1, 3).contiguous(),
                )
            )

        hidden = decoder.forward(tree, keep)
        last = P + tree.suffix.lengths.cumsum(0) - 1
        group = [b for b, size in enumerate(self.sizes) for _ in range(size)]
        group = torch.tensor(group, dtype=torch.long, device=device)
        self.hidden = hidden.index_select(0, last).index_select(0, group)  # [N, hidden]
        self.positions = torch.tensor([len(p) for p in prompts], device=device).index_select(0, group)
        closed = ~tree.suffix.mask()  # [B, S]
        self.suffix_mask = torch.zeros(closed.shape, device=device).masked_fill_(closed, float("-inf"))
        N, K, D, L = len(group), decoder.kv_heads, decoder.head_width, sampling.max_new_tokens
        self.cache = [
            (hidden.new_empty(K, N, D, L), hidden.new_empty(K, N, L, D)) for _ in self.layers
        ]  # replies' keys and values
        flat_seeds = [s for group_seeds in seeds for s in group_seeds]
        # Shaped by the largest count, so that the same seed gives the same numbers in any batch.
        noise = uniforms(flat_seeds, L) if flat_seeds and not sampling.greedy else None
        self.noise = torch.zeros(N, L, dtype=torch.float64) if noise is None else torch.from_numpy(noise)
        self.noise = self.noise.to(device)
        self.rows = torch.arange(N, device=device)  # which reply each row in flight is
        self._place(group)

    def _place(self, group: Tensor) -> None:
        """Lay the rows in flight out as [groups, largest group] for products with the suffixes."""
        self.group = group
        counts = torch.bincount(group, minlength=self.suffix_mask.shape[0])
        self.width = int(counts.max()) if len(group) else 0
        starts = counts.cumsum(0) - counts
        self.slots = group * self.width + torch.arange(len(group), device=group.device) - starts[group]
        self.rectangular = len(group) == len(counts) * self.width

    def run(self, end_ids: Sequence[int]) -> list[list[Reply]]:
        N, L = len(self.rows), self.sampling.max_new_tokens
        device = self.rows.device
        ends = torch.tensor(list(end_ids), device=device)
        ids = torch.zeros(N, L, dtype=torch.long, device=device)
        logps = torch.zeros(N, L, dtype=torch.float64, device=device)
        lengths = torch.full((N,), L, dtype=torch.long, device=device)
        stopped = torch.zeros(N, dtype=torch.bool, device=device)
        running = torch.ones(N, dtype=torch.bool, device=device)  # of the rows in flight
        for t in range(L):
            if not len(self.rows):
                break
            logits = self.hidden @ self.decoder.head.T
            logits = logits if logits.dtype == torch.float64 else logits.float()
            tokens, logp = next_tokens(logits, self.sampling, self.noise[self.rows, t])
            ids[self.rows, t] = tokens
            logps[self.rows, t] = logp.double()
            ended = running & torch.isin(tokens, ends)
            lengths[self.rows[ended]] = t + 1
            stopped[self.rows[ended]] = True
            running &= ~ended
            left = int(running.sum())
            if not left or t + 1 == L:
                break
            if left <= (1 - COMPACT_SHARE) * len(self.rows):
                tokens = self._compact(running, tokens, t)
                running = torch.ones(left, dtype=torch.bool, device=device)
            self.hidden = self._advance(tokens, t)
        return self._replies(ids, logps, lengths, stopped)

    def _compact(self, running: Tensor, tokens: Tensor, t: int) -> Tensor:
        """Drop the replies that have ended, and the groups in which all have."""
        keep = running.nonzero()[:, 0]
        alive, group = self.group[keep].unique(return_inverse=True)
        self.rows, self.positions = self.rows[keep], self.positions[keep]
        if len(alive) < self.suffix_mask.shape[0]:
            self.suffix = [(k.index_select(1, alive), v.index_select(1, alive)) for k, v in self.suffix]
            self.suffix_mask = self.suffix_mask[alive]
        self.cache = [(self._shrunk(k, keep, t, 3), self._shrunk(v, keep, t, 2)) for k, v in self.cache]
        self._place(group)
        return tokens[keep]

    @staticmethod
    def _shrunk(cache: Tensor, keep: Tensor, t: int, axis: int) -> Tensor:
        new = cache.new_empty(cache.shape[0], len(keep), *cache.shape[2:])
        new.narrow(axis, 0, t).copy_(cache.narrow(axis, 0, t).index_select(1, keep))
        return new

    def _advance(self, tokens: Tensor, t: int) -> Tensor:
        """Hidden states [n, hidden] after reply token t of every row in flight."""
        decoder = self.decoder
        H, K, D = decoder.heads, decoder.kv_heads, decoder.head_width
        x = F.embedding(tokens, decoder.embedding)
        cos, sin = decoder.rotary(self.positions + t)
        for fused, prefix, suffix, cache in zip(self.layers, self.prefix, self.suffix, self.cache):
            layer = fused.layer
            qkv = F.linear(decoder.norm(x, layer.input_norm), fused.qkv, fused.qkv_bias).view(-1, H + 2 * K, D)
            q, k, v = qkv[:, :H], qkv[:, H : H + K], qkv[:, H + K :]
            if layer.q_norm is not None:
                q, k = decoder.norm(q, layer.q_norm), decoder.norm(k, layer.k_norm)
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
            cache[0][:, :, :, t] = k.transpose(0, 1)
            cache[1][:, :, t] = v.transpose(0, 1)
            mixed = self._attend(q, prefix, suffix, cache, t)
            x = x + F.linear(mixed, *layer.o)
            gate, up = F.linear(decoder.norm(x, layer.mlp_norm), fused.gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        return decoder.norm(x, decoder.final_norm)

    def _attend(self, q: Tensor, prefix: tuple, suffix: tuple, cache: tuple, t: int) -> Tensor:
        """[n, H·D] from queries [n, H, D] over prefix, own group's suffix and own reply so far."""
        n, H, D = q.shape
        K = self.decoder.kv_heads
        R = H // K
        P, (B, S) = prefix[1].shape[1], self.suffix_mask.shape
        q = q.view(n, K, R, D).transpose(0, 1).contiguous() * D**-0.5  # [K, n, R, D]
        scores = q.new_empty(K, n, R, P + S + t + 1)
        scores[..., :P] = (q.view(K, n * R, D) @ prefix[0]).view(K, n, R, P)
        on_suffix = (self._by_group(q).view(K, B, self.width * R, D) @ suffix[0]).view(K, B, self.width, R, S)
        on_suffix = on_suffix + self.suffix_mask[:, None, None]
        scores[..., P : P + S] = self._by_row(on_suffix.view(K, B * self.width, R, S))
        scores[..., P + S :] = q @ cache[0][:, :, :, : t + 1]
        weights = scores.softmax(-1)
        mixed = (weights[..., :P].reshape(K, n * R, P) @ prefix[1]).view(K, n, R, D)
        grouped = self._by_group(weights[..., P : P + S]).view(K, B, self.width * R, S)
        mixed = mixed + self._by_row((grouped @ suffix[1]).view(K, B * self.width, R, D))
        mixed = mixed + weights[..., P + S :] @ cache[1][:, :, : t + 1]
        return mixed.transpose(0, 1).reshape(n, H * D)

    def _by_group(self, x: Tensor) -> Tensor:
        """[K, n, R, ·] → [K, groups · width, R, ·]."""
        if self.rectangular:
            return x.contiguous()
        out = x.new_zeros(x.shape[0], self.suffix_mask.shape[0] * self.width, *x.shape[2:])
        return out.index_copy_(1, self.slots, x)

    def _by_row(self, x: Tensor) -> Tensor:
        return x if self.rectangular else x.index_select(1, self.slots)

    def _replies(self, ids: Tensor, logps: Tensor, lengths: Tensor, stopped: Tensor) -> list[list[Reply]]:
        flat = [
            Reply(row[:length], logp[:length], "stop" if stop else "length")
            for row, logp, length, stop in zip(ids.tolist(), logps.tolist(), lengths.tolist(), stopped.tolist())
        ]
        groups, start = [], 0
        for size in self.sizes:
            groups.append(flat[start : start + size])
            start += size
        return groups
