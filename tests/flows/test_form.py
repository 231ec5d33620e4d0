"""The parameters of a run: what is refused, with which words, and what DVC is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from flows.form import Overrides, check_changes, dvc_settings
from flows.loop import loop
from tuneloop.errors import UserError
from tuneloop.params import known_keys


def test_the_form_has_every_key_of_params_yaml_and_none_of_them_is_required() -> None:
    schema = loop.parameters
    sections = schema.definitions

    def keys(name: str, before: str = "") -> list[str]:
        assert "required" not in sections[name]
        found = []
        for key, field in sections[name]["properties"].items():
            inside = field.get("$ref", "").split("/")[-1]
            found += keys(inside, f"{before}{key}.") if inside else [before + key]
        return found

    assert keys("Overrides") == known_keys()
    assert sections["Train"]["properties"]["steps"] == {"minimum": 1, "title": "steps", "type": "integer"}
    assert schema.required == []


def test_an_empty_form_changes_nothing_and_both_ways_of_writing_are_the_same() -> None:
    assert Overrides().changes() == {}
    assert Overrides(train={"steps": None}).changes() == {}
    nested = Overrides.model_validate({"train": {"steps": 3, "lr": 1e-3}, "seed": 1})
    assert nested.changes() == {"seed": 1, "train.steps": 3, "train.lr": 1e-3}
    assert Overrides.model_validate({"train.steps": 3, "train.lr": 1e-3, "seed": 1}) == nested


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"train.stepz": 4}, "train.stepz: there is no such key; the nearest is train.steps"),
        ({"trian": {"steps": 4}}, "trian.steps: there is no such key; the nearest is train.steps"),
        ({"train": 4}, "train: is a section, not a value"),
        ({"train.steps": 0}, "train.steps: Input should be greater than or equal to 1 (got 0)"),
        ({"train.steps": "many"}, "train.steps: Input should be a valid integer (got 'many')"),
        ({"train.steps": True}, "train.steps: Input should be a valid integer (got True)"),
        ({"train.algorithm": "ppo"}, "train.algorithm: Input should be 'gspo'"),
    ],
)
def test_a_wrong_key_or_value_is_refused_by_name(given: dict[str, Any], said: str, root: Path) -> None:
    with pytest.raises(ValidationError) as refused:
        Overrides.model_validate(given)
    assert said in str(refused.value)
    if not isinstance(given.get("trian"), dict):
        with pytest.raises(UserError) as again:
            check_changes(root, given)
        assert said in str(again.value)


def test_values_that_do_not_go_together_are_refused_before_anything_runs(root: Path) -> None:
    with pytest.raises(UserError, match="hidden_size must be an even multiple of heads"):
        check_changes(root, {"policy.nano.heads": 5})


def test_dvc_reads_every_value_as_it_was_meant(tmp_path: Path, variables: dict[str, str]) -> None:
    given = {"a": 1, "b": 2.5e-7, "c": True, "d": "plain", "e": "it's {odd}, [a]=b: x", "f": "1", "g": 0.0}
    (tmp_path / "params.yaml").write_text(YAML_OF_NOTHING)
    (tmp_path / "dvc.yaml").write_text("stages: {s: {cmd: 'true', params: [a, b, c, d, e, f, g]}}\n")
    for words in (
        ["git", "init", "--quiet"],
        [sys.executable, "-m", "dvc", "init", "--quiet"],
        ["git", "add", "--all"],
        ["git", "commit", "--quiet", "--message", "as it is"],
        [sys.executable, "-m", "dvc", "exp", "run", "--quiet", *dvc_settings(given)],
    ):
        subprocess.run(words, cwd=tmp_path, env=variables, check=True)
    found = YAML(typ="safe").load((tmp_path / "params.yaml").read_text())
    assert found == given
    assert [type(value) for value in found.values()] == [type(value) for value in given.values()]
    for unreadable in ("a\\b", "${a}"):
        with pytest.raises(UserError, match="cannot take"):
            dvc_settings({"policy.source": unreadable})


YAML_OF_NOTHING = "".join(f"{key}: null\n" for key in "abcdefg")
