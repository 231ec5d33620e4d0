"""Base policies from folders and from the hub's cache: what is missing is said before any work, what is there is
taken as it is. The model is a random one of a few thousand parameters with nano's tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from policies.tiny_models import drawn
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from stages import policy as policy_stage
from tuneloop.artifacts import read_json, write_jsonl
from tuneloop.errors import UserError
from tuneloop.params import PolicyParams
from tuneloop.policies.card import PolicyCard, load_policy_card
from tuneloop.policies.catalogue import build_policy, copy_policy, policy_card, reply_text, weights_folder
from tuneloop.policies.hub import parameter_count, require_disk
from tuneloop.policies.nano import nano_tokenizer
from tuneloop.policies.policy import load_policy
from tuneloop.policies.presets import presets
from tuneloop.tasks import load_task
from tuneloop.tasks.contract import Demonstration
from tuneloop.toolcalls import Reasoning

TASK = load_task("tictactoe")
RECORDS = TASK.generate(30, 1)
CPU = torch.device("cpu")
THINK, OPENED = Reasoning("<think>", "</think>"), Reasoning("<think>", "</think>", opened_by_prompt=True)
VALUES = {"warm_start.updates": 0, "warm_start.batch_size": 4, "warm_start.lr": 1e-3}


def tiny() -> PreTrainedModel:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=300, num_key_value_heads=1, head_dim=8, eos_token_id=0, **sizes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder as people have them: weights in bfloat16, the end of a turn not among the model's end tokens."""
    made = tmp_path / "model"
    tokenizer = nano_tokenizer([], 300)
    model = drawn(tiny, dtype=torch.bfloat16)
    assert model.generation_config.eos_token_id != tokenizer.eos_token_id
    model.save_pretrained(made)
    tokenizer.save_pretrained(made)
    (made / "README.txt").write_text("words")
    (made / "weights.bin").write_bytes(b"the same weights once more")
    return made


@pytest.fixture(scope="session")
def params(tiny_params: Callable) -> Callable[..., PolicyParams]:
    """`policy` parameters for a source, without warm start."""

    def made(source: object, **changes: object) -> PolicyParams:
        values = VALUES | {"source": str(source)} | changes
        return tiny_params({f"policy.{key}": value for key, value in values.items()} | GIVEN).policy

    return made


GIVEN = {"rollout.engine": "torch", "train.old_logprobs": "engine", "train.micro_batch_replies": 8}
GIVEN |= {"train.dtype": "float32", "train.lora.rank": 0}
"""What the tiny parameters leave to the preset, which a folder has not."""


def test_a_model_without_warm_start_is_copied_byte_for_byte(folder: Path, params: Callable, tmp_path: Path) -> None:
    out = tmp_path / "out"
    copy_policy(weights_folder(params(folder)), params(folder), True, out)
    same = {"model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert all((out / name).read_bytes() == (folder / name).read_bytes() for name in same)
    assert not (out / "weights.bin").exists()
    assert load_policy_card(out) == PolicyCard(str(folder), "hermes", THINK, thinking=True)


def test_what_ends_a_reply_is_the_end_of_a_turn_first_then_what_the_model_says(
    folder: Path, params: Callable, tmp_path: Path
) -> None:
    copy_policy(folder, params(folder), True, tmp_path / "out")
    copied, built = load_policy(tmp_path / "out"), build(params(folder)).policy
    end = copied.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert copied.end_ids == built.end_ids == [end, 0]


def build(params: PolicyParams, thinking: bool = True):
    return build_policy(params, TASK, RECORDS, thinking=thinking, max_new_tokens=60, seed=3, device=CPU)


def test_a_built_policy_is_float32_with_the_folders_numbers(folder: Path, params: Callable) -> None:
    built = build(params(folder))
    stored = drawn(tiny, dtype=torch.bfloat16)
    assert built.losses == []
    for ours, theirs in zip(built.policy.model.parameters(), stored.parameters(), strict=True):
        assert ours.dtype == torch.float32
        assert torch.equal(ours, theirs.float())


def test_a_warm_start_trains_any_source(folder: Path, params: Callable) -> None:
    built = build(params(folder, **{"warm_start.updates": 12, "warm_start.batch_size": 8, "warm_start.lr": 3e-2}))
    assert len(built.losses) == 12
    assert built.losses[-1] < built.losses[0] - 1


def test_a_policy_like_a_preset_takes_its_dialect_and_markers(folder: Path, params: Callable) -> None:
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "{% if add_generation_prompt and enable_thinking %}<think>{% endif %}")
    tokenizer = nano_tokenizer([], 300)
    tokenizer.chat_template = template.read_text()
    like = params(folder, like="ling-3.0-tiny")
    assert policy_card(like, tokenizer, True) == PolicyCard(str(folder), "glm", OPENED, True)
    assert policy_card(like, tokenizer, False) == PolicyCard(str(folder), "glm", THINK, False)
    # Without a preset who opens the reasoning is seen in the prompt, and a named dialect wins over a guess.
    assert policy_card(params(folder), tokenizer, True) == PolicyCard(str(folder), "hermes", OPENED, True)
    assert policy_card(params(folder, dialect="llama"), tokenizer, True).dialect == "llama"


