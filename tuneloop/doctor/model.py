"""The model that `policy.source` names: are its files here and whole, and what does it need?

Looks at files alone, the same ones as the stages: no hub is asked, nothing is loaded.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tuneloop.doctor.finding import Finding, fail, ok, warn
from tuneloop.doctor.gpu import Gpus
from tuneloop.doctor.versions import installed
from tuneloop.errors import UserError

if TYPE_CHECKING:
    from tuneloop.params import Params
    from tuneloop.policies.presets import Origin, Preset

GB = 10**9
TRAINED, ADAPTED = 8, 3
"""Memory by the size of 16-bit weights, where no preset says it: float32 weights, gradients and Adam's two moments are
16 bytes a parameter; with LoRA there are the weights of the engine, those of the trainer, and what they compute."""
COPIES = 3
"""Of a model on disk where no preset says it: as it came, in data/, and in DVC's cache."""
WHERE = "docs/models.md"


@dataclass(frozen=True)
class Model:
    """What is known of the model; needs are GB still to be had. `kind` is config.json's model_type, None if unknown."""

    findings: tuple[Finding, ...] = ()
    needs_memory: float = 0.0
    needs_disk: float = 0.0
    kind: str | None = None


def look_at_model(params: Params) -> Model:
    """What `policy.source` is, and what it needs that this machine has yet to have; a FAIL for one that is none."""
    from tuneloop.policies.presets import origin_of, preset_of

    policy = params.policy
    try:
        preset = preset_of(policy.source, policy.like)
        origin = origin_of(policy.source, policy.revision)
    except UserError as error:
        return Model((fail("model", str(error), f"{WHERE} lists what policy.source takes"),))
    adapter = params.train.lora.rank > 0
    if isinstance(origin, Path):
        return _in_folder(policy.source, origin, preset, adapter)
    if origin.kind == "hub":
        return _from_hub(policy.source, origin, preset, adapter)
    return _needs_of(preset, _built(origin))


def check_fit(needs_memory: float, gpus: Gpus) -> Finding | None:
    """Whether the model fits one GPU with memory of its own; None where there is none (then see "memory")."""
    sizes = [gpu.memory_mib * 2**20 / GB for gpu in gpus.found if gpu.memory_mib is not None]
    if not sizes or not needs_memory:
        return None
    found = f"training this policy takes about {needs_memory:g} GB; the GPU has {max(sizes):.0f}"
    if max(sizes) >= needs_memory:
        return ok("gpu memory", found)
    step = (
        "lower train.micro_batch_replies, set train.lora.rank, or spread it over GPUs with machine.ranks (docs/gpu.md)"
    )
    return warn("gpu memory", found, step)


def check_adapter(rank: int) -> Finding | None:
    """What `train.lora.rank` needs; None where it is 0."""
    if not rank:
        return None
    has = installed("peft")
    if has is None:
        step = "pip install -e '.[lora]', or train.lora.rank: 0"
        return fail("lora", f"train.lora.rank={rank} needs the package peft, which is missing", step)
    return ok("lora", f"rank {rank}, peft {has}")


def faults(folder: Path) -> list[str]:
    """What keeps `folder` from being a whole model as the stages want it; empty if nothing does."""
    from tuneloop.policies.hub import missing_files

    try:
        missing = missing_files(folder)
        if missing:
            return [f"lacks {', '.join(missing[:3])}{f' and {len(missing) - 3} more' if len(missing) > 3 else ''}"]
        _kind(folder)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ["config.json or model.safetensors.index.json is broken"]
    return [fault for file in sorted(folder.glob("*.safetensors")) if (fault := _cut_short(file))]


def cached(origin: Origin) -> Path | None:
    """The folder of a hub model in the local cache; None if there is nothing of it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(origin.name, revision=origin.revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def _built(origin: Origin) -> Finding:
    if origin.kind == "builder":
        return ok("model", f"{origin.name} is built by the pipeline: nothing to download")
    has = installed(origin.name)
    if has != origin.revision:
        found = f"its weights come in the package {origin.name} {origin.revision}, which is {has or 'missing'}"
        return fail("model", found, "make smollm2")
    missing = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
    if missing:
        return fail("model", f"reading its weights needs {' and '.join(missing)}", "make smollm2")
    return ok("model", f"{origin.name} {has} is installed")


def _in_folder(source: str, folder: Path, preset: Preset | None, adapter: bool) -> Model:
    said = faults(folder)
    if said:
        return _needs_of(
            preset, *(fail("model", f"{source}: {text}", f"copy the whole model there ({WHERE})") for text in said)
        )
    return _whole(source, folder, preset, adapter)


def _from_hub(source: str, origin: Origin, preset: Preset | None, adapter: bool) -> Model:
    fetch = f"hf download {origin.name} --revision {origin.revision}"
    folder = cached(origin)
    if folder is None:
        size = f" ({preset.needs.download:g} GB)" if preset else ""
        found = f"{origin.name} at {origin.revision} is not on this machine"
        if os.environ.get("HF_HUB_OFFLINE") == "0":
            return _needs_of(preset, warn("model", found, f"the run will download it{size}, or: {fetch}"))
        return _needs_of(preset, fail("model", found, fetch + size))
    said = faults(folder)
    if said:
        found = f"{origin.name} in the local cache {'; '.join(said)}"
        return _needs_of(preset, fail("model", found, f"{fetch} (goes on where it broke off)"))
    return _whole(source, folder, preset, adapter)


def _whole(source: str, folder: Path, preset: Preset | None, adapter: bool) -> Model:
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors")) / GB
    kind = _kind(folder)
    found = f"{source}: whole, {weights:.1f} GB of weights, {kind}"
    if _has_template(folder):
        finding = ok("model", found)
    else:
        finding = warn("model", f"{found}, no chat template", f"a base model cannot be asked by messages ({WHERE})")
    if preset is None:
        return Model(
            (finding,), round(weights * (ADAPTED if adapter else TRAINED), 1), round(weights * COPIES, 1), kind
        )
    needs = _needs_of(preset, finding)
    return Model(needs.findings, needs.needs_memory, max(0.0, needs.needs_disk - preset.needs.download), kind)


def _needs_of(preset: Preset | None, *findings: Finding) -> Model:
    if preset is None:
        return Model(findings)
    if preset.training is not None:
        step = "evaluate it (dvc repro baseline), or choose another policy.source"
        findings += (warn("training", f"{preset.name} cannot be trained: {preset.training}", step),)
    return Model(findings, preset.needs.memory, preset.needs.disk)


def _cut_short(file: Path) -> str | None:
    """Whether a safetensors file ends before its header says (8 bytes of length, the header, the tensors)."""
    size = file.stat().st_size
    try:
        with open(file, "rb") as opened:
            length = struct.unpack("<Q", opened.read(8))[0]
            header = json.loads(opened.read(min(length, size)))
        wanted = 8 + length + max(t["data_offsets"][1] for name, t in header.items() if name != "__metadata__")
    except (struct.error, ValueError, KeyError, TypeError, AttributeError):
        return f"{file.name} is no safetensors file"
    return f"{file.name} is cut short ({size} of {wanted} bytes)" if size < wanted else None


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    try:
        return bool(json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template"))
    except (OSError, ValueError, AttributeError):
        return False


def _kind(folder: Path) -> str:
    """`model_type` of config.json; ValueError, KeyError or TypeError where it is broken."""
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
