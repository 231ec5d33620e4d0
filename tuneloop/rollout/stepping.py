"""The torch engine one token at a time: replies enter and leave between two steps.

`TorchEngine.generate` computes a batch from beginning to end, which is what training wants; a server has requests
that come when they like. One step computes one token of every reply in flight and pieces of the prompts that wait,
in one pass: all tokens share the matrix products, whatever their prompt, position or sampling settings.

Shape suffixes as in `tuneloop.rollout.shelf`; T tokens of a step · R query heads a key head.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tuneloop.policies.decoder import DenseDecoder, Fused
from tuneloop.policies.lanes import WIDEST, share
from tuneloop.rollout.contract import Drawn, FinishReason, Sampling
from tuneloop.rollout.prefixes import Prefixes
from tuneloop.rollout.sampling import next_tokens
from tuneloop.rollout.shelf import Row, Shelf
from tuneloop.rollout.step_pass import Pass

PLACES = 256
"""Replies in flight at once."""
PROMPT_TOKENS = 256
"""Prompt tokens of a step, at most: replies in flight wait for no more than that."""
NARROWEST = 128
"""Tokens of the narrowest shelf; each next one is twice as wide. One long conversation makes no other row wider."""
PREFIX_TOKENS = 16_384
"""Kept for later prompts."""


KEYS_BYTES = 4 * 2**30
"""For keys and values of replies in flight; a single request may exceed it."""


class TorchStepping:
    """See `tuneloop.rollout.contract.Stepping`."""

    def __init__(self, decoder: DenseDecoder, end_ids: Sequence[int], version: Callable[[], int], places: int = PLACES):
        """`version`: tells weights from later ones; `places`: replies in flight at once."""
        self.decoder, self.ends, self.places = decoder, frozenset(end_ids), places
        self.version, self._begun = version, version()
        self.layers = len(decoder.model.model.layers)
        self.small = decoder.model.config.hidden_size <= WIDEST and decoder.device.type == "cpu"
        self.prefixes = Prefixes(PREFIX_TOKENS)
        self.shelves: dict[int, Shelf] = {}
        self.weights: list[Fused] = []
        self._tickets = itertools.count()
        self._others: dict[int, list[Row]] = {}
        """By ticket: the replies beside the first, until their prompt is computed."""
        self._settings: dict[Sampling, Sampling] = {}
        self._rotary: Tensor | None = None

    def fits(self, tokens: int, replies: int) -> bool:
        counts = {width: len(shelf.rows) for width, shelf in self.shelves.items()}
        waiting = sum(map(len, self._others.values()))
        rows = sum(counts.values()) + waiting
        if not rows:
            return True
        a_token = (
            2 * self.layers * self.decoder.kv_heads * self.decoder.head_width * self.decoder.embedding.element_size()
        )
        wide = max([_width(tokens), *counts])
        held = sum(width * count for width, count in counts.items()) + wide * waiting
        room = held + replies * _width(tokens) <= KEYS_BYTES // a_token
        return room and rows + replies <= self.places

    def current(self) -> bool:
        return self._begun == self.version()

    @torch.inference_mode()
    def admit(self, prompt: Sequence[int], seeds: Sequence[int], sampling: Sampling) -> int:
        if not prompt or not seeds:
            raise ValueError("a request needs a prompt of at least one token, and a seed")
        if not 0 <= min(prompt) <= max(prompt) < len(self.decoder.embedding):
            raise ValueError("the prompt holds a token that the policy does not have")
        self._renew()
        ticket, limit = next(self._tickets), sampling.max_new_tokens
        numbers = [[0.0] * limit if sampling.greedy else _uniforms(seed, limit) for seed in seeds]
        bare = replace(sampling, max_new_tokens=0)
        bare = self._settings.setdefault(bare, bare)
        first, *others = [Row(ticket, i, list(prompt), bare, limit, own) for i, own in enumerate(numbers)]
        self._shelf(len(prompt) + limit).add(first)
        if others:
            self._others[ticket] = others
        return ticket

    @torch.inference_mode()
    def cancel(self, ticket: int) -> None:
        self._others.pop(ticket, None)
        for shelf in self.shelves.values():
            writing, reading = (
                [row for row in part if row.ticket != ticket] for part in (shelf.writing, shelf.reading)
            )
            shelf.arrange(writing, reading)

    def clear(self) -> None:
        self.shelves.clear()
        self._others.clear()

    def step(self) -> list[Drawn]:
        # Products this small take less time than waking a thread, and clients want the other cores.
        (drawn,) = share([self._stepped], threads=1 if self.small else torch.get_num_threads())
        return drawn

    @torch.inference_mode()
    def _stepped(self) -> list[Drawn]:
        passes = self._passes()
        if not passes:
            return []
        x = self._computed(passes)
        found = [self._predicted(one) for one in passes]
        starts = itertools.accumulate((len(one.ids) for one in passes), initial=0)
        rows = [row for those, _, _ in found for row in those]
        drawn = self._drawn(
            rows, x, [start + place for start, (_, places, _) in zip(starts, found) for place in places]
        )
        draws = iter(drawn)
        for one, (those, _, origin) in zip(passes, found):
            writing = [row for row, draw in zip(those, draws) if draw.finish_reason is None]
            reading = [row for row in one.shelf.reading if row.held < len(row.prompt)]
            one.shelf.arrange(writing, reading, origin)
        return drawn

    def _renew(self) -> None:
        """Weights as they stand, where the last replies were begun with others."""
        if self.weights and self.current():
            return
        self._begun = self.version()
        self.clear()
        self.prefixes.clear()
        self.weights = self.decoder.fused()

    def _shelf(self, tokens: int) -> Shelf:
        width = _width(tokens)
        self.shelves = {w: shelf for w, shelf in self.shelves.items() if w == width or shelf.rows}
        if width not in self.shelves:
            decoder = self.decoder
            self.shelves[width] = Shelf(self.layers, decoder.kv_heads, width, decoder.head_width, decoder.embedding)
        return self.shelves[width]

    def _passes(self) -> list[Pass]:
        """What this step computes, shelf by shelf: that of the oldest waiting prompt first, so that none is passed over
        for ever."""
        budget, passes = PROMPT_TOKENS, []
        for shelf in sorted(self.shelves.values(), key=_oldest):
            pieces = []
            for place, row in enumerate(shelf.reading, len(shelf.writing)):
                if not budget:
                    break
                # Not before its turn: those ahead of it may have left a beginning.
                if not row.held and (kept := self.prefixes.longest(row.prompt)):
                    shelf.begin(place, kept)
                piece = min(len(row.prompt) - row.held, budget)
                pieces.append(piece)
                budget -= piece
            if shelf.writing or pieces:
                passes.append(Pass.of(shelf, pieces, self.decoder.heads // self.decoder.kv_heads))
        return passes

    def _computed(self, passes: Sequence[Pass]) -> Tensor:
        """Hidden states [T, hidden] after the last layer, pass by pass. Keys and values are in their places then."""
        decoder = self.decoder
        sizes = [len(one.ids) for one in passes]
        ids, positions = (
            torch.from_numpy(np.concatenate(parts)).to(decoder.device)
            for parts in ([one.ids for one in passes], [one.positions for one in passes])
        )
        x = F.embedding(ids, decoder.embedding)
        rotary = self._rotations(max(one.shelf.width for one in passes)).index_select(0, positions)
        for i, layer in enumerate(self.weights):
            parts = zip(passes, *(part.split(sizes) for part in decoder.qkv(layer, x, rotary)))
            mixed = [one.attend(i, q, k, v) for one, q, k, v in parts]
            x = decoder.after_attention(layer, x, mixed[0] if len(mixed) == 1 else torch.cat(mixed))
        return x

    def _rotations(self, positions: int) -> Tensor:
        if self._rotary is None or len(self._rotary) < positions:
            self._rotary = self.decoder.rotary(torch.arange(positions, device=self.decoder.device))
        return self._rotary

    def _predicted(self, one: Pass) -> tuple[list[Row], list[int], dict[int, Row]]:
        """The rows that get a token now, the place in the pass of the token that predicts it, and for rows whose
        prompt another one held, by `id`, that one."""
        rows, origin = list(one.shelf.writing), {}
        for row in rows:
            row.held += 1
        places = list(range(len(rows)))
        end = len(rows)
        for j, (row, piece) in enumerate(zip(one.shelf.reading, one.pieces)):
            row.held += piece
            end += piece
            if row.held < len(row.prompt):
                break
            if wanted := self.prefixes.wanted(row.prompt):
                self.prefixes.keep(row.prompt[:wanted], one.shelf.kept(len(one.shelf.writing) + j, wanted))
            group = [row, *self._others.pop(row.ticket, ())]
            for other in group[1:]:
                other.held, origin[id(other)] = row.held, row
            rows += group
            places += [end - 1] * len(group)
        return rows, places, origin

    def _drawn(self, rows: Sequence[Row], x: Tensor, places: Sequence[int]) -> list[Drawn]:
        """The next token of every row, from the hidden states at `places`."""
        if not rows:
            return []
        decoder = self.decoder
        hidden = decoder.last(x.index_select(0, torch.tensor(places, device=x.device)))
        logits = hidden @ decoder.head.T
        logits = logits if logits.dtype == torch.float64 else logits.float()
        u = torch.tensor([row.uniforms[row.drawn] for row in rows], dtype=torch.float64, device=x.device)
        by_settings: dict[int, list[int]] = {}
        for i, row in enumerate(rows):
            by_settings.setdefault(id(row.sampling), []).append(i)
        tokens, logps = [0] * len(rows), [0.0] * len(rows)
        for members in by_settings.values():
            one = torch.tensor(members, device=x.device)
            some = (logits, u) if len(members) == len(rows) else (logits.index_select(0, one), u.index_select(0, one))
            found, logp = next_tokens(some[0], rows[members[0]].sampling, some[1])
            for i, token, number in zip(members, found.tolist(), logp.double().tolist()):
                tokens[i], logps[i] = token, number
        return [self._noted(row, token, logp) for row, token, logp in zip(rows, tokens, logps)]

    def _noted(self, row: Row, token: int, logp: float) -> Drawn:
        row.token, row.drawn = token, row.drawn + 1
        reason: FinishReason | None = "length" if row.drawn == row.limit else None
        return Drawn(row.ticket, row.index, token, logp, "stop" if token in self.ends else reason)


def _oldest(shelf: Shelf) -> float:
    return shelf.reading[0].ticket if shelf.reading else math.inf


def _uniforms(seed: int, length: int) -> list[float]:
    """A row of `tuneloop.rollout.sampling.uniforms`, which is made for many seeds at once."""
    return np.random.Generator(np.random.Philox(key=seed)).random(length).tolist()


def _width(tokens: int) -> int:
    width = NARROWEST
    while width < tokens:
        width *= 2
    return width
