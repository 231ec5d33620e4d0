"""The vLLM engine: `vllm.LLM` in this process, for policies that are too large for a decoder of our own.

It starts from the policy's configuration alone; weights reach it in one way, a push from the policy in memory,
before the first replies and after every change. Each push is proved (`_prove`). docs/vllm.md names the versions.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tuneloop.errors import UserError
from tuneloop.params import RolloutParams, VllmParams
from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.decoders import load_decoder
from tuneloop.policies.model_decoder import ModelDecoder
from tuneloop.policies.policy import Policy
from tuneloop.policies.prompt_tree import prompt_tree
from tuneloop.policies.scoring import reply_logprobs
from tuneloop.rollout.contract import Reply, Sampling, reply_seed
from tuneloop.rollout.vllm_weights import differing, model_of, policy_weights, push

PROBE_TOKENS = 4
GAP_LIMIT = {"float32": 1e-3, "bfloat16": 0.1}
"""Largest mean |Δ log p| (nats) between engine and policy over the probe's tokens. Measured with right weights:
float32 4e-6, bfloat16 0.03."""
MOST_REPLIES = {"cpu": 256, "cuda": 1024}
"""In flight at once."""
MOST_TEMPERATURE = 2.0
"""vLLM refuses more."""


class VllmEngine:
    """Samples from the policy's weights as vLLM computes them; see `tuneloop.rollout.contract.Engine`.

    One a process: an engine that is deleted takes vLLM's process groups, and so every other engine, with it.
    """

    def __init__(self, policy: Policy, params: RolloutParams):
        """Starts vLLM (seconds on the CPU, a minute or two on a GPU), with at most `params.vllm.memory_share` of
        the device's memory. Raises UserError where vllm is missing or cannot run this model."""
        self.policy, self.params = policy, params.vllm
        self.device = policy.model.get_input_embeddings().weight.device.type
        self.llm = start(policy, self.params, self.device)
        self.max_tokens = self.llm.llm_engine.model_config.max_model_len
        self._stale = True

    def weights_changed(self) -> None:
        self._stale = True

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Reply]]:
        if len(prompts) != len(seeds):
            raise ValueError(f"{len(prompts)} prompts but seeds for {len(seeds)}")
        self._require_possible(prompts, sampling)
        asked = [(prompt, seed) for prompt, group in zip(prompts, seeds) for seed in group]
        if not asked:
            return [[] for _ in prompts]
        if self._stale:
            weights = policy_weights(self.policy.model)
            push(self.llm, weights)
            self._prove(weights, asked[0][0])
            self._stale = False
        outputs = self._ask(asked, sampling)
        flat = iter([as_reply(output.outputs[0]) for output in outputs])
        groups = [[next(flat) for _ in group] for group in seeds]
        return self._rescored(prompts, groups, sampling) if is_cut(sampling) else groups

    def _ask(self, asked: Sequence[tuple[Sequence[int], int]], sampling: Sampling) -> list[Any]:
        """vLLM's outputs in the order of the (prompt, seed) pairs."""
        from vllm import SamplingParams

        common = {
            "max_tokens": sampling.max_new_tokens,
            "stop_token_ids": self.policy.end_ids,
            "ignore_eos": True,  # what ends a reply stands above
            "logprobs": 0,  # of the sampled token alone
            "flat_logprobs": True,
            "detokenize": False,
        }
        if sampling.greedy:
            each = [SamplingParams(temperature=0.0, **common)] * len(asked)
        else:
            drawn = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k, **common}
            each = [SamplingParams(seed=vllm_seed(seed), **drawn) for _, seed in asked]
        with self._uncompiled():
            return self.llm.generate([{"prompt_token_ids": list(p)} for p, _ in asked], each, use_tqdm=False)

    def _uncompiled(self) -> AbstractContextManager:
        """On a CPU vLLM compiles a few small functions even where told to be eager: most of a minute for nothing."""
        return torch.compiler.set_stance("force_eager") if self.device == "cpu" else nullcontext()

    def _prove(self, weights: Mapping[str, Tensor], prompt: Sequence[int]) -> None:
        """That the engine computes with the policy's weights, and with nothing else. Raises UserError if not.

        Three things can go wrong alone: weights that never arrive (sums of all that can be read), one of them
        packed but not packed again (the same), and keys and values kept from before (counted by vLLM). A
        few scored tokens hold the whole together, whatever has no name in common with the policy's weights.
        """
        wrong = differing(model_of(self.llm), weights)
        if wrong:
            shown = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
            raise _not_arrived(f"{shown} differ from the policy's")
        (output,) = self._ask([(prompt, 0)], Sampling(PROBE_TOKENS, greedy=True))
        if output.num_cached_tokens:
            raise _not_arrived(
                f"{output.num_cached_tokens} tokens of the first prompt after a push came from the cache"
            )
        reply = as_reply(output.outputs[0])
        expected = self._score(prompt, [reply.ids], 1.0)
        gap = (torch.tensor(reply.logprobs, dtype=torch.float64) - expected.double().cpu()).abs().mean().item()
        if not gap <= GAP_LIMIT[self.params.dtype]:
            raise _not_arrived(
                f"mean |Δ log p| over the {len(reply.ids)} scored tokens is {gap:.3g}, "
                f"limit {GAP_LIMIT[self.params.dtype]:g}"
            )

    def _rescored(
        self, prompts: Sequence[Sequence[int]], groups: list[list[Reply]], sampling: Sampling
    ) -> list[list[Reply]]:
        """The replies with log-probabilities of the whole distribution, from the policy's own forward pass: under
        top-p or top-k vLLM gives those of what the cut left, or of temperature 1."""
        out = []
        for prompt, group in zip(prompts, groups):
            found = self._score(prompt, [r.ids for r in group], sampling.temperature).tolist() if group else []
            numbers = iter(found)
            out.append([Reply(r.ids, [next(numbers) for _ in r.ids], r.finish_reason) for r in group])
        return out

    @cached_property
    def _decoder(self) -> DenseDecoder | ModelDecoder:
        return load_decoder(self.policy.model)

    @torch.no_grad()
    def _score(self, prompt: Sequence[int], replies: Sequence[Sequence[int]], temperature: float) -> Tensor:
        """[reply tokens] log-probabilities from the policy's own forward pass."""
        tree = prompt_tree([prompt], [replies], self._decoder.device)
        return reply_logprobs(self._decoder, tree, temperature)[0]

    def _require_possible(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> None:
        longest = max(map(len, prompts), default=0)
        if longest + sampling.max_new_tokens > self.max_tokens:
            raise UserError(
                f"rollout.vllm.max_model_len={self.max_tokens}: a prompt of {longest} tokens and "
                f"rollout.max_new_tokens={sampling.max_new_tokens} do not fit; raise it"
            )
        if not sampling.greedy and sampling.temperature > MOST_TEMPERATURE:
            raise UserError(
                f"rollout.temperature={sampling.temperature:g}: vLLM samples at {MOST_TEMPERATURE:g} at most; "
                "lower it, or set rollout.engine to torch or transformers"
            )


def start(policy: Policy, params: VllmParams, device: str) -> Any:
    """A `vllm.LLM` of the policy's architecture in this process, its weights not yet the policy's."""
    ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    if ranks > 1:
        raise UserError(
            f"rollout.engine=vllm with machine.ranks={ranks}: vLLM shares one process with one trainer; set "
            "machine.ranks to 1, or rollout.engine to torch"
        )
    # Before vllm is imported. In one process, or the weights could not be handed over in memory.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    for name, value in {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}.items():
        os.environ.setdefault(name, value)
    try:
        from vllm import LLM
    except ImportError as error:
        raise UserError(
            f"rollout.engine=vllm: the package vllm cannot be imported ({error}); pip install -e '.[vllm]' "
            "for a GPU (docs/vllm.md says how for a CPU), or set rollout.engine to torch or transformers"
        ) from None
    config = copy.deepcopy(policy.model.config)
    config.architectures = [type(policy.model).__name__]
    set_threads = torch.set_num_threads
    with tempfile.TemporaryDirectory(prefix="tuneloop-vllm-") as folder, _any_algorithm():
        config.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
        try:
            return LLM(
                model=folder,
                load_format="dummy",  # random weights: a push that fails cannot go unnoticed
                runner="generate",
                dtype=params.dtype,
                max_model_len=min(params.max_model_len, config.max_position_embeddings),
                max_num_seqs=MOST_REPLIES[device],
                enable_prefix_caching=True,
                logprobs_mode="processed_logprobs",  # after the temperature
                generation_config="vllm",  # nothing but what a request says
                **_memory(params, device),
            )
        except ValueError as error:
            raise UserError(f"rollout.engine=vllm: vLLM does not start: {' '.join(str(error).split())[:400]}") from None
        finally:
            torch.set_num_threads = set_threads  # vLLM puts a function that does nothing in its place


@contextmanager
def _any_algorithm() -> Iterator[None]:
    """While vLLM compiles: torch's inductor times kernels then, which it refuses where repeatable algorithms are asked
    for."""
    before, warn = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn)


