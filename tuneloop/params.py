"""`params.yaml` as typed values. A section is named after the stage or shared part that reads it.

Keys for which the presets of `tuneloop/policies/presets.yaml` have values may be null there: they become the
value of the preset that `policy.source` names, or the task's own for that preset, before anything else is looked at.
So every value here is a real one.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tuneloop.errors import UserError
from tuneloop.policies.presets import Algorithm, origin_of, preset_keys, preset_of
from tuneloop.tasks.values import values

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, lt=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class TaskParams(Section):
    name: str
    mode: Literal["move", "game"]
    opponent: str
    reward_at: Literal["end", "turn"]


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
    revision: str | None
    like: str | None
    dialect: str | None
    nano: NanoParams
    warm_start: WarmStartParams


class VllmParams(Section):
    dtype: Literal["float32", "bfloat16"]
    memory_share: Share
    max_model_len: Positive


class RolloutParams(Section):
    engine: Literal["torch", "transformers", "vllm"]
    max_new_tokens: Positive
    temperature: Annotated[float, Field(gt=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: Annotated[int, Field(ge=0)]
    thinking: bool
    agent: str | None
    agent_timeout: Annotated[float, Field(gt=0)]
    agent_turns: Positive
    vllm: VllmParams


class EvaluateParams(Section):
    samples: Positive
    games: Annotated[int, Field(ge=0)]


class LoraParams(Section):
    rank: Annotated[int, Field(ge=0)]
    alpha: Annotated[float, Field(gt=0)]


class TrainParams(Section):
    algorithm: Algorithm
    examples: str | None
    dpo_beta: Annotated[float, Field(gt=0)]
    sft_least_reward: float | None
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
    dtype: Literal["float32", "bfloat16"]
    checkpoint_layers: bool
    lora: LoraParams

    @model_validator(mode="after")
    def _weights(self) -> TrainParams:
        if self.engine_ratio_cap is not None and self.old_logprobs == "engine":
            raise ValueError(
                f"engine_ratio_cap={self.engine_ratio_cap:g} with old_logprobs=engine would weight every reply with "
                "exactly 1; set old_logprobs to trainer, or engine_ratio_cap to null"
            )
        return self

    @model_validator(mode="after")
    def _imitation(self) -> TrainParams:
        if self.algorithm not in ("sft", "dpo"):
            if self.examples is not None:
                raise ValueError(
                    f"examples={self.examples} with algorithm={self.algorithm}, which learns from the replies that it "
                    "samples alone; set algorithm to sft or dpo, or examples to null"
                )
            return self
        if self.kl_coefficient:
            raise ValueError(
                f"kl_coefficient={self.kl_coefficient:g} with algorithm={self.algorithm}: the KL divergence is "
                "estimated from replies as they were sampled, not from chosen ones; set kl_coefficient to null or 0"
                + (" (dpo_beta holds the policy to the base policy)" if self.algorithm == "dpo" else "")
            )
        if self.engine_ratio_cap is not None:
            raise ValueError(
                f"engine_ratio_cap={self.engine_ratio_cap:g} with algorithm={self.algorithm}, which has no importance "
                "ratio; set engine_ratio_cap to null"
            )
        if self.examples is not None and self.shuffle_rewards:
            raise ValueError(
                f"shuffle_rewards with examples={self.examples}: examples are trained on as they are, whatever they "
                "earn; set shuffle_rewards to false, or examples to null"
            )
        return self


class CompareParams(Section):
    bootstrap: Positive
    confidence: Share


class MachineParams(Section):
    threads: Positive
    ranks: Positive


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

    @model_validator(mode="after")
    def _examples(self) -> Params:
        if self.train.examples is not None and (self.task.mode == "game" or self.rollout.agent is not None):
            several = "rollout.agent" if self.rollout.agent is not None else "task.mode=game"
            raise ValueError(
                f"train.examples={self.train.examples} with {several}: an example is one reply to a record's own "
                "prompt, an episode has several replies; set train.examples to null, or task.mode to move and "
                "rollout.agent to null"
            )
        return self

    @model_validator(mode="after")
    def _agent(self) -> Params:
        if self.rollout.agent is not None and self.task.mode == "game":
            raise ValueError(
                f"rollout.agent={self.rollout.agent} with task.mode=game: a game's turns are the task's own, an "
                "agent's are the agent's; set task.mode to move, or rollout.agent to null"
            )
        return self

    @model_validator(mode="after")
    def _old_logprobs(self) -> Params:
        if (
            self.rollout.engine == "vllm"
            and self.rollout.vllm.dtype != "float32"
            and self.train.old_logprobs != "trainer"
        ):
            raise ValueError(
                f"rollout.engine=vllm with rollout.vllm.dtype={self.rollout.vllm.dtype} and train.old_logprobs="
                f"{self.train.old_logprobs}: log-probabilities of a {self.rollout.vllm.dtype} engine are off by about "
                "0.03 a token, more than a clip range is wide, so every ratio would start outside it; set "
                "train.old_logprobs to trainer and train.engine_gap_limit to 0.1, or rollout.vllm.dtype to float32"
            )
        return self


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
    """Params from nested mappings, nulls taken from the preset and the task; errors as `load_params`, with `where`
    as the file's name."""
    try:
        filled = with_preset_values(tree)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    try:
        return Params.model_validate(_widened(filled))
    except ValidationError as error:
        raise UserError("\n".join(f"{where}: {line}" for line in _complaints(error, tree))) from None


