"""The whole loop on the architecture, the prompt format and the dialect of Ling-3.0-tiny.

Its weights, tokenizer and chat template could not be had: the model here is tiny and random, of the same
architecture (`bailing_hybrid`), its tokenizer is trained on the task's texts, and `ling.jinja` beside this file is
written from a description of the template (role tags, thinking switch, format of a call); the wording around the
tools is ours.
"""

from __future__ import annotations

import copy
import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from policies.tiny_models import bailing_hybrid, drawn
from transformers import PreTrainedTokenizerFast

from stages import baseline, boards, policy, retest, train
from tuneloop.artifacts import read_jsonl
from tuneloop.params import LoraParams
from tuneloop.policies.adapters import adapted_layers, merged_state
from tuneloop.policies.card import PolicyCard, load_policy_card
from tuneloop.policies.model_decoder import ModelDecoder
from tuneloop.policies.nano import nano_tokenizer
from tuneloop.policies.policy import Policy, load_policy
from tuneloop.policies.presets import presets
from tuneloop.policies.prompt_tree import prompt_tree
from tuneloop.policies.scoring import reply_logprobs
from tuneloop.tasks import load_task
from tuneloop.toolcalls import Reasoning, ToolCall, load_dialect, read_reply
from tuneloop.training.lora import add_adapters

