"""Lanes: a small model's batch shared among threads, each computing its part from beginning to end.

Splitting every product among threads, as torch does, pays only for large products: those of a model of
1 M parameters take less time than waking a thread, and as soon as another process runs every one of
them waits for the slowest. Lanes wait for one another once a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

WIDEST = 256
"""Hidden size up to which lanes are used."""
TRAINED = 32
"""Sequences with which a lane that computes gradients pays: with 16 in each of two lanes, threads inside the
products are faster on a machine that nobody else uses."""


def lanes(model: torch.nn.Module, sequences: int, fewest: int) -> int:
    """Into how many parts a batch of `sequences` is best split: for a small model on the CPU as many as torch
    has threads, as long as each has at least `fewest` sequences; else 1."""
    small = model.config.hidden_size <= WIDEST and model.device.type == "cpu"
    return max(1, min(torch.get_num_threads(), sequences // fewest)) if small else 1


def split(items: Sequence[T], count: int) -> list[Sequence[T]]:
    """At most `count` runs of consecutive items, none empty, whose lengths differ by one at most."""
    count = min(count, len(items))
    ends = [len(items) * i // count for i in range(count + 1)] if count else [0]
    return [items[start:end] for start, end in itertools.pairwise(ends)]


def share(jobs: Sequence[Callable[[], T]], threads: int = 1) -> list[T]:
    """What the jobs return, in their order; several each on a thread of its own. Meanwhile torch keeps to
    `threads` threads in each."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        if len(jobs) == 1:
            return [jobs[0]()]
        with ThreadPoolExecutor(len(jobs)) as pool:
            return list(pool.map(lambda job: job(), jobs))
    finally:
        torch.set_num_threads(before)


Losses = Callable[[], Iterable[tuple[Tensor, T]]]
"""Makes losses one after another, each with something to keep."""


def add_gradients(parameters: Sequence[Tensor], jobs: Sequence[Losses[T]]) -> list[T]:
    """Add the gradients of all the jobs' losses to the parameters' `.grad`, and return what was to be kept. A
    loss's gradient is taken before the next loss is asked for; sums are taken in the order of the jobs,
    whatever order they end in."""

    def differentiated(job: Losses[T]) -> tuple[list[Tensor] | None, list[T]]:
        sums, kept = None, []
        for loss, keep in job():
            gradients = torch.autograd.grad(loss, parameters)
            sums = list(gradients) if sums is None else [s.add_(g) for s, g in zip(sums, gradients)]
            kept.append(keep)
        return sums, kept

    if len(jobs) == 1:  # torch's own accumulation: no second copy of a large model's gradients
        kept = []
        for loss, keep in jobs[0]():
            loss.backward()
            kept.append(keep)
        return kept
    found = share([partial(differentiated, job) for job in jobs])
    for gradients, _ in found:
        for parameter, gradient in zip(parameters, gradients or []):
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
    return [keep for _, kept in found for keep in kept]
