"""params.yaml: every key is known, typed and checked, and a mistake is one clear line."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tuneloop.errors import UserError
from tuneloop.params import known_keys, load_params, parse_params, resolved_text
from tuneloop.policies.presets import preset_keys, presets

PROJECT = Path(__file__).parents[1] / "params.yaml"


TREE = YAML(typ="safe").load(PROJECT.read_text(encoding="utf-8"))


def tree() -> dict[str, Any]:
    return copy.deepcopy(TREE)


def leaves(node: dict[str, Any], before: str = "") -> dict[str, Any]:
    found = {}
    for name, value in node.items():
        found |= leaves(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: value}
    return found


def changed(key: str, value: Any) -> dict[str, Any]:
    """The project's parameters with another value at a dotted key."""
    whole = tree()
    *sections, name = key.split(".")
    node = whole
    for section in sections:
        node = node[section]
    node[name] = value
    return whole


def refusal(whole: Any) -> str:
    with pytest.raises(UserError) as error:
        parse_params(whole, "params.yaml")
    return str(error.value)


LEAVES = leaves(parse_params(TREE, "params.yaml").model_dump())
OPTIONAL = ["train.engine_ratio_cap", "train.kl_until", "train.sft_least_reward"]
"""Numbers that may be null."""
OPTIONAL_TEXTS = ["policy.revision", "policy.like", "policy.dialect", "rollout.agent", "train.examples"]
NUMBERS = [key for key, value in LEAVES.items() if type(value) in (int, float) or key in OPTIONAL]
WHOLE = [key for key, value in LEAVES.items() if type(value) is int]
SWITCHES = [key for key, value in LEAVES.items() if type(value) is bool]
TEXTS = [key for key, value in LEAVES.items() if type(value) is str or key in OPTIONAL_TEXTS]
MAY_BE_NULL = [*OPTIONAL, *OPTIONAL_TEXTS, *preset_keys()]


def test_the_projects_own_file_is_valid() -> None:
    assert load_params(PROJECT).seed == tree()["seed"]


def test_known_keys_are_exactly_those_of_the_file_in_its_order() -> None:
    assert known_keys() == list(LEAVES)
    assert len(NUMBERS) + len(SWITCHES) + len(TEXTS) == len(LEAVES)


def refuses(key: str, values: Sequence[Any]) -> None:
    """Each of `values` at `key` gives one line that names the key and the value."""
    for value in values:
        text = refusal(changed(key, value))
        assert text.startswith(f"params.yaml: {key}: ")
        assert text.endswith(f"(got {value!r})")
        assert "\n" not in text


@pytest.mark.parametrize("key", LEAVES)
def test_no_key_takes_nothing_a_list_or_a_mapping(key: str) -> None:
    refuses(key, [*([] if key in MAY_BE_NULL else [None]), [], [1], {}, {"a": 1}])


@pytest.mark.parametrize("key", NUMBERS)
def test_a_number_is_neither_a_text_nor_a_switch_nor_endless(key: str) -> None:
    refuses(key, ["1", "many", True, float("nan"), float("inf")])


@pytest.mark.parametrize("key", WHOLE)
def test_a_count_is_never_a_fraction(key: str) -> None:
    refuses(key, [2.5, 4.0])


@pytest.mark.parametrize("key", SWITCHES)
def test_a_switch_is_true_or_false(key: str) -> None:
    refuses(key, ["yes", "true", 1, 0, 1.0])


@pytest.mark.parametrize("key", TEXTS)
def test_a_name_is_a_text(key: str) -> None:
    refuses(key, [1, 1.5, True])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", -1),
        ("boards.heldout_fraction", 0.0),
        ("boards.heldout_fraction", 1.0),
        ("policy.nano.layers", 0),
        ("policy.nano.vocabulary", 299),
        ("policy.warm_start.updates", -1),
        ("policy.warm_start.lr", 0.0),
        ("rollout.engine", "steam"),
        ("rollout.max_new_tokens", 0),
        ("rollout.temperature", 0.0),
        ("rollout.top_p", 1.1),
        ("rollout.top_k", -1),
        ("evaluate.samples", 0),
        ("evaluate.games", -1),
        ("train.algorithm", "ppo"),
        ("train.steps", 0),
        ("train.group_size", 1),
        ("train.lr", -1e-6),
        ("train.lr_final", 1.5),
        ("train.clip_low", 1.0),
        ("train.clip_high", 0.0),
        ("train.kl_coefficient", -1e-3),
        ("train.overlong", "drop"),
        ("train.old_logprobs", "both"),
        ("train.engine_ratio_cap", 0.99),
        ("train.max_grad_norm", 0.0),
        ("train.save_every", 0),
        ("compare.confidence", 1.0),
        ("machine.threads", 0),
    ],
)
def test_a_value_outside_its_range_is_named_with_its_key(key: str, value: Any) -> None:
    refuses(key, [value])


