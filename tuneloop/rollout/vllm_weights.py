"""The policy's weights inside a vLLM model of the same process: how they get there, and the proof that they did.

vLLM holds them in a form of its own: query, key and value stacked into one matrix, the vocabulary padded, and on
the CPU packed for its matrix product, the plain copy thrown away. So the proof asks every layer for what it
*multiplies with*: a packed layer is applied to unit vectors, which gives columns of its matrix exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from tuneloop.policies.adapters import merged_state

COLUMNS = 16
"""Columns read of every packed matrix, spread over its width. An optimizer step changes all of them."""
TOLERANCE = 1e-10
"""Relative to the sum of magnitudes; sums in float64 of the same numbers in another order differ by far less."""


@torch.no_grad()
def policy_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """The policy's weights by the names that a checkpoint of it has, adapters merged in; tied ones under each
    of their names. Tensors are the model's own where nothing was merged or converted."""
    return dict(revert_weight_conversion(model, merged_state(model)))


def push(llm: Any, weights: Mapping[str, Tensor]) -> None:
    """Put `weights` into the model of `llm` (a `vllm.LLM` in this process), and forget what was computed with
    the old ones. Raises RuntimeError where vLLM refuses to."""
    model = model_of(llm)
    once = dict(_without_tied(weights))
    if _is_plain(model):
        model.load_weights(once.items())  # in place: captured graphs go on reading the same memory
    else:
        # vLLM takes its packed form back, loads, and packs again, layer by layer.
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(once.items())})
        repack_heads(model)
    forget_prefixes(llm)


def forget_prefixes(llm: Any) -> None:
    """Keys and values kept from earlier prompts belong to the weights that made them; vLLM keeps them over a push."""
    if not llm.reset_prefix_cache():
        raise RuntimeError("vLLM did not reset its prefix cache")


def repack_heads(model: torch.nn.Module) -> None:
    """A tied output head shares the embedding's weight, so nothing is loaded into it, and vLLM leaves its packed
    copy as it was."""
    for head in _heads(model):
        head.quant_method.process_weights_after_loading(head)


def differing(model: torch.nn.Module, weights: Mapping[str, Tensor]) -> list[str]:
    """Names (vLLM's) of the tensors that are not what `weights` says, of those whose origin is known by name.
    Sums of values, in the type that vLLM computes in. Raises RuntimeError where it knows the origin of none."""
    wrong, known = [], 0
    for name, layer, parameter in _parameters(model):
        parts = _origins(model, name, weights)
        if not parts:
            continue  # for instance experts: only the scored tokens speak for them
        known += 1
        found, expected = _both_sides(layer, parameter, parts)
        (total, size), (expected_total, _) = found, expected
        if not abs(total - expected_total) <= TOLERANCE * max(size, 1.0):
            wrong.append(name)
    if not known:
        raise RuntimeError("vLLM's weights have no name in common with the policy's")
    return wrong


def model_of(llm: Any) -> torch.nn.Module:
    """The model inside an `LLM`, which must run in this process."""
    (model,) = llm.apply_model(lambda model: model)
    return model


def _both_sides(layer: torch.nn.Module, parameter: Tensor, parts: list[Tensor]) -> tuple[tuple, tuple]:
    """(sum, sum of magnitudes) of what the layer holds, and of what it should hold."""
    rows, dtype = sum(len(part) for part in parts), parameter.dtype
    if hasattr(layer, "cpu_linear") and (not parameter.numel() or layer in _heads(layer)):
        width = parts[0].shape[1]
        columns = torch.linspace(0, width - 1, min(COLUMNS, width)).long()
        held = layer.quant_method.apply(layer, torch.eye(width, dtype=dtype)[columns]).T
        parts = [part[:, columns] for part in parts]
    else:
        held = parameter
    # Beyond `rows` lies the padding of the vocabulary.
    return _sums([held[:rows]], dtype), _sums(parts, dtype)


def _sums(parts: list[Tensor], dtype: torch.dtype) -> tuple[float, float]:
    values = [part.detach().to(dtype) for part in parts]
    totals = [(x.sum(dtype=torch.float64).item(), x.abs().sum(dtype=torch.float64).item()) for x in values]
    return sum(t for t, _ in totals), sum(s for _, s in totals)


def _parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, Tensor]]:
    """Every parameter, tied ones at each of their places."""
    for place, layer in model.named_modules():
        for own, parameter in layer.named_parameters(recurse=False):
            yield f"{place}.{own}" if place else own, layer, parameter


def _origins(model: torch.nn.Module, name: str, weights: Mapping[str, Tensor]) -> list[Tensor]:
    """What vLLM's tensor `name` is stacked from; empty where the names do not tell."""
    if name in weights:
        return [weights[name]]
    *before, module, own = name.split(".")
    pieces = getattr(model, "packed_modules_mapping", {}).get(module, [])
    names = [".".join([*before, piece, own]) for piece in pieces]
    return [weights[n] for n in names] if names and all(n in weights for n in names) else []


def _heads(model: torch.nn.Module) -> list[torch.nn.Module]:
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    return [module for module in model.modules() if isinstance(module, ParallelLMHead)]


def _is_plain(model: torch.nn.Module) -> bool:
    """Whether the model computes with its weights as they were loaded: on a GPU, without experts (their kernels
    want another layout)."""
    on_cpu = next(model.parameters()).device.type == "cpu"
    return not on_cpu and not any("MoE" in type(module).__name__ for module in model.modules())


def _without_tied(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Each memory once, under its first name that is not the output head's: vLLM's models leave a tied head out."""
    seen = set()
    for name, value in sorted(weights.items(), key=lambda item: item[0].endswith("lm_head.weight")):
        key = (value.data_ptr(), value.shape)
        if key not in seen:
            seen.add(key)
            yield name, value
