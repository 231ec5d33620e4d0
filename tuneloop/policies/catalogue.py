"""The catalogue: how the base policy named by `policy.source` is made."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import torch

from tuneloop.errors import UserError
from tuneloop.params import PolicyParams
from tuneloop.policies.card import PolicyCard
from tuneloop.policies.decoders import load_decoder
from tuneloop.policies.nano import nano_model, nano_tokenizer
from tuneloop.policies.policy import Policy
from tuneloop.policies.warm_start import warm_start
from tuneloop.tasks.contract import Demonstration, Record, Task
from tuneloop.toolcalls import Dialect, Reasoning, load_dialect

THINK = Reasoning("<think>", "</think>")
TOKENIZER_DEMONSTRATIONS = 3000
"""How many demonstrations nano's tokenizer is trained on: enough to see every phrase."""


@dataclass(frozen=True)
class Built:
    """A base policy, and the loss (nats a token) of every warm-start update."""

    policy: Policy
    losses: list[float]


def build_policy(
    params: PolicyParams,
    task: Task,
    records: Sequence[Record],
    *,
    thinking: bool,
    max_new_tokens: int,
    seed: int,
    device: torch.device,
    progress: Callable[[int, float], None] = lambda update, loss: None,
) -> Built:
    """The base policy for `task`, warm-started on demonstrations over `records` (training records
    only). Raises UserError for a source that is not in the catalogue."""
    if params.source != "nano":
        raise UserError(f"policy.source: there is no preset {params.source!r}; known presets: nano")
    dialect = load_dialect("hermes")
    updates, batch = params.warm_start.updates, params.warm_start.batch_size
    shown = task.demonstrations(records, max(updates * batch, TOKENIZER_DEMONSTRATIONS), seed, dialect.render)
    policy = _nano(params, task, records, shown[:TOKENIZER_DEMONSTRATIONS], thinking, seed, dialect)
    policy.model.to(device)
    examples = _examples(policy, task, shown[: updates * batch], max_new_tokens)
    losses = warm_start(load_decoder(policy.model), examples, batch, params.warm_start.lr, progress) if examples else []
    return Built(policy, losses)


def _nano(
    params: PolicyParams,
    task: Task,
    records: Sequence[Record],
    demonstrations: Sequence[Demonstration],
    thinking: bool,
    seed: int,
    dialect: Dialect,
) -> Policy:
    card = PolicyCard("nano", dialect.name, THINK, thinking)
    # The template writes the prompts that the tokenizer is trained on, so it comes first.
    template = nano_tokenizer([], 300)
    sample = Random(seed).sample(list(records), min(1000, len(records)))
    prompts = [Policy(None, template, card).prompt_text(task.messages(r), task.tools) for r in sample]
    replies = [reply_text(d, THINK) for d in demonstrations]
    tokenizer = nano_tokenizer([*prompts, *replies, json.dumps(task.tools)], params.nano.vocabulary)
    model = nano_model(params.nano, len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id, seed)
    return Policy(model, tokenizer, card)


def reply_text(demonstration: Demonstration, reasoning: Reasoning | None) -> str:
    """A demonstration as the policy would write it, without the end token."""
    if reasoning is None or demonstration.reasoning is None:
        return demonstration.content
    return f"{reasoning.open}\n{demonstration.reasoning}\n{reasoning.close}\n{demonstration.content}"


def _examples(
    policy: Policy, task: Task, demonstrations: Sequence[Demonstration], limit: int
) -> list[tuple[list[int], list[int]]]:
    """Prompt ids and reply ids; a reply longer than the limit is cut there, as a rollout would."""
    texts = [reply_text(demonstration, policy.card.reasoning) for demonstration in demonstrations]
    replies = policy.tokenizer(texts, add_special_tokens=False)["input_ids"]
    # Rendering a template costs more than all the rest: once a record.
    records = {d.record["id"]: d.record for d in demonstrations}
    prompts = {key: policy.prompt_ids(task.messages(record), task.tools) for key, record in records.items()}
    end = policy.tokenizer.eos_token_id
    return [(prompts[d.record["id"]], [*ids, end][:limit]) for d, ids in zip(demonstrations, replies)]
