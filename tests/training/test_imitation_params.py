"""What params.yaml means under sft and dpo, and what is refused there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tuneloop.errors import UserError
from tuneloop.params import parse_params, resolved_text
from tuneloop.policies.presets import preset_keys, presets


@pytest.fixture
def project(root: Path) -> Callable[..., dict[str, Any]]:
    """`project({"train.algorithm": "sft"})`: the project's own params.yaml, changed, as nested mappings."""

    def tree(changes: Mapping[str, Any]) -> dict[str, Any]:
        found = YAML(typ="safe").load((root / "params.yaml").read_text(encoding="utf-8"))
        for key, value in changes.items():
            section, name = key.split(".")
            found[section][name] = value
        return found

    return tree


@pytest.mark.parametrize("source", list(presets()))
@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_changing_the_algorithm_alone_is_enough_with_every_preset(
    project: Callable, source: str, algorithm: str
) -> None:
    params = parse_params(project({"train.algorithm": algorithm, "policy.source": source}), "params.yaml")
    own = presets()[source].algorithms[algorithm]
    assert set(own) <= set(preset_keys())
    assert (params.train.lr, params.train.kl_coefficient) == (own["train.lr"], 0.0)
    assert params.train.clip_low == presets()[source].params["train.clip_low"], "the rest is the preset's"


def test_a_number_in_the_file_wins_over_the_algorithms(project: Callable, tmp_path: Path) -> None:
    tree = project({"train.algorithm": "dpo", "train.lr": 0.5})
    assert parse_params(tree, "params.yaml").train.lr == 0.5
    YAML().dump(tree | {"train": tree["train"] | {"lr": None}}, tmp_path / "params.yaml")
    resolved = YAML(typ="safe").load(resolved_text(tmp_path / "params.yaml"))
    assert resolved["train"]["lr"] == presets()["nano"].algorithms["dpo"]["train.lr"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train.algorithm": "dpo", "train.kl_coefficient": 0.1}, r"kl_coefficient=0\.1 with algorithm=dpo.*null or 0"),
        (
            {"train.algorithm": "sft", "train.old_logprobs": "trainer", "train.engine_ratio_cap": 2.0},
            "has no importance",
        ),
        ({"train.examples": "examples/a.jsonl"}, "set algorithm to sft or dpo, or examples to null"),
        (
            {"train.algorithm": "sft", "train.examples": "examples/a.jsonl", "train.shuffle_rewards": True},
            "examples are trained on as they are",
        ),
        (
            {"train.algorithm": "sft", "train.examples": "examples/a.jsonl", "task.mode": "game"},
            "with task.mode=game: an example is one reply",
        ),
        (
            {"train.algorithm": "dpo", "train.examples": "examples/a.jsonl", "rollout.agent": "agent:play"},
            "with rollout.agent: an example is one reply",
        ),
        ({"train.dpo_beta": 0.0}, "train.dpo_beta: Input should be greater than 0"),
        ({"train.algorithm": "ppo"}, r"train\.algorithm: .*'sft' or 'dpo'"),
    ],
)
def test_what_makes_no_sense_together_is_refused_with_the_way_out(
    project: Callable, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        parse_params(project(changes), "params.yaml")
