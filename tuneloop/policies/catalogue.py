"""The catalogue: how the base policy named by `policy.source` is made."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from tuneloop.artifacts import read_json, write_json
from tuneloop.errors import UserError
from tuneloop.params import PolicyParams
from tuneloop.policies.card import PolicyCard, save_policy_card
from tuneloop.policies.chat import guess_dialect, turn_end
from tuneloop.policies.decoders import load_decoder
from tuneloop.policies.hub import FILES, hub_folder, require_complete, require_disk
from tuneloop.policies.nano import nano_model, nano_tokenizer
from tuneloop.policies.policy import Policy
from tuneloop.policies.presets import ReasoningRule, origin_of, preset_of
from tuneloop.policies.smollm2 import smollm2_folder
from tuneloop.policies.warm_start import warm_start
from tuneloop.tasks.contract import Demonstration, Episodes, Record, Task
from tuneloop.toolcalls import Dialect, Reasoning, load_dialect

THINK = ReasoningRule(open="<think>", close="</think>", opened_by_prompt="never", switch=None)
TOKENIZER_DEMONSTRATIONS = 3000
"""How many demonstrations nano's tokenizer is trained on: enough to see every phrase."""


@dataclass(frozen=True)
class Built:
    """A base policy, and the loss (nats a token) of every warm-start update."""

    policy: Policy
    losses: list[float]


def weights_folder(params: PolicyParams) -> Path | None:
    """The complete Hugging Face folder that `policy.source` starts from; None for what is built here.

    Says what is missing before any work: raises UserError for a model that is not on this machine, with the way to
    get it, for a folder that is not complete, and for too little free disk.
    """
    preset, origin = preset_of(params.source, params.like), origin_of(params.source, params.revision)
    needs = None if preset is None else preset.needs
    if isinstance(origin, Path):
        require_complete(origin)
        # Its own size counts, not that of the preset it is like: base and trained policy, in data/ and DVC's cache.
        size = sum(path.stat().st_size for path in origin.glob("*") if path.is_file()) / 1e9
        require_disk(4 * size, Path.cwd(), f"policy.source: {params.source}")
        return origin
    if origin.kind == "builder":
        return None
    folder = smollm2_folder(origin.revision) if origin.kind == "package" else hub_folder(origin, needs)
    if needs is not None:
        require_disk(needs.disk - needs.download, Path.cwd(), f"policy.source: {params.source}")
    return folder


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
    episodes: Episodes | None = None,
) -> Built:
    """The base policy for `task`, warm-started on demonstrations over `records` (training records
    only), those of whole `episodes` where it is to do the task in them. Raises UserError as `weights_folder` and
    `policy_card` do."""
    folder = weights_folder(params)
    updates, batch = params.warm_start.updates, params.warm_start.batch_size
    demonstrations = task.demonstrations if episodes is None else episodes.demonstrations
    if folder is None:
        dialect = load_dialect(params.dialect or preset_of(params.source).dialect)
        shown = demonstrations(records, max(updates * batch, TOKENIZER_DEMONSTRATIONS), seed, dialect.render)
        policy = _nano(params, task, records, shown[:TOKENIZER_DEMONSTRATIONS], thinking, seed, dialect)
    else:
        policy = _pretrained(folder, params, thinking)
        shown = demonstrations(records, updates * batch, seed, load_dialect(policy.card.dialect).render)
    policy.model.to(device)
    examples = _examples(policy, task, shown[: updates * batch], max_new_tokens)
    losses = warm_start(load_decoder(policy.model), examples, batch, params.warm_start.lr, progress) if examples else []
    return Built(policy, losses)


def copy_policy(folder: Path, params: PolicyParams, thinking: bool, out: Path) -> PreTrainedTokenizerBase:
    """Write the base policy into `out` as it is in `folder`, byte for byte in its own number format, for a source
    without warm start. Nothing but the tokenizer is loaded; it is returned. Raises UserError as `policy_card`."""
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    card = policy_card(params, tokenizer, thinking)
    out.mkdir(parents=True, exist_ok=True)
    for pattern in FILES:
        for path in folder.glob(pattern):
            shutil.copyfile(path, out / path.name)
    settings = out / "generation_config.json"
    told = read_json(settings) if settings.exists() else {}
    own = told.get("eos_token_id", read_json(folder / "config.json").get("eos_token_id"))
    write_json(settings, told | {"eos_token_id": _end_ids(own, tokenizer)})
    save_policy_card(card, out)
    return tokenizer


