"""The policy and the boards that both sides of the benchmark start from: one ordinary Hugging Face folder.

    python -m bench.step_policy FOLDER RESULT      (started by bench.gspo_step and bench.cost_growth)

Weights are random. The tokenizer is nano's, trained on the task's prompts to a vocabulary at which they
take about 100 tokens; the model's vocabulary is that of its shape, and ids above the tokenizer's are drawn
like any others and decode to nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from bench.workload import ROOT, load_workload
from tuneloop.artifacts import write_json, write_jsonl
from tuneloop.params import load_params
from tuneloop.policies.card import PolicyCard
from tuneloop.policies.nano import nano_model, nano_tokenizer
from tuneloop.policies.policy import Policy, save_policy
from tuneloop.policies.prompt_tree import shared_prefix
from tuneloop.tasks import load_task
from tuneloop.toolcalls import Reasoning

TOKENIZER_VOCABULARY = 570
"""Fewer tokens make longer prompts: 320 make 394 of a prompt, 1,024 make 44."""


def main() -> int:
    folder, result = map(Path, sys.argv[1:])
    workload = load_workload(folder)
    task = load_task("tictactoe")
    records = task.generate(max(64, workload.boards), workload.seed)
    card = PolicyCard(workload.shape, "hermes", Reasoning("<think>", "</think>"), thinking=True)
    template = Policy(None, nano_tokenizer([], 300), card)
    texts = [template.prompt_text(task.messages(r), task.tools) for r in records]
    tokenizer = nano_tokenizer([*texts[:64], json.dumps(task.tools)], TOKENIZER_VOCABULARY)
    model = random_model(workload.shape, tokenizer.eos_token_id, tokenizer.pad_token_id, workload.seed)
    policy = Policy(model, tokenizer, card)
    save_policy(policy, folder / "policy")
    used, texts = records[: workload.boards], texts[: workload.boards]
    write_jsonl(folder / "boards.jsonl", used)
    write_json(folder / "prompts.json", texts)
    prompts = [policy.prompt_ids(task.messages(r), task.tools) for r in used]
    head = model.lm_head.weight.numel()
    write_json(
        result,
        {
            "prompt_tokens": [len(p) for p in prompts],
            "shared_prefix": shared_prefix(prompts),
            "positions": model.config.max_position_embeddings,
            "parameters": sum(p.numel() for p in model.parameters()),
            "body_parameters": sum(p.numel() for p in model.parameters()) - head,
            "head_parameters": head,
        },
    )
    return 0


def random_model(shape: str, end_id: int, pad_id: int, seed: int) -> PreTrainedModel:
    """A float32 model of the shape with weights drawn from `seed`; embedding and head are tied."""
    if shape == "nano":
        nano = load_params(ROOT / "params.yaml").policy.nano
        return nano_model(nano, nano.vocabulary, end_id, pad_id, seed)
    # The sizes of HuggingFaceTB/SmolLM2-135M's config.json.
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        initializer_range=0.041666666666666664,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end_id,
        pad_token_id=pad_id,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).float()


if __name__ == "__main__":
    sys.exit(main())
