"""A task's own values for keys that params.yaml leaves null."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tuneloop.errors import UserError
from tuneloop.params import load_params, parse_params, resolved_text
from tuneloop.policies.presets import Preset, presets
from tuneloop.tasks import task_names
from tuneloop.tasks.values import Own, own_values, values


@pytest.fixture
def tree(root: Path) -> dict:
    return YAML(typ="safe").load((root / "params.yaml").read_text(encoding="utf-8"))


def written(folder: Path, text: str) -> Path:
    (folder / "mine").mkdir()
    (folder / "mine" / "values.yaml").write_text(text, encoding="utf-8")
    return folder


def test_the_desk_has_a_longer_warm_start_with_nano_by_its_name_alone(tree: dict) -> None:
    # 2,000 updates: what all six seeds needed that were tried (docs/LOG.md).
    assert load_updates(tree) == presets()["nano"].params["policy.warm_start.updates"] == 1000
    tree["task"]["name"] = "desk"
    assert load_updates(tree) == 2000
    tree["policy"]["warm_start"]["updates"] = 7
    assert load_updates(tree) == 7, "a number in the file wins"


def test_a_preset_that_the_task_does_not_name_keeps_its_own_values(tree: dict) -> None:
    tree["task"]["name"], tree["policy"]["source"] = "desk", "smollm2-135m"
    assert load_updates(tree) == presets()["smollm2-135m"].params["policy.warm_start.updates"]


def test_the_params_that_a_run_reports_show_the_tasks_values(root: Path, tmp_path: Path) -> None:
    text = (root / "params.yaml").read_text(encoding="utf-8").replace("name: tictactoe", "name: desk")
    (tmp_path / "params.yaml").write_text(text, encoding="utf-8")
    shown = YAML(typ="safe").load(resolved_text(tmp_path / "params.yaml"))
    assert shown["policy"]["warm_start"]["updates"] == 2000
    assert shown["train"]["lr"] == load_params(tmp_path / "params.yaml").train.lr


def test_what_holds_under_the_algorithm_goes_before_what_always_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    nano = presets()["nano"]
    own = own_values_of({"nano": {"params": {"train.lr": 1.0}, "algorithms": {"sft": {"train.clip_low": 0.25}}}})
    monkeypatch.setattr("tuneloop.tasks.values.own_values", lambda task: own)
    assert values(nano, "mine", "gspo")["train.lr"] == 1.0
    under_sft = values(nano, "mine", "sft")
    assert under_sft["train.lr"] == nano.algorithms["sft"]["train.lr"], "the preset's for sft, not the task's for all"
    assert under_sft["train.clip_low"] == 0.25


def test_a_task_without_the_file_has_the_presets_values() -> None:
    nano: Preset = presets()["nano"]
    assert values(nano, "tictactoe", "gspo") == values(nano, None, None) == dict(nano.params)


@pytest.mark.parametrize("task", task_names())
def test_every_task_here_has_a_valid_file_or_none(task: str) -> None:
    assert set(own_values(task)) <= set(presets())


@pytest.mark.parametrize("task", ["..", "../tasks/desk", "no_such_task", ""])
def test_a_name_that_is_no_task_has_no_values(task: str) -> None:
    assert own_values(task) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nano: [", r"mine/values\.yaml: is not valid YAML"),
        ("nanno: {params: {}}", r"there is no preset 'nanno'; known presets: nano, "),
        ("nano: {params: {train.steps: 3}}", r"nano: train\.steps is no key that may be null .* those are policy\."),
        ("nano: {algorithms: {dop: {train.lr: 0.1}}}", r"values\.yaml: nano\.algorithms\.dop"),
        ("nano: {param: {train.lr: 0.1}}", r"values\.yaml: nano\.param: "),
        ("nano: {params: {train.lr: [1]}}", r"values\.yaml: nano\.params\.train\.lr"),
        ("- nano", r"values\.yaml: the file: .*dict"),
    ],
)
def test_a_faulty_file_is_one_line_that_names_it(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        own_values("mine", written(tmp_path, text))
    assert "\n" not in str(refused.value)


def load_updates(tree: dict) -> int:
    return parse_params(tree, "params.yaml").policy.warm_start.updates


def own_values_of(tree: dict) -> dict:
    return {name: Own(**fields) for name, fields in tree.items()}
