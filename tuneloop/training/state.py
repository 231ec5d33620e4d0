"""Resume states: what a killed training needs to continue to the same final weights.

States lie outside DVC's outs (which DVC deletes before a stage runs), in a folder named after a key of
everything the result depends on: parameters, data, code, library versions. Another key is another
folder, so a stale state is never picked up. A state's file name carries the hash of its bytes, so a
damaged file is recognised; the last two are kept, so damage costs at most one interval.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tuneloop.artifacts import replacing
from tuneloop.errors import UserError
from tuneloop.policies.adapters import has_adapters
from tuneloop.training.ranks import full, full_like, part_of, spread_like

KEEP = 2


def state_key(values: Mapping[str, Any], files: Iterable[Path]) -> str:
    """A key (16 hex digits) of JSON-able `values` and the names and bytes of `files` (folders: of
    all files in them)."""
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode())
    for root in files:
        for path in sorted(p for p in root.rglob("*") if p.is_file()) if root.is_dir() else [root]:
            if "__pycache__" in path.parts:
                continue
            digest.update(f"\0{path.relative_to(root.parent)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


class StateFolder:
    """The states of one key under `root`; those of other keys are removed when the first is saved."""

    def __init__(self, root: Path, key: str):
        self.root, self.folder = root, root / key

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Write the state after `step` steps, then drop all but this and the one before. Raises UserError
        where it cannot be written; the states saved before stay as they are."""
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        content = buffer.getvalue()
        path = self.folder / f"step-{step:06d}-{hashlib.sha256(content).hexdigest()[:16]}.pt"
        try:
            self._forget_other_keys()
            with replacing(path) as temporary, open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            self._forget_others(path, step)
        except OSError as error:
            raise UserError(
                f"{path}: the training state of step {step} could not be saved ({error.strerror}); make room there and "
                "run the same command again: it continues from the last state that was saved"
            ) from None

    def load(self) -> dict[str, Any] | None:
        """The newest whole state, or None. A damaged one is named on stderr and passed over."""
        for path in reversed(self._paths()):
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest()[:16] == path.stem.rsplit("-", 1)[1]:
                return torch.load(io.BytesIO(content), weights_only=True)
            print(f"{path}: is damaged and passed over", file=sys.stderr, flush=True)
        return None

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.pt"))

    def _forget_others(self, path: Path, step: int) -> None:
        # A state of a later step is a damaged one that `load` passed over: kept, it would crowd out good
        # ones. A temporary file was left by a process that was killed while it wrote.
        earlier = [p for p in self._paths() if p.name < f"step-{step:06d}"]
        for other in self.folder.iterdir():
            if other != path and other not in earlier[1 - KEEP :]:
                other.unlink(missing_ok=True)

    def _forget_other_keys(self) -> None:
        for other in self.root.glob("*") if self.root.is_dir() else ():
            if other != self.folder:
                shutil.rmtree(other, ignore_errors=True)


def trained_state(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]
) -> dict[str, Any]:
    """What training has changed, whole, on however many ranks it is spread; all of them must call it. Of a model with
    adapters they alone are in it. `parameters`: the trained ones, in the optimizer's order."""
    weights = model.state_dict()
    if has_adapters(model):
        trained = {name for name, p in model.named_parameters() if p.requires_grad}
        weights = {name: value for name, value in weights.items() if name in trained}
    return {"model": full(weights), "optimizer": _of_each(optimizer.state_dict(), parameters, full_like)}


def load_trained_state(
    state: Mapping[str, Any],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[torch.Tensor],
) -> None:
    """Put back what `trained_state` gave, spread as `model` is now."""
    now = model.state_dict()
    model.load_state_dict({**now, **{n: spread_like(value, now[n]) for n, value in state["model"].items()}})
    optimizer.load_state_dict(_of_each(state["optimizer"], parameters, part_of))


def _of_each(
    state: dict[str, Any], parameters: Sequence[torch.Tensor], change: Callable[[Any, torch.Tensor], Any]
) -> dict[str, Any]:
    """An optimizer's state with `change` applied to each of its numbers and the parameter that it is about."""
    numbers = {i: {name: change(value, parameters[i]) for name, value in n.items()} for i, n in state["state"].items()}
    return {**state, "state": numbers}
