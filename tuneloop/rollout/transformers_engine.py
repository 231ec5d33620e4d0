"""The transformers engine: batched sampling through the model's own forward pass and cache, for architectures
that the torch engine does not compute.

A group's prompt is computed once and its cache copied to the group's replies (`Cache.reorder_cache`, which
also copies the states of linear attention); a prefix that several groups share is computed once a group. A
reply that has ended leaves the batch. Prompts of unequal length are padded on the left where the
architecture is right with that, which is tried out when the engine is made, and else computed apart.

Shape suffixes: B prompts · S longest prompt · n replies in flight · L longest reply.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from tuneloop.errors import UserError
from tuneloop.policies.model_decoder import accepts, close, require_one_rank
from tuneloop.rollout.contract import Reply, Sampling
from tuneloop.rollout.sampling import next_tokens, uniforms

COMPACT_SHARE = 0.25
"""Finished replies are carried along until they are this share of the batch, then dropped."""


class TransformersEngine:
    """Samples from a transformers model in this process; see `tuneloop.rollout.contract.Engine`."""

    def __init__(
        self,
        model: PreTrainedModel,
        end_ids: Sequence[int],
        dtype: torch.dtype | None = None,
        batch_replies: int = 256,
    ):
        """`end_ids`: tokens that end a reply. `dtype`: what matrix products are computed in (torch's autocast); None:
        the parameters' own type. `batch_replies`: about how many replies are in flight at once (whole groups, at
        least one). Raises UserError for a model whose cache cannot be copied, or gives other logits than the
        whole sequence does."""
        self.model, self.end_ids, self.dtype, self.batch_replies = model, list(end_ids), dtype, batch_replies
        with self._computing():
            self.pads = _pads(model)

    def weights_changed(self) -> None:
        """Nothing is kept from call to call."""

    @torch.inference_mode()
    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Reply]]:
        if len(prompts) != len(seeds):
            raise ValueError(f"{len(prompts)} prompts but seeds for {len(seeds)}")
        require_one_rank(self.model)
        replies: list[list[Reply]] = [[] for _ in prompts]
        for part in self._batches(prompts, seeds):
            with self._computing():
                flight = Flight(self.model, [prompts[b] for b in part])
                flight.pick([row for row, b in enumerate(part) for _ in seeds[b]])
                flat = iter(self._sample(flight, [seed for b in part for seed in seeds[b]], sampling))
            for b in part:
                replies[b] = list(itertools.islice(flat, len(seeds[b])))
        return replies

    def _computing(self) -> AbstractContextManager[None]:
        device = self.model.get_input_embeddings().weight.device.type
        return torch.autocast(device, self.dtype, enabled=self.dtype is not None)

    def _batches(self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Places of the groups that are computed together."""
        asked = [b for b, own in enumerate(seeds) if own]
        if not self.pads:
            asked.sort(key=lambda b: len(prompts[b]))  # stable: the same call gives the same batches
        part: list[int] = []
        for b in asked:
            full = part and sum(len(seeds[i]) for i in part) + len(seeds[b]) > self.batch_replies
            if full or (part and not self.pads and len(prompts[b]) != len(prompts[part[0]])):
                yield part
                part = []
            part.append(b)
        if part:
            yield part

    def _sample(self, flight: Flight, seeds: Sequence[int], sampling: Sampling) -> list[Reply]:
        N, L = len(seeds), sampling.max_new_tokens
        device = flight.logits.device
        noise = torch.zeros(N, L, dtype=torch.float64)
        if not sampling.greedy:
            noise = torch.from_numpy(uniforms(seeds, L))
        noise = noise.to(device)
        ends = torch.tensor(self.end_ids, device=device)
        ids = torch.zeros(N, L, dtype=torch.long, device=device)
        logps = torch.zeros(N, L, dtype=torch.float64, device=device)
        lengths = torch.full((N,), L, dtype=torch.long, device=device)
        stopped = torch.zeros(N, dtype=torch.bool, device=device)
        rows = torch.arange(N, device=device)  # which reply each row in flight is
        running = torch.ones(N, dtype=torch.bool, device=device)  # of the rows in flight
        for t in range(L):
            tokens, logp = next_tokens(flight.logits, sampling, noise[rows, t])
            ids[rows, t], logps[rows, t] = tokens, logp.double()
            ended = running & torch.isin(tokens, ends)
            lengths[rows[ended]], stopped[rows[ended]] = t + 1, True
            running &= ~ended
            left = int(running.sum())
            if not left or t + 1 == L:
                break
            if left <= (1 - COMPACT_SHARE) * len(rows):
                keep = running.nonzero()[:, 0]
                flight.pick(keep.tolist())
                rows, tokens, running = rows[keep], tokens[keep], running[keep]
            flight.advance(tokens)
        return [
            Reply(row[:length], logp[:length], "stop" if stop else "length")
            for row, logp, length, stop in zip(ids.tolist(), logps.tolist(), lengths.tolist(), stopped.tolist())
        ]


