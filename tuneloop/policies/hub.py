"""Model folders on this machine: those of the Hugging Face cache, and whether a folder is complete.

Nothing is fetched unless `HF_HUB_OFFLINE=0` says so: what a run downloads should be somebody's decision.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from tuneloop.errors import UserError
from tuneloop.policies.presets import Needs, Origin

FILES = ["*.json", "*.jinja", "*.safetensors", "*.txt", "*.model"]
"""What a model needs of its repository; many hold the same weights once more in other forms."""


def hub_folder(origin: Origin, needs: Needs | None) -> Path:
    """The folder of a hub model in the local cache. With `HF_HUB_OFFLINE=0` a missing one is downloaded.

    Raises UserError that says how to get the model and what it needs; also where too little disk is free.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(origin.name, revision=origin.revision, local_files_only=True))
        missing = missing_files(folder)
    except LocalEntryNotFoundError:
        missing = ["all of it"]
    if not missing:
        return folder
    what = f"{origin.name} at revision {origin.revision}"
    if os.environ.get("HF_HUB_OFFLINE") != "0":
        raise UserError(
            f"policy.source: {what} is not on this machine (missing: {', '.join(missing)}). Get it with\n"
            f"    hf download {origin.name} --revision {origin.revision}\n"
            f"or let this run fetch it: set HF_HUB_OFFLINE=0. {_size(needs)}"
        )
    if needs is not None:
        require_disk(needs.download, Path(constants.HF_HUB_CACHE), f"downloading {what}")
    print(f"[policy] downloading {what}", flush=True)
    try:
        folder = Path(snapshot_download(origin.name, revision=origin.revision, allow_patterns=FILES))
    except Exception as error:  # every library underneath has its own
        raise UserError(
            f"policy.source: {what} could not be downloaded: {' '.join(str(error).split())[:300]}"
        ) from None
    require_complete(folder)
    return folder


def require_complete(folder: Path) -> None:
    """UserError naming what a model folder lacks."""
    if missing := missing_files(folder):
        raise UserError(
            f"policy.source: {folder} is not a complete Hugging Face model folder: it lacks {', '.join(missing)}"
        )


def missing_files(folder: Path) -> list[str]:
    """The files that a model folder lacks: its configuration, its tokenizer, its weights (safetensors only)."""
    needed = ["config.json", "tokenizer.json"]
    index = folder / "model.safetensors.index.json"
    if index.exists():
        needed += sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    else:
        needed.append("model.safetensors")
    return [name for name in needed if not (folder / name).exists()]


def parameter_count(folder: Path) -> int:
    """How many numbers a model folder's weights hold, from the files' headers; nothing is loaded."""
    from safetensors import safe_open

    count = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118 (it is no mapping)
                size = 1
                for length in file.get_slice(name).get_shape():
                    size *= length
                count += size
    return count


def require_disk(gigabytes: float, folder: Path, what: str) -> None:
    """UserError with the numbers if less is free where `folder` is, or is going to be."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free / 1e9
    if free < gigabytes:
        raise UserError(f"{what} takes about {gigabytes:g} GB of disk; {free:.1f} GB are free at {place}")


def _size(needs: Needs | None) -> str:
    if needs is None:
        return "Its page on the hub says how large it is; DVC keeps two more copies of it in this project."
    return (
        f"It is {needs.download:g} GB to download; with the copies of this project it takes about {needs.disk:g} GB of "
        f"disk, and {needs.memory:g} GB of memory."
    )