def policy_card(params: PolicyParams, tokenizer: PreTrainedTokenizerBase, thinking: bool) -> PolicyCard:
    """How to read the replies of a model with this tokenizer: as its preset says, else as its template shows.

    Raises UserError where a template shows no dialect (`policy.dialect` then says it), and where preset and
    template disagree about who opens the reasoning.
    """
    preset = preset_of(params.source, params.like)
    if preset is None:
        dialect = params.dialect or guess_dialect(tokenizer)
        rule = THINK if THINK.open in json.dumps(tokenizer.chat_template) else None
    else:
        dialect, rule = params.dialect or preset.dialect, preset.reasoning
    load_dialect(dialect)
    if rule is None:
        return PolicyCard(params.source, dialect, None, thinking)
    plain = PolicyCard(params.source, dialect, rule.markers(thinking), thinking)
    opened = _opens(Policy(None, tokenizer, plain), rule.open)
    if preset is not None and plain.reasoning.opened_by_prompt != opened:
        raise UserError(
            f"policy.source: with rollout.thinking={str(thinking).lower()} the chat template of {params.source} "
            f"{'writes' if opened else 'does not write'} {rule.open} where the reply starts, though the preset "
            f"{preset.name} says otherwise; set policy.revision to a commit that it fits, or correct presets.yaml"
        )
    return PolicyCard(params.source, dialect, Reasoning(rule.open, rule.close, opened_by_prompt=opened), thinking)


def _opens(policy: Policy, marker: str) -> bool:
    return policy.prompt_text([{"role": "user", "content": "Hello."}], []).rstrip().endswith(marker)


def _pretrained(folder: Path, params: PolicyParams, thinking: bool) -> Policy:
    """The model in `folder` with float32 weights, whatever number format they are stored in."""
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    card = policy_card(params, tokenizer, thinking)
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    except (OSError, ValueError, ImportError) as error:
        raise UserError(f"policy.source: {folder}: {' '.join(str(error).split())[:300]}") from None
    model.generation_config.eos_token_id = _end_ids(model.generation_config.eos_token_id, tokenizer)
    return Policy(model.eval(), tokenizer, card)


def _end_ids(own: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """What ends a reply: first the token with which the chat template ends an answer, then the model's own."""
    own = own if isinstance(own, list) else [own]
    found = [i for i in (turn_end(tokenizer), *own, tokenizer.eos_token_id) if i is not None]
    return list(dict.fromkeys(found))


def _nano(
    params: PolicyParams,
    task: Task,
    records: Sequence[Record],
    demonstrations: Sequence[Demonstration],
    thinking: bool,
    seed: int,
    dialect: Dialect,
) -> Policy:
    rule = preset_of(params.source).reasoning
    reasoning = None if rule is None else rule.markers(thinking)
    card = PolicyCard(params.source, dialect.name, reasoning, thinking)
    # The template writes the prompts that the tokenizer is trained on, so it comes first.
    template = nano_tokenizer([], 300)
    sample = Random(seed).sample(list(records), min(1000, len(records)))
    prompts = [Policy(None, template, card).prompt_text(task.messages(r), task.tools) for r in sample]
    prompts += [Policy(None, template, card).prompt_text(d.messages, task.tools) for d in demonstrations if d.messages]
    replies = [reply_text(d, card) for d in demonstrations]
    tokenizer = nano_tokenizer([*prompts, *replies, json.dumps(task.tools)], params.nano.vocabulary)
    model = nano_model(params.nano, len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id, seed)
    return Policy(model, tokenizer, card)


def reply_text(demonstration: Demonstration, card: PolicyCard) -> str:
    """A demonstration as the policy would write it, without the end token: with reasoning if it has markers and
    `rollout.thinking` is on, and without the opening one where its prompt wrote that."""
    if card.reasoning is None or not card.thinking or demonstration.reasoning is None:
        return demonstration.content
    opening = "" if card.reasoning.opened_by_prompt else f"{card.reasoning.open}\n"
    return f"{opening}{demonstration.reasoning}\n{card.reasoning.close}\n{demonstration.content}"


def _examples(
    policy: Policy, task: Task, demonstrations: Sequence[Demonstration], limit: int
) -> list[tuple[list[int], list[int]]]:
    """Prompt ids and reply ids; a reply longer than the limit is cut there, as a rollout would."""
    if not demonstrations:
        return []
    texts = [reply_text(demonstration, policy.card) for demonstration in demonstrations]
    replies = policy.tokenizer(texts, add_special_tokens=False)["input_ids"]
    # Rendering a template costs more than all the rest: once a record, or a conversation.
    asked = {_conversation_key(d): d for d in demonstrations}
    prompts = {key: policy.prompt_ids(d.messages or task.messages(d.record), task.tools) for key, d in asked.items()}
    end = policy.end_ids[0]
    return [(prompts[_conversation_key(d)], [*ids, end][:limit]) for d, ids in zip(demonstrations, replies)]


def _conversation_key(demonstration: Demonstration) -> str:
    return demonstration.record["id"] if demonstration.messages is None else json.dumps(demonstration.messages)
