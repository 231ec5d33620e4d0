"""Low-rank adapters in a model (LoRA, arXiv 2106.09685), as the peft package puts them there: what a forward pass of
our own, an engine or a file needs to know of them. Nothing here imports peft.

An adapted linear layer computes with W + scale · B · A, and keeps W as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

NAME = "default"
"""The one adapter of a model, by peft's own name for it."""
INSIDE = ".base_layer"
"""Where an adapted layer keeps the layer that it was."""


def merged_weight(linear: torch.nn.Module) -> Tensor:
    """What a linear layer computes with: its weight [out, in], plus its adapter's product where it has one that is
    switched on. The product has the adapter's type, the sum the weight's; gradients reach A and B.

    Costs a product [out, rank] × [rank, in] a layer, and in the backward pass the gradient of the whole weight,
    as training all of it would: cheap where many tokens share the weights of a small model.
    """
    if not _adapted(linear) or linear.disable_adapters:
        return linear.weight
    a, b = linear.lora_A[NAME].weight, linear.lora_B[NAME].weight
    return _merged(linear.weight, a, b, linear.scaling[NAME])


def _merged(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    return weight + (b @ a * scale).to(weight.dtype)


def _adapted(module: torch.nn.Module) -> bool:
    return hasattr(module, "lora_A") and NAME in module.lora_A


def adapted_layers(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The adapted layers by their name in the model; empty where it has no adapters."""
    return {name: module for name, module in model.named_modules() if _adapted(module)}


def has_adapters(model: torch.nn.Module) -> bool:
    """Whether any layer of `model` has an adapter."""
    return bool(adapted_layers(model))


@contextmanager
def adapters_off(model: torch.nn.Module) -> Iterator[None]:
    """Inside, the model computes what it did before it was given adapters."""
    layers = adapted_layers(model).values()
    for layer in layers:
        layer._disable_adapters = True  # its own switch, enable_adapters, freezes parameters too
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def _tensors(model: torch.nn.Module) -> Mapping[str, Tensor]:
    """What `state_dict` gives; of a model that is spread over ranks (`tuneloop.training.ranks`), where that would
    give this rank's parts, what its modules hold now."""
    if not hasattr(model, "is_whole"):
        return model.state_dict()
    found = dict(model.named_parameters(remove_duplicate=False))
    for name, module in model.named_modules():
        kept = module._buffers.keys() - module._non_persistent_buffers_set
        found |= {f"{name}.{key}".removeprefix("."): module._buffers[key] for key in kept}
    return found


@torch.no_grad()
def merged_state(model: torch.nn.Module, state: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The model's `state_dict` (or `state`, which was that) as it would be with the adapters merged in and none
    left, by the names of the model without adapters. Merged weights are new tensors, all others those of `state`.
    A model without adapters: what it is."""
    state = dict(_tensors(model) if state is None else state)
    merged = {name.replace(INSIDE, ""): value for name, value in state.items() if ".lora_" not in name}
    for name, layer in adapted_layers(model).items():
        plain = name.replace(INSIDE, "")
        if hasattr(layer, "parameter_name"):  # peft's wrapper of a parameter that stacks experts
            target, delta = f"{plain}.{layer.parameter_name}", layer.get_delta_weight(NAME)
            merged[target] = merged[target] + delta.to(merged[target].dtype)
        else:
            a, b = (state[f"{name}.{part}.{NAME}.weight"] for part in ("lora_A", "lora_B"))
            merged[f"{plain}.weight"] = _merged(merged[f"{plain}.weight"], a, b, layer.scaling[NAME])
    return merged
