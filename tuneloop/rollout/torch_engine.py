"""The torch engine: batched sampling over `DenseDecoder`, shared prompts computed once.

All prompts of a call share their longest common prefix, every group shares its suffix, and a reply
that has ended leaves the batch. Keys and values are kept where they are shared: [prefix], [group],
[reply]; those of the prefix also from call to call, until the weights change. Shape suffixes as in
`tuneloop.policies.decoder`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from tuneloop.policies.decoder import DenseDecoder, Fused, KeysAndValues
from tuneloop.policies.lanes import lanes, share, split
from tuneloop.policies.prompt_tree import prompt_tree, shared_prefix
from tuneloop.rollout.contract import Reply, Sampling
from tuneloop.rollout.sampling import next_tokens, uniforms
from tuneloop.rollout.stepping import TorchStepping

COMPACT_SHARE = 0.25
"""Finished replies are carried along until they are this share of the batch, then dropped: moving
the keys and values of the others costs about as much as a few steps."""
LANE_REPLIES = 128
"""A lane with fewer replies than this costs more in handing over Python's lock than it saves."""
FOLDED_TOKENS = 8192
"""A prefix is copied into every group where that makes at most this many tokens: one product less a layer
and token, for little memory."""


class TorchEngine:
    """Samples from a transformers model in this process; see `tuneloop.rollout.contract.Engine`."""

    def __init__(self, model: torch.nn.Module, end_ids: Sequence[int], batch_replies: int = 1024):
        """`end_ids`: tokens that end a reply. `batch_replies`: about how many replies are in
        flight at once (whole groups, at least one)."""
        self.decoder = DenseDecoder(model)
        self.end_ids = list(end_ids)
        self.batch_replies = batch_replies
        self.prefix: tuple[list[int], list[KeysAndValues]] | None = None
        self.version = 0

    def weights_changed(self) -> None:
        self.prefix = None
        self.version += 1

    def stepping(self) -> TorchStepping:
        """The same weights, one token at a time."""
        return TorchStepping(self.decoder, self.end_ids, lambda: self.version)

    @torch.inference_mode()
    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Reply]]:
        if len(prompts) != len(seeds):
            raise ValueError(f"{len(prompts)} prompts but seeds for {len(seeds)}")
        if not prompts:
            return []
        weights = self.decoder.fused()
        prefix = self._prefix(prompts, weights)
        count = min(len(prompts), lanes(self.decoder.model, sum(map(len, seeds)), LANE_REPLIES))
        lane = partial(self._lane, sampling=sampling, prefix=prefix, weights=weights, count=count)
        jobs = [partial(lane, *part) for part in zip(split(prompts, count), split(seeds, count))]
        return list(itertools.chain(*share(jobs, threads=1 if count > 1 else torch.get_num_threads())))

    @torch.inference_mode()
    def _lane(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
        prefix: list[KeysAndValues],
        weights: list[Fused],
        count: int,
    ) -> list[list[Reply]]:
        """Part of a call's groups, on one thread of `count`."""
        largest = max(map(len, seeds))
        groups = max(1, self.batch_replies // count // max(1, largest))
        replies: list[list[Reply]] = []
        for start in range(0, len(prompts), groups):
            part = slice(start, start + groups)
            batch = _Batch(self.decoder, prompts[part], seeds[part], sampling, prefix, weights)
            replies += batch.run(self.end_ids)
        return replies

    def _prefix(self, prompts: Sequence[Sequence[int]], weights: list[Fused]) -> list[KeysAndValues]:
        """Keys and values of the prompts' longest common prefix. Always computed by themselves, so that
        having kept them changes nothing."""
        ids = list(prompts[0][: shared_prefix(prompts)])
        if self.prefix is None or self.prefix[0] != ids:
            layers: list[KeysAndValues] = []
            if ids:
                tree = prompt_tree([ids], [], self.decoder.device)
                self.decoder.forward(tree, lambda k, v: layers.append((k, v)), layers=weights)
            self.prefix = ids, layers
        return self.prefix[1]


class _Batch:
    """The replies in flight at once."""

    def __init__(
        self,
        decoder: DenseDecoder,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
        prefix: list[KeysAndValues],
        weights: list[Fused],
    ):
        self.decoder, self.sampling, self.layers = decoder, sampling, weights
        device = decoder.device
        K, D, L = decoder.kv_heads, decoder.head_width, sampling.max_new_tokens
        P = len(prefix[0][0]) if prefix else 0
        self.sizes = [len(s) for s in seeds]
        self.prefix: list[tuple[Tensor, Tensor] | None] = []  # per layer [K, D, P], [K, P, D]
        self.suffix: list[tuple[Tensor, Tensor]] = []  # per layer [K, B, D, S], [K, B, S, D]
        tree = prompt_tree(prompts, [], device, prefix=P)
        B = tree.suffix.rows
        folded = B * P <= FOLDED_TOKENS

        def keep(k: Tensor, v: Tensor) -> None:
            k, v = tree.suffix.pad(k), tree.suffix.pad(v)  # [B, S, K, D]
            if P and folded:
                shared = prefix[len(self.suffix)]
                k, v = (torch.cat([x.expand(B, P, K, D), y], dim=1) for x, y in zip(shared, (k, v)))
            elif P:
                shared = prefix[len(self.suffix)]
                self.prefix.append((shared[0].permute(1, 2, 0).contiguous(), shared[1].transpose(0, 1).contiguous()))
            self.suffix.append((k.permute(2, 0, 3, 1).contiguous(), v.permute(2, 0, 1, 3).contiguous()))

        hidden = decoder.forward(tree, keep, prefix if P else None, weights)
        self.prefix = self.prefix or [None] * len(weights)
        last = tree.suffix.lengths.cumsum(0) - 1
        group = [b for b, size in enumerate(self.sizes) for _ in range(size)]
        group = torch.tensor(group, dtype=torch.long, device=device)
        self.hidden = hidden.index_select(0, last).index_select(0, group)  # [N, hidden]
        self.positions = torch.tensor([len(p) for p in prompts], device=device).index_select(0, group)
        self.rotary = decoder.rotary(torch.arange(max(map(len, prompts)) + L, device=device))
        closed = ~tree.suffix.mask()  # [B, S]
        self.padded = bool(closed.any())
        self.suffix_mask = hidden.new_zeros(closed.shape).masked_fill_(closed, float("-inf"))
        if P and folded:
            self.suffix_mask = F.pad(self.suffix_mask, (P, 0))
        N = len(group)
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
        x = F.embedding(tokens, decoder.embedding)
        rotary = self.rotary.index_select(0, self.positions + t)
        for layer, prefix, suffix, cache in zip(self.layers, self.prefix, self.suffix, self.cache):
            q, k, v = decoder.qkv(layer, x, rotary)
            cache[0][:, :, :, t] = k.transpose(0, 1)
            cache[1][:, :, t] = v.transpose(0, 1)
            x = decoder.after_attention(layer, x, self._attend(q, prefix, suffix, cache, t))
        return decoder.last(x)

    def _attend(self, q: Tensor, prefix: tuple | None, suffix: tuple, cache: tuple, t: int) -> Tensor:
        """[n, R·K·D] from queries [n, R·K, D] over prefix, own group's suffix and own reply so far."""
        n, H, D = q.shape
        K = self.decoder.kv_heads
        R = H // K
        P = 0 if prefix is None else prefix[1].shape[1]
        B, S = self.suffix_mask.shape
        q = (q.view(n, R, K, D) * D**-0.5).permute(2, 0, 1, 3).contiguous()  # [K, n, R, D]
        on_suffix = (self._by_group(q).view(K, B, self.width * R, D) @ suffix[0]).view(K, B, self.width, R, S)
        if self.padded:
            on_suffix += self.suffix_mask[:, None, None]
        scores = [self._by_row(on_suffix.view(K, B * self.width, R, S)), q @ cache[0][:, :, :, : t + 1]]
        if prefix is not None:
            scores.insert(0, (q.view(K, n * R, D) @ prefix[0]).view(K, n, R, P))
        weights = torch.cat(scores, dim=-1).softmax(-1)
        grouped = self._by_group(weights[..., P : P + S]).view(K, B, self.width * R, S)
        mixed = self._by_row((grouped @ suffix[1]).view(K, B * self.width, R, D))
        mixed = mixed + weights[..., P + S :] @ cache[1][:, :, : t + 1]
        if prefix is not None:
            mixed += (weights[..., :P].reshape(K, n * R, P) @ prefix[1]).view(K, n, R, D)
        return mixed.permute(1, 2, 0, 3).reshape(n, H * D)

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