def _memory(params: VllmParams, device: str) -> dict[str, Any]:
    """How vLLM shares the machine with the trainer, and what else depends on the device."""
    if device == "cuda":
        return {"gpu_memory_utilization": params.memory_share}
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "kv_cache_memory_bytes": int(params.memory_share * total),
        "enforce_eager": True,  # compiling takes longer than it saves
        "block_size": 32,  # attention on the CPU wants multiples; a smaller block shares more of a prompt
        # A prompt cut in two and a seed of its own do not go together there (vLLM 0.32 stops with an error).
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(16_384, params.max_model_len),
    }


def vllm_seed(seed: int) -> int:
    """A reply's seed as vLLM takes it: 63 bits. Mixed again, because generators on the CPU look at the lowest
    32 alone: seeds that differ anywhere then differ there."""
    return reply_seed("vllm", seed) >> 1


def as_reply(output: Any) -> Reply:
    """One of vLLM's completions, whose ids include the end token."""
    return Reply(list(output.token_ids), list(output.logprobs.logprobs), output.finish_reason)


def is_cut(sampling: Sampling) -> bool:
    """Whether top-p or top-k leave tokens out of the distribution."""
    return not sampling.greedy and (sampling.top_p < 1 or sampling.top_k > 0)


def _not_arrived(what: str) -> UserError:
    return UserError(
        f"rollout.engine=vllm: the engine does not compute with the policy's weights: {what}. Nothing was sampled. "
        "Another version of vllm may help (docs/vllm.md names those that were tried), or rollout.engine torch or "
        "transformers"
    )
