"""A policy: a transformers model, its tokenizer, and the card that says how to read its replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from tuneloop.errors import UserError
from tuneloop.policies.card import PolicyCard, load_policy_card, save_policy_card
from tuneloop.policies.chat import knows_tools, render_chat, without_tools
from tuneloop.tasks.contract import Message
from tuneloop.toolcalls import load_dialect
from tuneloop.toolcalls.history import Form, history_form, in_form

# One small file each: their bars only break up our own progress lines.
disable_progress_bar()


@dataclass
class Policy:
    """A model with what asking it takes: its tokenizer, and the card that says how it writes."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    card: PolicyCard

    @property
    def end_ids(self) -> list[int]:
        """Tokens that end a reply: the model's own list, else the tokenizer's end token."""
        ids = self.model.generation_config.eos_token_id
        ids = self.tokenizer.eos_token_id if ids is None else ids
        return list(ids) if isinstance(ids, (list, tuple)) else [ids]

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of the prompt, up to where the reply starts."""
        text = self.prompt_text(messages, tools)
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def prompt_text(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
        """The prompt as the chat template writes it; where the template knows no tools, the policy's dialect
        describes them in the system message and writes the calls of earlier messages."""
        if not self.template_knows_tools:
            messages, tools = without_tools(messages, tools, load_dialect(self.card.dialect)), []
        elif any(message.get("tool_calls") for message in messages):
            messages = in_form(messages, self.history_form)
        return render_chat(self.tokenizer, messages, tools, thinking=self.card.thinking)

    @cached_property
    def history_form(self) -> Form:
        """How the template takes the arguments of earlier calls."""
        return history_form(lambda messages: render_chat(self.tokenizer, messages, [], thinking=self.card.thinking))

    @cached_property
    def template_knows_tools(self) -> bool:
        return knows_tools(self.tokenizer)

    def decode(self, ids: Sequence[int]) -> str:
        """A reply's text, markers included, without the end token."""
        ids = list(ids)
        if ids and ids[-1] in self.end_ids:
            ids.pop()
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def require_room(self, prompt: Sequence[int], max_new_tokens: int, what: str) -> None:
        """UserError if prompt and reply together exceed the positions the model was made for."""
        limit = self.model.config.max_position_embeddings
        if len(prompt) + max_new_tokens > limit:
            raise UserError(
                f"{what}: a prompt of {len(prompt)} tokens and rollout.max_new_tokens={max_new_tokens} exceed the "
                f"policy's {limit} positions; shorten the record or lower the limit"
            )


def load_policy(folder: Path | str, device: torch.device | str = "cpu") -> Policy:
    """A policy saved by `save_policy`, in float32. Raises UserError if the folder is not one."""
    folder = Path(folder)
    card = load_policy_card(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: is not a complete policy folder ({' '.join(str(error).split())[:200]})") from None
    return Policy(model.to(device).eval(), tokenizer, card)


def save_policy(policy: Policy, folder: Path | str) -> None:
    """Write model, tokenizer and card as an ordinary Hugging Face folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    policy.tokenizer.save_pretrained(folder)
    policy.model.save_pretrained(folder)
    save_policy_card(policy.card, folder)