@pytest.mark.parametrize("key", LEAVES)
def test_a_misspelt_key_is_named_with_the_nearest_known_one_and_the_missing_one(key: str) -> None:
    whole = changed(key + "x", LEAVES[key])
    node = whole
    *sections, name = key.split(".")
    for section in sections:
        node = node[section]
    del node[name]
    lines = refusal(whole).splitlines()
    assert sorted(lines) == sorted(
        [f"params.yaml: {key}: is missing", f"params.yaml: {key}x: there is no such key; the nearest is {key}"]
    )


@pytest.mark.parametrize("section", [name for name, value in TREE.items() if isinstance(value, dict)])
def test_a_section_that_is_missing_or_no_mapping_is_named(section: str) -> None:
    whole = tree()
    del whole[section]
    assert refusal(whole) == f"params.yaml: {section}: is missing"
    for value in (None, 3, "many", [1]):
        text = refusal(tree() | {section: value})
        assert text.startswith(f"params.yaml: {section}: ")
        assert text.endswith(f"(got {value!r})")


@pytest.mark.parametrize("whole", [None, 3, "text", [1, 2]], ids=repr)
def test_a_file_that_is_no_mapping_is_refused(whole: Any) -> None:
    assert refusal(whole).startswith("params.yaml: the file: ")


def test_every_mistake_of_a_file_is_reported_at_once() -> None:
    whole = changed("train.steps", "many") | {"seed": -1}
    assert [line.split(": ")[1] for line in refusal(whole).splitlines()] == ["seed", "train.steps"]


@pytest.mark.parametrize("key", ["train.lr", "train.lr_final", "train.entropy_bonus", "train.weight_decay"])
def test_a_whole_number_is_fine_where_a_float_is_wanted(key: str) -> None:
    section, name = key.split(".")
    value = getattr(getattr(parse_params(changed(key, 0), ""), section), name)
    assert value == 0.0
    assert type(value) is float


def test_reading_leaves_the_mapping_as_it_was() -> None:
    whole = changed("train.lr", 0)
    before = copy.deepcopy(whole)
    parse_params(whole, "")
    assert whole == before
    assert type(whole["train"]["lr"]) is int


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 130}, "hidden_size must be an even multiple of heads (got 130 and 4)"),
        ({"hidden_size": 12}, "hidden_size must be an even multiple of heads (got 12 and 4)"),
        ({"kv_heads": 3}, "heads must be a multiple of kv_heads (got 4 and 3)"),
    ],
    ids=["no multiple", "odd", "kv_heads"],
)
def test_widths_that_do_not_fit_together_are_named(change: dict[str, int], message: str) -> None:
    whole = changed("policy.nano.heads", 4)
    whole["policy"]["nano"].update(change)
    assert refusal(whole) == f"params.yaml: policy.nano: {message}"


def test_weights_for_an_engine_whose_own_numbers_are_the_old_ones_are_refused() -> None:
    whole = changed("train.engine_ratio_cap", 2)
    assert refusal(whole) == (
        "params.yaml: train: engine_ratio_cap=2 with old_logprobs=engine would weight every reply with exactly 1; "
        "set old_logprobs to trainer, or engine_ratio_cap to null"
    )
    whole["train"]["old_logprobs"] = "trainer"
    assert parse_params(whole, "").train.engine_ratio_cap == 2.0


# What is null is the preset's


def test_the_default_run_has_the_numbers_that_it_was_measured_with() -> None:
    # As they stood in params.yaml, for nano, when docs/LOG.md of the CPU loop was written.
    params = load_params(PROJECT)
    assert params.policy.source == "nano"
    assert params.policy.warm_start.model_dump() == {"updates": 1000, "batch_size": 64, "lr": 2e-3}
    rollout, train = params.rollout, params.train
    assert (rollout.engine, rollout.max_new_tokens, rollout.thinking) == ("torch", 32, True)
    assert (train.lr, train.clip_low, train.clip_high, train.kl_coefficient) == (4e-4, 0.005, 0.005, 0.1)
    assert (train.old_logprobs, train.micro_batch_replies, train.engine_gap_limit) == ("engine", 128, 1e-3)


