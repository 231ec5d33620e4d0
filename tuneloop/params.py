"""`params.yaml` as typed values. A section is named after the stage or shared part that reads it."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tuneloop.errors import UserError

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, lt=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class TaskParams(Section):
    name: str


class BoardsParams(Section):
    count: int
    seed: int
    heldout_fraction: Share


class NanoParams(Section):
    hidden_size: Positive
    intermediate_size: Positive
    layers: Positive
    heads: Positive
    kv_heads: Positive
    vocabulary: Annotated[int, Field(ge=300)]
    initializer_range: Annotated[float, Field(gt=0)]

    @model_validator(mode="after")
    def _widths(self) -> NanoParams:
        if self.hidden_size % self.heads or (self.hidden_size // self.heads) % 2:
            raise ValueError(f"hidden_size must be an even multiple of heads (got {self.hidden_size} and {self.heads})")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads (got {self.heads} and {self.kv_heads})")
        return self


class WarmStartParams(Section):
    updates: Annotated[int, Field(ge=0)]
    batch_size: Positive
    lr: Annotated[float, Field(gt=0)]


class PolicyParams(Section):
    source: str
    nano: NanoParams
    warm_start: WarmStartParams


class RolloutParams(Section):
    engine: Literal["torch"]
    max_new_tokens: Positive
    temperature: Annotated[float, Field(gt=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: Annotated[int, Field(ge=0)]
    thinking: bool


class EvaluateParams(Section):
    samples: Positive
    games: Annotated[int, Field(ge=0)]


class TrainParams(Section):
    algorithm: Literal["gspo", "gspo_token", "grpo", "dr_grpo", "dapo"]
    steps: Positive
    boards_per_step: Positive
    group_size: Annotated[int, Field(ge=2)]
    oversample: Positive
    visit: Literal["unsettled", "passes"]
    extra_records: bool
    updates_per_step: Positive
    epochs_per_step: Positive
    lr: Annotated[float, Field(ge=0)]
    lr_warmup: Annotated[int, Field(ge=0)]
    lr_final: Annotated[float, Field(ge=0, le=1)]
    clip_low: Annotated[float, Field(gt=0, lt=1)]
    clip_high: Annotated[float, Field(gt=0)]
    scale_rewards: bool
    entropy_bonus: Annotated[float, Field(ge=0)]
    kl_coefficient: Annotated[float, Field(ge=0)]
    kl_until: Annotated[float, Field(gt=0, le=1)] | None
    overlong: Literal["score", "mask"]
    old_logprobs: Literal["engine", "trainer"]
    engine_ratio_cap: Annotated[float, Field(ge=1)] | None
    weight_decay: Annotated[float, Field(ge=0)]
    max_grad_norm: Annotated[float, Field(gt=0)]
    micro_batch_replies: Positive
    shuffle_rewards: bool
    evaluate_every: Positive
    keep_replies_every: Positive
    save_every: Positive
    engine_gap_limit: Annotated[float, Field(gt=0)]

    @model_validator(mode="after")
    def _weights(self) -> TrainParams:
        if self.engine_ratio_cap is not None and self.old_logprobs == "engine":
            raise ValueError(
                f"engine_ratio_cap={self.engine_ratio_cap:g} with old_logprobs=engine would weight every reply with "
                "exactly 1; set old_logprobs to trainer, or engine_ratio_cap to null"
            )
        return self


class CompareParams(Section):
    bootstrap: Positive
    confidence: Share


class MachineParams(Section):
    threads: Positive


class Params(Section):
    seed: Annotated[int, Field(ge=0)]
    task: TaskParams
    boards: BoardsParams
    policy: PolicyParams
    rollout: RolloutParams
    evaluate: EvaluateParams
    train: TrainParams
    compare: CompareParams
    machine: MachineParams


def load_params(path: Path | str = "params.yaml") -> Params:
    """The parameters in a YAML file. Raises UserError naming the file, the key, the value and, for
    an unknown key, the nearest known one."""
    try:
        tree = YAML(typ="safe").load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: is not valid YAML: {' '.join(str(error).split())}") from None
    return parse_params(tree, str(path))


def parse_params(tree: Any, where: str) -> Params:
    """Params from nested mappings; errors as `load_params`, with `where` as the file's name."""
    try:
        return Params.model_validate(_widened(tree))
    except ValidationError as error:
        raise UserError("\n".join(f"{where}: {_explain(e)}" for e in error.errors())) from None


def known_keys(model: type[BaseModel] = Params, before: str = "") -> list[str]:
    """Every dotted key of params.yaml, in the order of the file."""
    keys = []
    for name, field in model.model_fields.items():
        nested = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        keys += known_keys(field.annotation, f"{before}{name}.") if nested else [before + name]
    return keys


def _widened(tree: Any, model: type[BaseModel] = Params) -> Any:
    """Whole numbers as floats where a float is wanted (`lr: 0`); nothing else is converted."""
    if not isinstance(tree, dict):
        return tree
    out = dict(tree)
    for name, field in model.model_fields.items():
        value = out.get(name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            out[name] = _widened(value, field.annotation) if name in out else value
            if name not in tree:
                del out[name]
        elif field.annotation is float and type(value) is int:
            out[name] = float(value)
    return out


def _explain(error: dict[str, Any]) -> str:
    key = ".".join(map(str, error["loc"])) or "the file"
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, known_keys(), n=1, cutoff=0)
        return f"{key}: there is no such key; the nearest is {near[0]}"
    if error["type"] == "missing":
        return f"{key}: is missing"
    if error["type"] == "value_error":  # of several keys together: the message holds their values
        return f"{key}: {error['msg'].removeprefix('Value error, ')}"
    return f"{key}: {error['msg']} (got {error['input']!r})"
