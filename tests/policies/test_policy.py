"""Policy folders, reply texts and limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from policies.tiny_models import qwen3

from tuneloop.errors import UserError
from tuneloop.policies.card import PolicyCard, load_policy_card, save_policy_card
from tuneloop.policies.nano import nano_tokenizer
from tuneloop.policies.policy import Policy, load_policy, save_policy
from tuneloop.toolcalls import Reasoning

CARD = PolicyCard("tiny", "hermes", Reasoning("<think>", "</think>"), thinking=True)


@pytest.fixture
def policy() -> Policy:
    tokenizer = nano_tokenizer(["a few words"], 300)
    model = qwen3()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return Policy(model, tokenizer, CARD)


def test_a_prompt_that_just_leaves_room_for_the_reply_is_accepted(policy: Policy) -> None:
    # The tiny model has 256 positions.
    policy.require_room([0] * 200, 56, "record a")


def test_a_prompt_that_leaves_too_little_room_is_refused_with_the_numbers(policy: Policy) -> None:
    with pytest.raises(UserError, match=r"record a: .*201 tokens.*max_new_tokens=56.*256 positions"):
        policy.require_room([0] * 201, 56, "record a")


def test_a_replys_text_has_its_markers_but_not_the_end_token(policy: Policy) -> None:
    ids = policy.tokenizer("<think>\na\n</think>\nb", add_special_tokens=False)["input_ids"]
    end = policy.tokenizer.eos_token_id
    assert policy.decode(ids) == policy.decode([*ids, end]) == "<think>\na\n</think>\nb"
    # Only the last token can have ended the reply.
    assert policy.decode([end, *ids, end]) == "<|im_end|><think>\na\n</think>\nb"
    assert policy.decode([]) == policy.decode([end]) == ""


def test_end_tokens_are_all_that_the_model_names_else_the_tokenizers(policy: Policy) -> None:
    assert policy.end_ids == [policy.tokenizer.eos_token_id]
    policy.model.generation_config.eos_token_id = [2, 7]
    assert policy.end_ids == [2, 7]
    policy.model.generation_config.eos_token_id = None
    assert policy.end_ids == [policy.tokenizer.eos_token_id]


@pytest.mark.parametrize(
    "card",
    [
        CARD,
        PolicyCard("a/b", "glm", Reasoning("<think>", "</think>", opened_by_prompt=True), thinking=False),
        PolicyCard("folder", "plain", None, thinking=False),
    ],
)
def test_a_card_reads_back_equal(card: PolicyCard, tmp_path: Path) -> None:
    save_policy_card(card, tmp_path)
    assert load_policy_card(tmp_path) == card


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (None, "cannot be read"),
        ("{", "not valid JSON"),
        ("[]", "not a policy card"),
        (json.dumps({"source": "a", "dialect": "hermes", "thinking": True}), "'reasoning'"),
        (json.dumps({"source": "a", "dialect": "hermes", "thinking": True, "reasoning": {"start": "<"}}), "start"),
        (json.dumps({"source": "a", "dialect": "klingon", "thinking": True, "reasoning": None}), "klingon"),
    ],
)
def test_what_is_no_card_is_a_user_error(written: str | None, said: str, tmp_path: Path) -> None:
    if written is not None:
        (tmp_path / "tuneloop.json").write_text(written, encoding="utf-8")
    with pytest.raises(UserError, match=said):
        load_policy_card(tmp_path)


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_folder_without_one_of_its_files_is_a_user_error_that_names_it(
    policy: Policy, missing: str, tmp_path: Path
) -> None:
    save_policy(policy, tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(UserError, match=str(tmp_path)):
        load_policy(tmp_path)