def with_preset_values(tree: Any) -> Any:
    """`tree` (not changed) with a value for every null key that presets have values for: `tuneloop.tasks.values`.

    A key stays null where `policy.source` is a hub id or folder without preset. Raises UserError for a source that
    is none of the three, for a `policy.like` that is no preset or not needed, and for a task's faulty values.yaml.
    """
    source, like = _text(tree, "policy", "source"), _text(tree, "policy", "like")
    if source is None:
        return tree
    preset = preset_of(source, like)
    if preset is None:
        origin_of(source)
        return tree
    out = copy.deepcopy(tree)
    _fill(out, values(preset, _text(tree, "task", "name"), _text(tree, "train", "algorithm")))
    return out


def _fill(tree: dict[str, Any], found: Mapping[str, Any]) -> None:
    """Put a value, by dotted key, wherever the nested mappings say null. What is missing or no mapping stays so."""
    for key, value in found.items():
        *sections, name = key.split(".")
        node: Any = tree
        for section in sections:
            node = node.get(section) if isinstance(node, dict) else None
        if isinstance(node, dict) and name in node and node[name] is None:
            node[name] = value


def _text(tree: Any, section: str, name: str) -> str | None:
    """A text in nested mappings that need not be valid yet; None for anything else."""
    part = tree.get(section) if isinstance(tree, dict) else None
    found = part.get(name) if isinstance(part, dict) else None
    return found if isinstance(found, str) else None


def resolved_text(path: Path | str = "params.yaml") -> str:
    """The file as it is, comments and all, with its value for each null that has one. Errors as `load_params`."""
    load_params(path)
    yaml, out = YAML(), StringIO()
    yaml.width = 120
    tree = yaml.load(Path(path).read_text(encoding="utf-8"))
    preset = preset_of(tree["policy"]["source"], tree["policy"]["like"])
    if preset is not None:
        _fill(tree, values(preset, tree["task"]["name"], tree["train"]["algorithm"]))
    yaml.dump(tree, out)
    return out.getvalue()


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


def _complaints(error: ValidationError, tree: Any) -> list[str]:
    """One line a mistake; the keys left null by a source without preset together."""
    found = {".".join(map(str, e["loc"])): e for e in error.errors()}
    null = [key for key, e in found.items() if key in preset_keys() and e["input"] is None and e["type"] != "missing"]
    lines = [_explain(e) for e in error.errors() if ".".join(map(str, e["loc"])) not in null]
    if null and not found.keys() & {"policy", "policy.source", "policy.like"}:
        lines.append(
            f"policy.source: {tree['policy']['source']!r} is no preset, so nothing says what is null: "
            f"{', '.join(null)}; write values there, or name in policy.like the preset whose values it takes"
        )
    return lines


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
