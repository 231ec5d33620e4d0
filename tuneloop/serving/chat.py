"""A chat completion from beginning to end: prompt, replies from the scheduler, choices."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

from tuneloop.errors import UserError
from tuneloop.policies.policy import Policy
from tuneloop.policies.presets import Recommended
from tuneloop.rollout.contract import Reply, Sampling, reply_seed
from tuneloop.serving.choices import Choice, meets, read_choice
from tuneloop.serving.errors import ApiError, bad_request
from tuneloop.serving.in_flight import Job
from tuneloop.serving.request import TEMPERATURE_OF_GREEDY, ChatRequest
from tuneloop.serving.scheduler import Scheduler
from tuneloop.toolcalls import Fault

PROMPTS_KEPT = 4096
"""Of prompts' tokens: all episodes of a group begin with the same one."""
DRAWS = 4
"""Replies drawn for one choice until it holds the call that `tool_choice` asks for."""


@dataclass(frozen=True)
class Defaults:
    """What a request gets that does not say it: the makers' sampling, and the length of a reply (tokens)."""

    sampling: Recommended
    max_tokens: int


@dataclass(frozen=True)
class Asked:
    """What a request asks the engine: one reply a seed."""

    prompt: list[int]
    seeds: Sequence[int]
    sampling: Sampling


@dataclass(frozen=True)
class Completion:
    """What the engine made of a request."""

    prompt: list[int]
    choices: list[Choice]

    def usage(self) -> dict[str, int]:
        prompt, sampled = len(self.prompt), sum(len(choice.reply.ids) for choice in self.choices)
        return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def ask_engine(policy: Policy, defaults: Defaults, request: ChatRequest) -> Asked:
    """Raises ApiError 400 where the conversation cannot be written or is too long."""
    prompt = _prompt(policy, request)
    return Asked(prompt, _seeds(request), _sampling(policy, request, defaults, len(prompt)))


async def complete(policy: Policy, scheduler: Scheduler, defaults: Defaults, request: ChatRequest) -> Completion:
    """The request's n choices. Raises ApiError: 400 as `ask_engine`, 422 where no reply met `tool_choice`, and what
    the scheduler raises."""
    asked = ask_engine(policy, defaults, request)
    prompt, seeds, sampling = asked.prompt, asked.seeds, asked.sampling
    found: dict[int, Choice] = {}
    for draw in range(1, 2 if sampling.greedy else DRAWS + 1):
        missing = [i for i in range(request.n) if i not in found]
        drawn = await _replies(scheduler, Job(prompt, [_again(seeds[i], draw) for i in missing], sampling))
        for i, reply in zip(missing, drawn):
            choice = read_choice(policy, request, reply, draw)
            if meets(request, choice):
                found[i] = choice
        if len(found) == request.n:
            return Completion(prompt, [found[i] for i in range(request.n)])
    reason = f" (the last one: {choice.reading.detail})" if isinstance(choice.reading, Fault) else ""
    message = f"{draw} replies were drawn and held no call that tool_choice asks for{reason}"
    raise ApiError(422, message, "invalid_request_error", "tool_choice", "tool_choice_not_met")


async def _replies(scheduler: Scheduler, job: Job) -> list[Reply]:
    return await asyncio.wrap_future(scheduler.submit(job))


def _prompt(policy: Policy, request: ChatRequest) -> list[int]:
    try:
        prompt = list(_tokens(policy.tokenizer, policy.prompt_text(request.messages, request.tools)))
    except UserError as error:
        raise bad_request(str(error), "messages") from None
    if not prompt:
        raise bad_request("the conversation is empty", "messages")
    return prompt


@lru_cache(PROMPTS_KEPT)
def _tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    """As `Policy.prompt_ids`."""
    if tokenizer.is_fast:  # without transformers' way to it, which takes as long again
        return tuple(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def _sampling(policy: Policy, request: ChatRequest, defaults: Defaults, prompt: int) -> Sampling:
    positions = policy.model.config.max_position_embeddings
    wanted = request.max_tokens or max(1, min(defaults.max_tokens, positions - prompt))
    if prompt + wanted > positions:
        raise bad_request(
            f"the context is too long: a prompt of {prompt} tokens and a reply of {wanted} exceed the policy's "
            f"{positions} positions",
            "messages",
            "context_length_exceeded",
        )
    own = defaults.sampling
    temperature = own.temperature if request.temperature is None else request.temperature
    if temperature < TEMPERATURE_OF_GREEDY:
        return Sampling(wanted, greedy=True)
    top_k = own.top_k if request.top_k is None else max(0, request.top_k)
    return Sampling(wanted, temperature, own.top_p if request.top_p is None else request.top_p, top_k)


def _seeds(request: ChatRequest) -> Sequence[int]:
    """One a choice. The first one's is the request's own, so that one reply is what the engine gives for that seed."""
    if request.seed is None:
        return [secrets.randbits(64) for _ in range(request.n)]
    seed = request.seed % 2**64
    return [seed, *(reply_seed("choice", seed, i) for i in range(1, request.n))]


def _again(seed: int, draw: int) -> int:
    return seed if draw == 1 else reply_seed("draw", seed, draw)
