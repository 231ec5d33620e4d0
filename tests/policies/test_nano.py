"""The built-in policy: its tokenizer, its template, its weights, and that building it repeats byte for byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from tuneloop.errors import UserError
from tuneloop.params import PolicyParams, load_params
from tuneloop.policies.catalogue import build_policy
from tuneloop.policies.nano import MARKERS, nano_model, nano_tokenizer
from tuneloop.policies.policy import Policy, load_policy, save_policy
from tuneloop.tasks import load_task
from tuneloop.toolcalls import ToolCall, load_dialect, read_reply

PARAMS = Path(__file__).parents[2] / "params.yaml"
TASK = load_task("tictactoe")
SEED = 2026


def short(params: PolicyParams) -> PolicyParams:
    """The pipeline's own numbers, but for a warm start of two updates of eight demonstrations."""
    return params.model_copy(
        update={"warm_start": params.warm_start.model_copy(update={"updates": 2, "batch_size": 8})}
    )


def build(seed: int) -> Policy:
    params = load_params(PARAMS)
    return build_policy(
        short(params.policy),
        TASK,
        TASK.generate(200, 1),
        thinking=True,
        max_new_tokens=params.rollout.max_new_tokens,
        seed=seed,
        device=torch.device("cpu"),
    ).policy


ONE_BUILD = f"""
import sys, torch
sys.path.insert(0, {str(Path(__file__).parent)!r})
torch.set_num_threads(1)
from test_nano import SEED, build, save_policy
save_policy(build(SEED), sys.argv[1])
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """The same build in two processes that hash texts differently, and in a third under another seed."""
    root = tmp_path_factory.mktemp("nano")
    ours = os.environ.get("PYTHONHASHSEED")
    child = subprocess.Popen(
        [sys.executable, "-c", ONE_BUILD, str(root / "again")],
        env=os.environ | {"PYTHONHASHSEED": "2" if ours == "1" else "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        save_policy(build(SEED), root / "once")
        save_policy(build(SEED + 1), root / "other seed")
    finally:
        torch.set_num_threads(threads)
        _, errors = child.communicate(timeout=120)
    assert child.returncode == 0, errors
    yield {name: root / name for name in ("once", "again", "other seed")}


@pytest.fixture(scope="module")
def policy(folders: dict[str, Path]) -> Policy:
    return load_policy(folders["once"])


def test_two_builds_in_two_processes_write_the_same_bytes(folders: dict[str, Path]) -> None:
    names = sorted(path.name for path in folders["once"].iterdir())
    assert {"model.safetensors", "tokenizer.json", "tuneloop.json", "config.json"} <= set(names)
    for name in names:
        assert (folders["once"] / name).read_bytes() == (folders["again"] / name).read_bytes(), name


def test_another_seed_gives_other_weights(folders: dict[str, Path]) -> None:
    once, other = (folders[name] / "model.safetensors" for name in ("once", "other seed"))
    assert once.read_bytes() != other.read_bytes()


def test_weights_are_drawn_from_the_seed_and_leave_the_global_generator_alone() -> None:
    params = load_params(PARAMS).policy.nano
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    once, again, other = (nano_model(params, 300, 0, 1, seed).lm_head.weight for seed in (9, 9, 10))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(once, again) and not torch.equal(once, other)


def test_it_has_about_a_million_parameters(policy: Policy) -> None:
    # DESIGN: "about 1 M parameters"; the band is the one its smallness is sold by.
    assert 0.5e6 < sum(p.numel() for p in policy.model.parameters()) < 1.2e6
    assert len(policy.tokenizer) <= load_params(PARAMS).policy.nano.vocabulary
    assert policy.model.config.vocab_size == len(policy.tokenizer)


def test_saving_and_loading_gives_the_same_logits(policy: Policy, tmp_path: Path) -> None:
    save_policy(policy, tmp_path)
    again = load_policy(tmp_path)
    ids = torch.arange(60)[None]
    assert torch.equal(again.model(ids).logits, policy.model(ids).logits)
    assert again.card == policy.card


def test_plain_transformers_loads_the_folder(policy: Policy, folders: dict[str, Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(folders["once"])
    tokenizer = AutoTokenizer.from_pretrained(folders["once"])
    text = policy.prompt_text(TASK.messages(TASK.parse("X.O/.../...")), TASK.tools)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids == policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert torch.equal(model(torch.tensor([ids])).logits, policy.model(torch.tensor([ids])).logits)
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == (
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
    )
    assert tokenizer.chat_template == policy.tokenizer.chat_template


@given(st.text())
@example("  \n\n 5 5\r\n\t12 ３ é é \u2028\U0001f600\x00")
@example("<think>\n<tool_call>\n</tool_call><|im_end|> <|im_start|>user")
@settings(max_examples=150, deadline=None, derandomize=True)
def test_any_text_round_trips(policy: Policy, text: str) -> None:
    ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert policy.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


@given(st.text(), st.integers(1, 9), st.text())
@example("", 5, "X 6.")
@example("12", 3, "3")
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_digit_is_one_token_with_its_leading_space_wherever_it_stands(
    policy: Policy, before: str, digit: int, after: str
) -> None:
    text = f"{before} {digit}{after}"
    (alone,) = policy.tokenizer(f" {digit}", add_special_tokens=False)["input_ids"]
    ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    # The mark of a cell may be in the same token as its number.
    assert alone in ids or f" {digit}{after[:1]}" in (policy.tokenizer.decode([token]) for token in ids)


def test_every_marker_is_one_token(policy: Policy) -> None:
    for marker in MARKERS:
        assert len(policy.tokenizer(marker, add_special_tokens=False)["input_ids"]) == 1, marker


def test_a_prompt_takes_a_few_dozen_tokens(policy: Policy) -> None:
    # With too small a vocabulary no merge reaches the tool's text, and a prompt takes 250.
    prompts = [policy.prompt_ids(TASK.messages(r), TASK.tools) for r in TASK.generate(50, 3)]
    assert max(map(len, prompts)) < 64
    assert len({tuple(prompt) for prompt in prompts}) == 50


CALL = ToolCall("choose_square", {"square": 5})


def test_the_template_writes_tools_calls_and_results(policy: Policy) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    messages = [
        {"role": "system", "content": "Rules."},
        {"role": "user", "content": "Play."},
        {"role": "assistant", "content": "Well.", "tool_calls": [load_dialect("hermes").history(CALL)]},
        {"role": "tool", "content": "done"},
    ]
    # Written out by hand from the ChatML convention of Qwen's templates.
    assert policy.prompt_text(messages, [tool]) == (
        "<|im_start|>system\nRules.\nTools, one JSON a line:\n<tools>\n"
        f"{json.dumps(tool)}\n</tools>\nA call is written as\n"
        '<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nPlay.<|im_end|>\n"
        '<|im_start|>assistant\nWell.\n<tool_call>\n{"name": "choose_square", "arguments": {"square": 5}}\n</tool_call>'
        "<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\ndone\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_call_in_the_history_is_written_as_the_policy_writes_it(policy: Policy) -> None:
    dialect = load_dialect("hermes")
    calls = [CALL, ToolCall("choose_square", {"square": 9})]
    message = {"role": "assistant", "content": "", "tool_calls": [dialect.history(call) for call in calls]}
    text = policy.prompt_text([{"role": "user", "content": "Play."}, message], [])
    assert f"assistant\n{dialect.render(calls[0])}\n{dialect.render(calls[1])}<|im_end|>" in text
    assert read_reply(dialect.render(CALL), dialect, TASK.tools, policy.card.reasoning) == CALL


def test_the_thinking_switch_closes_the_reasoning_in_the_prompt(policy: Policy) -> None:
    messages = TASK.messages(TASK.parse("X.O/.../..."))

    def written(**switch: bool) -> str:
        return policy.tokenizer.apply_chat_template(
            messages, tools=TASK.tools, add_generation_prompt=True, tokenize=False, **switch
        )

    on, off = written(enable_thinking=True), written(enable_thinking=False)
    assert on.endswith("<|im_start|>assistant\n") and off == on + "<think>\n\n</think>\n"
    assert written() == on == policy.prompt_text(messages, TASK.tools)


def test_a_tokenizer_is_trained_on_texts_in_any_order() -> None:
    texts = [f"square {i} is free, or so it seems" for i in range(30)]
    forward, backward = (nano_tokenizer(order, 320).backend_tokenizer.to_str() for order in (texts, texts[::-1]))
    assert forward == backward


def test_a_source_that_is_not_in_the_catalogue_is_a_user_error() -> None:
    params = load_params(PARAMS).policy.model_copy(update={"source": "nanno"})
    with pytest.raises(UserError, match=r"'nanno'.*nano"):
        build_policy(params, TASK, [], thinking=True, max_new_tokens=8, seed=0, device=torch.device("cpu"))