def test_a_template_without_reasoning_markers_means_no_reasoning(folder: Path, params: Callable) -> None:
    tokenizer = nano_tokenizer([], 300)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    assert policy_card(params(folder), tokenizer, True) == PolicyCard(str(folder), "plain", None, True)


def test_a_template_that_opens_the_reasoning_otherwise_than_its_preset_says_is_refused(
    folder: Path, params: Callable
) -> None:
    with pytest.raises(UserError, match=r"thinking=true .* does not write <think> .* the preset ling-3\.0-tiny says"):
        policy_card(params(folder, like="ling-3.0-tiny"), nano_tokenizer([], 300), True)


def test_demonstrations_are_written_as_the_policy_would_reply() -> None:
    shown = Demonstration(RECORDS[0], "look", "call")
    texts = {
        "<think>\nlook\n</think>\ncall": PolicyCard("x", "plain", THINK, True),
        "look\n</think>\ncall": PolicyCard("x", "plain", OPENED, True),
    }
    for text, card in texts.items():
        assert reply_text(shown, card) == text
    # With thinking switched off, or without markers, there is no reasoning to show.
    assert reply_text(shown, PolicyCard("x", "plain", THINK, False)) == "call"
    assert reply_text(shown, PolicyCard("x", "plain", None, True)) == "call"


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_folder_that_lacks_a_file_is_refused_by_its_name(folder: Path, params: Callable, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(UserError, match=f"is not a complete Hugging Face model folder: it lacks {missing}"):
        weights_folder(params(folder))


def test_a_shard_that_is_not_there_is_named(folder: Path, params: Callable) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"it lacks model-00002-of-00002\.safetensors$"):
        weights_folder(params(folder))


# The hub's cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "hub"


def test_a_hub_model_that_is_missing_says_how_to_get_it_and_what_it_needs(cache: Path, params: Callable) -> None:
    with pytest.raises(UserError) as error:
        weights_folder(params("qwen3-0.6b"))
    origin, needs = presets()["qwen3-0.6b"].origin, presets()["qwen3-0.6b"].needs
    said = str(error.value)
    assert f"\n    hf download {origin.name} --revision {origin.revision}\n" in said
    assert "HF_HUB_OFFLINE=0" in said
    assert f"{needs.download:g} GB to download" in said
    assert f"{needs.disk:g} GB of disk, and {needs.memory:g} GB of memory" in said
    with pytest.raises(UserError, match=r"hf download someone/model --revision v2\n"):
        weights_folder(params("someone/model", revision="v2"))


def test_a_hub_model_in_the_cache_is_found_at_its_revision_and_a_partial_one_is_missing(
    cache: Path, folder: Path, params: Callable
) -> None:
    commit = presets()["qwen3-0.6b"].origin.revision
    snapshot = cache / "models--Qwen--Qwen3-0.6B" / "snapshots" / commit
    shutil.copytree(folder, snapshot)
    assert weights_folder(params("qwen3-0.6b")) == snapshot
    with pytest.raises(UserError, match="not on this machine"):
        weights_folder(params("qwen3-0.6b", revision="f" * 40))
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"not on this machine \(missing: model\.safetensors\)"):
        weights_folder(params("qwen3-0.6b"))


def test_too_little_disk_is_said_with_the_numbers(tmp_path: Path) -> None:
    require_disk(1e-6, tmp_path / "not" / "made yet", "this")
    with pytest.raises(UserError, match=r"this takes about 1e\+09 GB of disk; \d+\.\d GB are free at " + str(tmp_path)):
        require_disk(1e9, tmp_path / "not" / "made yet", "this")


def test_a_local_folder_is_held_to_its_own_size_not_to_that_of_the_preset_it_is_like(
    folder: Path, params: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage(folder)._replace(free=10**9)  # ling-3.0-tiny itself takes 64
    monkeypatch.setattr(shutil, "disk_usage", lambda place: free)
    assert weights_folder(params(str(folder), like="ling-3.0-tiny")) == folder
    monkeypatch.setattr(shutil, "disk_usage", lambda place: free._replace(free=10**4))
    with pytest.raises(UserError, match=r"takes about .* GB of disk; 0\.0 GB are free"):
        weights_folder(params(str(folder), like="ling-3.0-tiny"))


# The stage


def test_the_policy_stage_takes_a_local_folder(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write_params: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = VALUES | {"source": "model"}
    write_params(tmp_path, {f"policy.{key}": value for key, value in values.items()} | GIVEN)
    write_jsonl(tmp_path / "data/boards/train.jsonl", RECORDS)
    monkeypatch.chdir(tmp_path)
    assert policy_stage.main() == 0
    count = sum(p.numel() for p in tiny().parameters())
    # 256 bytes, 3 special tokens, 4 markers.
    assert read_json("data/policy/metrics.json") == {"parameters": count, "vocabulary": 263, "warm_start_loss": None}
    assert parameter_count(Path("data/policy/model")) == count
    assert load_policy("data/policy/model").card.source == "model"
    # Far below an hour: nothing to warn of.
    assert "hours" not in capsys.readouterr().out
