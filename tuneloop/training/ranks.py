"""Several processes that train one policy together, one a GPU: `Ranks`.

Every rank rolls out its share of a step's records and computes its share of every update's replies; what came out
is told to all, so that all of them decide the same. With one rank nothing here does anything.

A small model is whole on every rank: the ranks add up their gradients once an update, and all take the same optimizer
step. Of a large one the parameters, their gradients and the optimizer's numbers are spread over the ranks with FSDP2
(`torch.distributed.fsdp.fully_shard`; float32, whatever the forward pass computes in); whole copies exist where they
are needed: during a rollout, and of a layer while it computes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tuneloop.errors import UserError
from tuneloop.policies.adapters import adapted_layers
from tuneloop.policies.lanes import split
from tuneloop.rollout.ask import Answer, Asker
from tuneloop.rollout.contract import Sampling
from tuneloop.tasks.contract import Record
from tuneloop.training.launch import LOST

T = TypeVar("T")

LARGE = 1_000_000_000
"""Parameters from which on a model is spread. Below, spreading it costs more time than it saves memory: 16 bytes a
parameter."""
PATIENCE = timedelta(minutes=30)
"""How long a rank waits for the others: a first rollout with a large engine takes minutes."""


@dataclass(frozen=True)
class Ranks:
    """This process, number `rank` of `size`."""

    rank: int = 0
    size: int = 1

    @property
    def alone(self) -> bool:
        return self.size == 1

    @property
    def first(self) -> bool:
        """The one that writes and speaks."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This rank's run of consecutive items; those of all ranks in their order are `items`."""
        shares = split(items, self.size)
        return shares[self.rank] if self.rank < len(shares) else []

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in the order of the ranks; all of them must call it."""
        if self.alone:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def leave(self) -> None:
        """Wait for all ranks, then go on without them."""
        if not self.alone:
            dist.barrier()
            dist.destroy_process_group()


ALONE = Ranks()


@contextmanager
def ending_with_the_others() -> Iterator[None]:
    """Turn the error of a rank that has lost another, which ended before it, into one line and exit status `LOST`."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        print("this rank has lost another", file=sys.stderr, flush=True)
        sys.exit(LOST)


def join() -> Ranks:
    """This process's place among those that `torchrun` or `tuneloop.training.launch` started; without them it is
    alone. Each takes the GPU of its number. Raises UserError where there are fewer GPUs than ranks."""
    size, local = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))
    if size == 1:
        return ALONE
    if not torch.cuda.is_available():
        dist.init_process_group("gloo", timeout=PATIENCE)
    elif local >= torch.cuda.device_count():
        raise UserError(
            f"machine.ranks: rank {local} has no GPU of its own (this machine has {torch.cuda.device_count()}); start "
            "at most as many ranks as there are GPUs"
        )
    else:
        torch.cuda.set_device(local)
        # Objects go over the CPU: copying them to the GPU and back would wait for its work.
        dist.init_process_group("cpu:gloo,cuda:nccl", timeout=PATIENCE, device_id=torch.device("cuda", local))
    return Ranks(dist.get_rank(), size)


GROUPS = "spread_groups"
"""Attribute of a model that is spread: its modules whose parameters are made whole together."""


def spread(model: torch.nn.Module, ranks: Ranks) -> Ranks:
    """Spread the parameters of a large `model`, equal on all ranks, over them. From here on it computes through
    `tuneloop.policies.within.within`, and its parameters are parts, but inside `whole`. A small one stays as it is.
    Returns the ranks over which it is spread now: `ALONE` for a small one. Raises UserError for a model that cannot
    be spread."""
    if ranks.alone or sum(p.numel() for p in model.parameters()) < LARGE:
        return ALONE
    # A run on one rank does without what takes a second to import.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    if any(hasattr(layer, "parameter_name") for layer in adapted_layers(model).values()):
        raise UserError(
            "machine.ranks: adapters on the stacked weights of experts cannot be trained by several ranks here; set "
            "machine.ranks to 1"
        )
    mesh = init_device_mesh(next(model.parameters()).device.type, (ranks.size,))
    # Gradients are summed, not averaged: losses are divided by what all ranks use together.
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
    groups = [*model.base_model.layers, model]
    object.__setattr__(model, GROUPS, groups)  # not as a submodule: it holds the model itself
    for module in groups:
        fully_shard(module, mesh=mesh, mp_policy=policy)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
        module.within, module.is_whole = _call, False
        register_fsdp_forward_method(module, "within")
        module.within = _unless_whole(module, module.within)
    return ranks


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _unless_whole(module: torch.nn.Module, hooked: Callable[..., Any]) -> Callable[..., Any]:
    def within(function: Callable[..., Any], *arguments: Any) -> Any:
        return (_call if module.is_whole else hooked)(function, *arguments)

    return within