TASK = load_task("tictactoe")
BOARD = TASK.generate(1, 1)[0]
END = "<|role_end|>"
TAGS = ["<role>", "</role>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]
CALL = ToolCall("choose_square", {"square": 5})
WRITTEN = "<tool_call>choose_square\n<arg_key>square</arg_key>\n<arg_value>5</arg_value>\n</tool_call>"


def tokenizer() -> PreTrainedTokenizerFast:
    template = (Path(__file__).parent / "ling.jinja").read_text(encoding="utf-8")

    def with_template(made: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
        made.add_special_tokens({"eos_token": END})
        made.chat_template = template
        return made

    asking = Policy(None, with_template(nano_tokenizer([], 300)), PolicyCard("ling", "glm", None, True))
    records = TASK.generate(200, 3)
    prompts = [asking.prompt_text(TASK.messages(record), TASK.tools) for record in records]
    shown = TASK.demonstrations(records, 400, 3, load_dialect("glm").render)
    replies = [f"\n{demonstration.reasoning}\n</think>\n{demonstration.content}" for demonstration in shown]
    return with_template(nano_tokenizer([*prompts, *replies], 800))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder as the hub would give it: model, tokenizer, template; no card of ours."""
    made = tokenizer()
    torch.manual_seed(1)
    model = bailing_hybrid(
        vocab_size=len(made),
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        layer_group_size=2,
        head_dim=16,
        max_position_embeddings=512,
        eos_token_id=made.eos_token_id,
        pad_token_id=made.pad_token_id,
    )
    path = tmp_path_factory.mktemp("ling") / "Ling-3.0-tiny"
    made.save_pretrained(path)
    model.save_pretrained(path)
    return path


def test_the_prompt_opens_the_reasoning_or_closes_it_as_the_switch_says() -> None:
    texts = {
        thinking: Policy(None, tokenizer(), PolicyCard("ling", "glm", None, thinking)).prompt_text(
            [{"role": "user", "content": "Go."}], []
        )
        for thinking in (True, False)
    }
    # The source of both is the description of the template that the preset was written from.
    assert texts == {
        True: f"<role>SYSTEM</role>detailed thinking on{END}<role>HUMAN</role>Go.{END}<role>ASSISTANT</role><think>",
        False: f"<role>SYSTEM</role>detailed thinking off{END}<role>HUMAN</role>Go.{END}"
        "<role>ASSISTANT</role><think></think>",
    }


def test_the_template_writes_a_call_of_the_history_as_the_policy_writes_it() -> None:
    dialect = load_dialect("glm")
    text = Policy(None, tokenizer(), PolicyCard("ling", "glm", None, True)).prompt_text(
        [
            {"role": "user", "content": "Go."},
            {"role": "assistant", "content": "", "tool_calls": [dialect.history(CALL)]},
            {"role": "tool", "content": "done"},
        ],
        TASK.tools,
    )
    assert dialect.render(CALL) == WRITTEN
    assert f"<role>ASSISTANT</role>{WRITTEN}{END}" in text
    assert json.dumps(TASK.tools[0]["function"]["name"]) in text


@pytest.mark.parametrize(
    ("thinking", "text", "expected"),
    [
        (True, f"X has two in a row.</think>\n{WRITTEN}", CALL),
        (True, WRITTEN, "no_call"),  # still inside the reasoning that the prompt opened
        (True, f"{WRITTEN}</think>", "no_call"),
        (False, WRITTEN, CALL),
        (False, f"<think>hm</think>{WRITTEN}", CALL),
        (False, f"<think>{WRITTEN}", "no_call"),
    ],
)
def test_a_reply_is_read_from_where_the_prompt_left_off(thinking: bool, text: str, expected: ToolCall | str) -> None:
    reasoning = presets()["ling-3.0-tiny"].reasoning.markers(thinking)
    assert reasoning == Reasoning("<think>", "</think>", opened_by_prompt=thinking)
    reading = read_reply(text, load_dialect("glm"), TASK.tools, reasoning)
    assert (reading if isinstance(reading, ToolCall) else reading.name) == expected


@pytest.fixture
def here(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_params: Callable[..., None]
) -> Callable[..., Path]:
    """`here({"train.steps": 2})`: a workspace whose policy comes from the folder, through the transformers engine."""

    def begin(changes: Mapping[str, Any]) -> Path:
        ours = {
            "policy.source": str(folder),
            "policy.like": "ling-3.0-tiny",
            "rollout.engine": "transformers",
            "evaluate.samples": 1,
            "evaluate.games": 0,
        }
        write_params(tmp_path, ours | dict(changes))
        monkeypatch.chdir(tmp_path)
        return tmp_path / "data"

    return begin


def test_the_loop_runs_from_a_local_folder_to_a_retest(here: Callable[..., Path]) -> None:
    data = here(
        {
            "policy.warm_start.updates": 50,
            "policy.warm_start.batch_size": 8,
            "policy.warm_start.lr": 2e-2,
            "rollout.thinking": True,
            "rollout.max_new_tokens": 24,
            "train.steps": 2,
            "train.boards_per_step": 8,
            "train.evaluate_every": 2,
        }
    )
    for stage in (boards, policy, baseline, train, retest):
        assert stage.main() == 0

    card = load_policy_card(data / "policy" / "model")
    assert (card.dialect, card.reasoning.opened_by_prompt) == ("glm", True)
    assert load_policy(data / "train" / "policy").model.config.model_type == "bailing_hybrid"
    with open(data / "train" / "history.csv", encoding="utf-8") as file:
        steps = list(csv.DictReader(file))
    assert len(steps) == 2
    assert all(float(row["weights_changed"]) > 0.5 for row in steps)
    # float32 on both sides; the linear attention is computed in chunks in one and token by token in the other.
    assert all(0 < float(row["engine_gap_mean"]) < 1e-4 for row in steps)
    before, after = (read_jsonl(data / name / "replies.jsonl") for name in ("baseline", "retest"))
    assert [(row["id"], row["prompt_hash"]) for row in before] == [(row["id"], row["prompt_hash"]) for row in after]
    # The calls of its dialect are read.
    assert {row["outcome"] for row in after} & {"occupied", "legal", "optimal", "win"}


def test_without_thinking_a_folder_is_evaluated_as_it_is(folder: Path, here: Callable[..., Path]) -> None:
    data = here({"policy.warm_start.updates": 0, "rollout.thinking": False, "rollout.max_new_tokens": 4})
    for stage in (boards, policy, baseline):
        assert stage.main() == 0
    model = data / "policy" / "model"
    assert (model / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert not load_policy_card(model).reasoning.opened_by_prompt
    assert load_policy(model).prompt_text(TASK.messages(BOARD), TASK.tools).endswith("<think></think>")
    assert len(read_jsonl(data / "baseline" / "replies.jsonl")) == 2 * len(
        read_jsonl(data / "boards" / "heldout.jsonl")
    )


def test_adapters_on_attention_and_on_the_stacked_experts_train_and_merge() -> None:
    model = drawn(bailing_hybrid, dtype=torch.float32)
    plain = copy.deepcopy(model)
    tree = prompt_tree([[5, 9, 1], [5, 9, 8, 3]], [[[1, 4], [3]], [[4, 4, 4], [6]]])
    before, _ = reply_logprobs(ModelDecoder(model), tree)
    add_adapters(model, LoraParams(rank=2, alpha=4), presets()["ling-3.0-tiny"].lora, seed=1)
    decoder = ModelDecoder(model)
    assert torch.equal(reply_logprobs(decoder, tree)[0], before)  # B is 0
    # KDA's and MLA's projections, the dense and the shared MLP, and the experts, which peft wraps as a whole:
    # once for each of their two stacked weights.
    adapted = {name.removeprefix("model.layers.") for name in adapted_layers(model)}
    assert {"0.self_attn.q_proj", "0.mlp.up_proj", "1.mlp.shared_experts.down_proj", "1.mlp.experts"} < adapted
    assert {"1.mlp.experts.base_layer", "2.self_attn.q_a_proj", "2.self_attn.kv_b_proj"} < adapted
    assert not any("gate" in name.rpartition(".")[2] and "gate_proj" not in name for name in adapted)

    reply_logprobs(decoder, tree)[0].sum().backward()
    found = {name: p.grad is not None for name, p in model.named_parameters() if p.requires_grad}
    assert all(found.values()) and all("lora_" in name for name in found)
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.add_(0.1)
        adapted_logprobs, _ = reply_logprobs(decoder, tree)
        plain.load_state_dict(merged_state(model))
        merged, _ = reply_logprobs(ModelDecoder(plain), tree)
    assert (adapted_logprobs - before).abs().max() > 0.01
    assert (merged - adapted_logprobs).abs().max() < 1e-4