class Flight:
    """Sequences on their way: the cache of what was computed, and the logits of what comes next.

    Made from prompts, padded on the left, so that all of them end at the same place of the cache.
    """

    def __init__(self, model: PreTrainedModel, prompts: Sequence[Sequence[int]]):
        self.model = model
        device = model.get_input_embeddings().weight.device
        width = max(map(len, prompts))
        pad = model.config.pad_token_id if isinstance(model.config.pad_token_id, int) else 0
        ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts], device=device)
        lengths = torch.tensor([len(p) for p in prompts], device=device)
        self.mask = (torch.arange(width, device=device) >= width - lengths[:, None]).long()
        self.positions = lengths  # of each sequence's next token
        self.cache: Cache | None = None
        self._run(ids, (self.mask.cumsum(1) - 1).clamp_min(0))

    def pick(self, rows: Sequence[int]) -> None:
        """Go on with these rows, in this order: fewer, more, or one several times."""
        index = torch.tensor(list(rows), dtype=torch.long, device=self.mask.device)
        self.cache.reorder_cache(index)
        self.mask, self.positions, self.logits = self.mask[index], self.positions[index], self.logits[index]

    def advance(self, tokens: Tensor) -> None:
        """Append one token [n] to every sequence."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(tokens), 1)], dim=1)
        self._run(tokens[:, None], self.positions[:, None])
        self.positions = self.positions + 1

    def _run(self, ids: Tensor, positions: Tensor) -> None:
        # transformers called the cache `past_key_values` before it called it `cache`.
        name = "cache" if accepts(self.model, "cache") else "past_key_values"
        given = {"attention_mask": self.mask, "position_ids": positions, name: self.cache, "logits_to_keep": 1}
        taken = {key: value for key, value in given.items() if accepts(self.model, key)}
        out = self.model(input_ids=ids, use_cache=True, **taken)
        self.cache = out.get(name)
        if not isinstance(self.cache, Cache):
            raise UserError(
                f"rollout.engine=transformers: {self.model.config.model_type!r} models keep no cache whose rows can be "
                "copied; set rollout.engine to vllm"
            )
        logits = out.logits[:, -1]
        self.logits = logits if logits.dtype == torch.float64 else logits.float()


@torch.inference_mode()
def _pads(model: PreTrainedModel) -> bool:
    """Whether left-padded prompts give what single ones give. Raises UserError where the cache is wrong even
    without padding."""
    ids = [i % model.config.get_text_config().vocab_size for i in range(1, 11)]
    longer, shorter, following = ids[:6], ids[6:8], ids[8:10]

    def whole(sequence: Sequence[int]) -> Tensor:
        """[2, vocabulary] logits of the last two tokens, nothing padded or kept."""
        device = model.get_input_embeddings().weight.device
        return model(input_ids=torch.tensor([sequence], device=device), use_cache=False).logits[0, -2:]

    def cached(prompts: Sequence[Sequence[int]], tokens: Sequence[int]) -> Tensor:
        """[prompts, 2, vocabulary] the same from a flight, on the way turned round."""
        flight = Flight(model, prompts)
        first = flight.logits
        flight.pick(range(len(prompts))[::-1])
        flight.advance(torch.tensor(tokens[::-1], device=first.device))
        return torch.stack([first, flight.logits.flip(0)], dim=1)

    expected = torch.stack([whole([*p, f]) for p, f in zip((longer, shorter), following)])
    if close(cached([longer, shorter], following), expected):
        return True
    if close(cached([longer], following[:1]), expected[:1]) and close(cached([shorter], following[1:]), expected[1:]):
        return False
    raise UserError(
        f"rollout.engine=transformers: a cached {model.config.model_type!r} model gives other logits than one that "
        "computes the whole sequence; set rollout.engine to vllm"
    )