@pytest.mark.parametrize("key", preset_keys())
def test_a_null_is_the_presets_value_and_a_value_of_ones_own_wins(key: str) -> None:
    for value, expected in ((None, "qwen3-0.6b"), (presets()["ling-3.0-tiny"].params[key], "ling-3.0-tiny")):
        whole = changed(key, value)
        whole["policy"]["source"] = "qwen3-0.6b"
        assert leaves(parse_params(whole, "").model_dump())[key] == presets()[expected].params[key]


@pytest.mark.parametrize("source", list(presets()))
def test_switching_the_source_alone_gives_valid_parameters(source: str) -> None:
    found = leaves(parse_params(changed("policy.source", source), "").model_dump())
    assert {key: found[key] for key in preset_keys()} == dict(presets()[source].params)


def test_a_source_without_preset_says_which_keys_it_must_give_or_takes_those_of_another() -> None:
    whole = changed("policy.source", "someone/model")
    whole["train"]["lr"] = 1e-6
    said = refusal(whole)
    assert said.startswith("params.yaml: policy.source: 'someone/model' is no preset, so nothing says what is null: ")
    named = said.split("null: ")[1].split(";")[0].split(", ")
    assert named == [key for key in known_keys() if key in preset_keys() and key != "train.lr"]
    whole["policy"]["like"] = "qwen3-0.6b"
    params = parse_params(whole, "")
    assert (params.train.lr, params.train.clip_high) == (1e-6, presets()["qwen3-0.6b"].params["train.clip_high"])


@pytest.mark.parametrize(
    ("source", "like", "said"),
    [
        ("nanno", None, "policy.source: there is no preset 'nanno' (did you mean nano?)"),
        ("./nowhere", None, "policy.source: there is no preset './nowhere', and no such folder"),
        ("someone/model", "nanno", "policy.like: there is no preset 'nanno'; known presets: nano, smollm2-135m"),
        ("nano", "qwen3-0.6b", "policy.like: 'nano' has values of its own (nano); leave policy.like null"),
    ],
)
def test_a_source_that_cannot_be_is_one_line(source: str, like: str | None, said: str) -> None:
    whole = changed("policy.source", source)
    whole["policy"]["like"] = like
    assert refusal(whole).startswith(f"params.yaml: {said}")
    assert "\n" not in refusal(whole)


def test_the_resolved_text_says_every_value_and_keeps_the_comments(tmp_path: Path) -> None:
    text = resolved_text(PROJECT)
    assert leaves(YAML(typ="safe").load(text)) == leaves(load_params(PROJECT).model_dump())
    assert [line.split("#")[1:] for line in text.splitlines()] == [
        line.split("#")[1:] for line in PROJECT.read_text(encoding="utf-8").splitlines()
    ]
    other = write(tmp_path, "  source: nano ", "  source: smollm2-135m ")
    assert YAML(typ="safe").load(resolved_text(other))["train"]["lr"] == presets()["smollm2-135m"].params["train.lr"]


def test_reading_parameters_loads_neither_torch_nor_transformers() -> None:
    code = "import sys, tuneloop.params as p; p.load_params(sys.argv[1]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(PROJECT)], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers"} & set(done.stdout.split())


# The file


def write(folder: Path, old: str, new: str) -> Path:
    text = PROJECT.read_text(encoding="utf-8")
    assert old in text
    path = folder / "params.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


@pytest.mark.parametrize("text", ["0", "1e-4", "1E-4", ".5", "2.0e-3"])
def test_floats_may_be_written_as_people_write_them(tmp_path: Path, text: str) -> None:
    lr = next(line for line in PROJECT.read_text(encoding="utf-8").splitlines() if line.startswith("  lr: "))
    assert load_params(write(tmp_path, lr, f"  lr: {text}")).train.lr == float(text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"params\.yaml: cannot be read \(No such file or directory\)"):
        load_params(tmp_path / "params.yaml")


@pytest.mark.parametrize("text", ["seed: [1", "seed: 1\nseed: 2\n", "\tseed: 1", "a: b: c"])
def test_broken_yaml_is_one_line_that_names_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(UserError, match=r"params\.yaml: is not valid YAML: ") as error:
        load_params(tmp_path / "params.yaml")
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_bytes(b"seed: \xff")
    with pytest.raises(UserError, match=r"params\.yaml: is not valid YAML"):
        load_params(tmp_path / "params.yaml")


@pytest.mark.parametrize("key", [1, 2.5, None])
def test_a_key_that_is_no_text_is_refused(key: Any) -> None:
    assert refusal(tree() | {key: 1}).startswith(f"params.yaml: {key}: ")
