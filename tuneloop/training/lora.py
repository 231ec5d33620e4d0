"""Training low-rank adapters instead of the weights (LoRA, arXiv 2106.09685), with the peft package.

The model keeps its weights W, frozen, and an adapted layer computes with W + alpha / rank · B · A. A and B are
float32 (in a bfloat16 model too) and the only parameters that are trained and kept in a resume state. B starts
at 0: step 0 is the base policy. What is saved is the model with the adapters merged in, and the adapter beside it
as peft reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from tuneloop.errors import UserError
from tuneloop.params import LoraParams
from tuneloop.policies.adapters import NAME, adapted_layers
from tuneloop.policies.decoder import SUPPORTED
from tuneloop.policies.presets import LoraTargets, preset_of

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""What is adapted where no preset says otherwise; all that `DenseDecoder` looks for adapters on."""


def targets_of(source: str, like: str | None = None) -> LoraTargets:
    """What to adapt in the policy that came from `source`: as its preset says, or that of `policy.like` for a source
    without one; else `PROJECTIONS`."""
    preset = preset_of(source, like)
    return LoraTargets(modules=PROJECTIONS, parameters=()) if preset is None else preset.lora


def add_adapters(model: torch.nn.Module, params: LoraParams, targets: LoraTargets, seed: int) -> None:
    """Put adapters into `model`, A drawn from `seed`, B zero; they alone can be trained from then on. Raises UserError
    where peft is missing or the model has none of the targets."""
    try:
        from peft import inject_adapter_in_model
    except ImportError:
        raise UserError(
            f"train.lora.rank={params.rank}: the package peft is not installed; install it with "
            "pip install -e '.[lora]', or set train.lora.rank to 0"
        ) from None
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(_config(params, targets), model, NAME)
        except ValueError as error:
            raise UserError(
                f"train.lora: this model cannot be adapted ({' '.join(str(error).split())[:200]})"
            ) from None
    if model.config.model_type in SUPPORTED:
        other = sorted({name for name in adapted_layers(model) if name.rpartition(".")[2] not in PROJECTIONS})
        if other:
            raise UserError(f"train.lora: {', '.join(other)} cannot be adapted here, only {', '.join(PROJECTIONS)} can")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if parameter.requires_grad and parameter.element_size() < 4:
            parameter.data = parameter.data.float()


def _config(params: LoraParams, targets: LoraTargets) -> object:
    from peft import LoraConfig

    return LoraConfig(
        r=params.rank,
        lora_alpha=params.alpha,
        target_modules=list(targets.modules),
        target_parameters=list(targets.parameters) or None,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )


def save_adapter(state: Mapping[str, Tensor], params: LoraParams, targets: LoraTargets, folder: Path) -> None:
    """Write the adapters in a model's `state` as a folder that `peft.PeftModel.from_pretrained` reads over the
    base policy."""
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(params, targets)
    config.inference_mode = True
    config.save_pretrained(folder)
    adapters = {
        f"base_model.model.{name.replace(f'.{NAME}.', '.')}": value.contiguous().cpu()
        for name, value in state.items()
        if ".lora_" in name
    }
    save_file(adapters, folder / "adapter_model.safetensors", metadata={"format": "pt"})