@contextmanager
def whole(model: torch.nn.Module) -> Iterator[None]:
    """Inside, every rank holds all parameters of a model that is spread, and computing with it waits for no other
    rank. For forward passes only."""
    groups = getattr(model, GROUPS, ())
    for module in groups:
        module.unshard()  # nothing where it is whole already
        module.is_whole = True
    try:
        yield
    finally:
        for module in groups:
            module.is_whole = False
            module.reshard()


def share_asking(asker: Asker, ranks: Ranks) -> None:
    """Let every rank ask for its share of the records that `asker` is asked for, and tell all what came out."""
    if ranks.alone:
        return
    ask = asker.ask

    def shared(records: Sequence[Record], seeds: Sequence[Sequence[int]], sampling: Sampling) -> list[list[Answer]]:
        found = ask(ranks.share(records), ranks.share(seeds), sampling)
        return [group for share in ranks.gather(found) for group in share]

    asker.ask = shared


def local(parameter: Tensor) -> Tensor:
    """What of a parameter lies on this rank: the same memory, without gradient."""
    parameter = parameter.detach()
    return parameter.to_local() if _is_spread(parameter) else parameter


def _is_spread(value: Any) -> bool:
    """Whether it is a torch.distributed.tensor.DTensor."""
    return isinstance(value, Tensor) and hasattr(value, "to_local")


def trained_parts(parameters: Sequence[Tensor]) -> list[Tensor]:
    """What this rank's optimizer steps: its parts of the parameters as plain tensors (hundreds of spread ones would
    cost more time than the arithmetic); parameters that are not spread themselves."""
    return [local(p).requires_grad_() if _is_spread(p) else p for p in parameters]


def sum_gradients(parameters: Sequence[Tensor], ranks: Ranks) -> None:
    """Make the gradients of parameters that every rank has whole the sums of all ranks'. Those of spread ones are
    sums already."""
    mine = [p for p in parameters if p.grad is not None and not _is_spread(p)]
    if ranks.alone or not mine:
        return
    sums = torch.cat([p.grad.flatten() for p in mine])  # one message for all of them
    dist.all_reduce(sums)
    for parameter, part in zip(mine, sums.split([p.numel() for p in mine])):
        parameter.grad = part.view_as(parameter)


def hand_over_gradients(parameters: Sequence[Tensor], parts: Sequence[Tensor]) -> None:
    """Move the parameters' gradients to their `trained_parts`."""
    for parameter, part in zip(parameters, parts):
        if part is not parameter and parameter.grad is not None:
            part.grad, parameter.grad = parameter.grad.to_local(), None


def clip_gradients(parts: Sequence[Tensor], most: float, ranks: Ranks) -> float:
    """Scale the gradients down to a norm of at most `most`, over all ranks that have `parts` of them; the norm that
    they had."""
    if ranks.alone:
        return torch.nn.utils.clip_grad_norm_(parts, most).item()
    squared = torch.nn.utils.get_total_norm([p.grad for p in parts if p.grad is not None]) ** 2
    dist.all_reduce(squared)
    norm = squared.sqrt()
    torch.nn.utils.clip_grads_with_norm_(parts, most, norm)
    return norm.item()


def full(tree: Any) -> Any:
    """`tree` with every spread tensor in it (in mappings, lists, tuples) made whole; all ranks must call it."""
    if _is_spread(tree):
        return tree.full_tensor()
    if isinstance(tree, Mapping):
        return {key: full(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(full(value) for value in tree)
    return tree


def full_like(part: Any, parameter: Tensor) -> Any:
    """The whole tensor of which every rank has a part as it has of `parameter`; other values are what they are."""
    if not _is_spread(parameter) or not isinstance(part, Tensor) or part.shape != local(parameter).shape:
        return part
    from torch.distributed.tensor import DTensor

    spread_out = DTensor.from_local(
        part, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
    )
    return spread_out.full_tensor()


def spread_like(value: Any, parameter: Tensor) -> Any:
    """A whole tensor spread as `parameter` is, which has its shape; other values are what they are."""
    if not _is_spread(parameter) or not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    value = value.to(parameter.device)
    # Every rank has read the same numbers: nothing need be sent.
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def part_of(value: Any, parameter: Tensor) -> Any:
    """This rank's part of a whole tensor, as it has of `parameter`."""
    value = spread_like(value, parameter)
    return value.to_local() if _is_spread(value) else value
