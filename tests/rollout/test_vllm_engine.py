"""The vLLM engine holds the engine contract. What it gives is compared with the torch engine and with the
trainer's own scoring, in float32 but where said otherwise. Runs where vllm is installed (tests/rollout/on_vllm.sh)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from rollout.vllm_policies import MODELS, STARTED, VOCABULARY, random_policy, rollout_params, started

from tuneloop.errors import UserError
from tuneloop.params import RolloutParams
from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.policy import Policy
from tuneloop.policies.prompt_tree import prompt_tree
from tuneloop.policies.scoring import reply_logprobs
from tuneloop.rollout.contract import Reply, Sampling
from tuneloop.rollout.engines import load_engine
from tuneloop.rollout.torch_engine import TorchEngine
from tuneloop.rollout.vllm_engine import VllmEngine, vllm_seed

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="the package vllm is not installed"),
]

PREFIX = [5, 9, 9, 31] * 10
"""Longer than a block of the prefix cache (32 tokens)."""
PROMPTS = [[*PREFIX, 7], [*PREFIX, 8, 3, 3, 12, 30], [*PREFIX, 8, 3], [4]]
SEEDS = [[1, 2, 3], [4], [], [5, 6, 7, 8, 9, 10, 11]]
SAMPLING = Sampling(max_new_tokens=12)
GREEDY = Sampling(max_new_tokens=12, greedy=True)


def flat(groups: list[list[Reply]]) -> list[Reply]:
    return [reply for group in groups for reply in group]


def ids(groups: list[list[Reply]]) -> list[list[list[int]]]:
    return [[reply.ids for reply in group] for group in groups]


def largest_gap(policy: Policy, groups: list[list[Reply]], temperature: float = 1.0) -> float:
    """Largest |Δ log p| between the replies' own numbers and the trainer's."""
    gaps = []
    for prompt, group in zip(PROMPTS, groups):
        if group:
            tree = prompt_tree([prompt], [[reply.ids for reply in group]])
            with torch.no_grad():
                expected = reply_logprobs(DenseDecoder(policy.model), tree, temperature)[0].double()
            found = torch.tensor([p for reply in group for p in reply.logprobs], dtype=torch.float64)
            gaps.append((found - expected).abs().max().item())
    return max(gaps)


def nudge(policy: Policy, size: float, seed: int = 1) -> None:
    """Change every weight by ± `size`, as a step of Adam does."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=draw).sign())


@pytest.fixture(scope="module")
def policy() -> Policy:
    return random_policy("qwen3 tied")


@pytest.fixture(scope="module")
def engine(policy: Policy) -> VllmEngine:
    made = load_engine(policy, rollout_params())
    assert isinstance(made, VllmEngine)
    STARTED.append(made)
    return made


@pytest.mark.parametrize("name", [name for name in MODELS if name != "qwen3 tied"])
def test_every_family_gives_the_trainers_log_probabilities_before_and_after_a_change(name: str) -> None:
    policy = random_policy(name)
    engine = started(policy)
    before = engine.generate(PROMPTS, SEEDS, SAMPLING)
    assert largest_gap(policy, before) < 1e-4
    nudge(policy, 0.05)
    engine.weights_changed()
    after = engine.generate(PROMPTS, SEEDS, SAMPLING)
    assert largest_gap(policy, after) < 1e-4 < largest_gap(policy, before)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.0])
def test_log_probabilities_are_those_that_the_trainer_gives_the_same_tokens(
    policy: Policy, engine: VllmEngine, temperature: float
) -> None:
    groups = engine.generate(PROMPTS, SEEDS, Sampling(12, temperature))
    assert [len(group) for group in groups] == [3, 1, 0, 7]
    assert largest_gap(policy, groups, temperature) < 1e-4


def test_greedy_replies_are_the_torch_engines_but_for_ties(policy: Policy, engine: VllmEngine) -> None:
    ones = [[0]] * len(PROMPTS)
    expected = TorchEngine(policy.model, policy.end_ids).generate(PROMPTS, ones, GREEDY)
    found = engine.generate(PROMPTS, ones, GREEDY)
    for prompt, (one,), (other,) in zip(PROMPTS, found, expected):
        parting = next((t for t, (a, b) in enumerate(zip(one.ids, other.ids)) if a != b), None)
        if parting is None:
            assert one.ids == other.ids and one.finish_reason == other.finish_reason
        else:  # both tokens must be equally likely
            with torch.no_grad():
                logits = policy.model(torch.tensor([[*prompt, *one.ids[:parting]]])).logits[0, -1]
            assert logits[one.ids[parting]] == pytest.approx(logits[other.ids[parting]], abs=1e-4)
    assert largest_gap(policy, found) < 1e-4


def test_greedy_replies_do_not_depend_on_seeds(engine: VllmEngine) -> None:
    groups = engine.generate(PROMPTS, SEEDS, GREEDY)
    for prompt, group in zip(PROMPTS, groups):
        ((expected,),) = engine.generate([prompt], [[99]], GREEDY)
        assert all(reply.ids == expected.ids for reply in group)


def test_a_seed_gives_the_same_reply_whatever_else_is_in_the_batch(engine: VllmEngine) -> None:
    together = engine.generate(PROMPTS, SEEDS, SAMPLING)
    assert engine.generate(PROMPTS, SEEDS, SAMPLING) == together, "to the last bit: the same call"
    for b in (3, 1, 0):
        (again,) = engine.generate([PROMPTS[b]], [SEEDS[b][::-1]], SAMPLING)
        assert [reply.ids for reply in again[::-1]] == ids(together)[b]
    assert len({tuple(reply.ids) for reply in flat(together)}) == 11, "else all seeds might be one"


def test_seeds_that_differ_in_any_bit_differ_where_vllm_looks() -> None:
    # Random generators on the CPU take the lowest 32 bits of a seed; ours have 64.
    seeds = [0, 1, 2**64 - 1] + [1 << bit for bit in range(1, 64)]
    narrow = {vllm_seed(seed) % 2**32 for seed in seeds}
    assert len(narrow) == len(seeds)
    assert all(0 <= vllm_seed(seed) < 2**63 for seed in seeds)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_tokens_come_as_often_as_transformers_says(policy: Policy, engine: VllmEngine, temperature: float) -> None:
    draws = 2000
    (group,) = engine.generate([PROMPTS[0]], [list(range(draws))], Sampling(1, temperature))
    counts = np.bincount([reply.ids[0] for reply in group], minlength=VOCABULARY)

    def fits(at: float) -> bool:
        """Pearson's chi-square at the 1 in 1000 level; rare tokens are pooled."""
        with torch.no_grad():
            logits = policy.model(torch.tensor([PROMPTS[0]])).logits[0, -1].double()
        expected = draws * (logits / at).softmax(-1).numpy()
        # By rising frequency, as many in one cell as together expect 5.
        order = np.argsort(expected)
        cells = np.maximum(np.searchsorted(expected[order].cumsum(), 5), np.arange(VOCABULARY))
        observed, wanted = (np.bincount(cells, weights=x[order]) for x in (counts, expected))
        return scipy.stats.chisquare(observed[wanted > 0], wanted[wanted > 0]).pvalue > 0.001

    assert fits(temperature)
    assert not fits(temperature * 1.5), "the test tells temperatures apart"


def test_a_reply_stops_at_its_first_end_token_and_keeps_it(engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = [list(range(40))]
    monkeypatch.setattr(Policy, "end_ids", [])
    (free,) = engine.generate(PROMPTS[:1], seeds, SAMPLING)
    assert all(len(reply.ids) == 12 for reply in free), "the model's own end token ends nothing"
    # The ten tokens that come most often in the middle: replies end at every length.
    ends = np.bincount([token for reply in free for token in reply.ids]).argsort()[-12:-2].tolist()
    monkeypatch.setattr(Policy, "end_ids", ends)
    for limit in range(1, 13):
        (group,) = engine.generate(PROMPTS[:1], seeds, Sampling(limit))
        for reply, unended in zip(group, free):
            places = [t for t, token in enumerate(unended.ids[:limit]) if token in ends]
            expected = (unended.ids[: places[0] + 1], "stop") if places else (unended.ids[:limit], "length")
            assert (reply.ids, reply.finish_reason) == expected
            assert len(reply.logprobs) == len(reply.ids)
        if limit <= 3:
            stopped = [len(reply.ids) for reply in group if reply.finish_reason == "stop"]
            assert limit in stopped, "an end token falls exactly on the limit"


def test_top_k_and_top_p_cut_what_is_drawn_and_not_the_log_probabilities(policy: Policy, engine: VllmEngine) -> None:
    sampling = Sampling(3, temperature=1.3, top_k=6, top_p=0.8)
    groups = engine.generate(PROMPTS, [list(range(30)), [1], [], [2, 3]], sampling)
    assert [len(group) for group in groups] == [30, 1, 0, 2]
    assert largest_gap(policy, groups, 1.3) < 1e-6
    for reply in groups[0]:
        with torch.no_grad():
            logits = policy.model(torch.tensor([[*PROMPTS[0], *reply.ids]])).logits[0, len(PROMPTS[0]) - 1 : -1] / 1.3
        for t, token in enumerate(reply.ids):
            likeliest = logits[t].softmax(-1).sort(descending=True)
            head = likeliest.values[:6]
            inside = int((head.cumsum(0) < 0.8 * head.sum()).sum()) + 1
            assert token in likeliest.indices[:inside]


def test_nothing_asked_is_nothing_answered(engine: VllmEngine) -> None:
    assert engine.generate([], [], SAMPLING) == []
    assert engine.generate(PROMPTS[:2], [[], []], SAMPLING) == [[], []]
    with pytest.raises(ValueError, match="2 prompts but seeds for 1"):
        engine.generate(PROMPTS[:2], [[1]], SAMPLING)


def test_what_vllm_cannot_do_is_refused_by_name(engine: VllmEngine) -> None:
    with pytest.raises(UserError, match=r"max_model_len=256: a prompt of 250 tokens and rollout.max_new_tokens=12"):
        engine.generate([[3] * 250], [[1]], SAMPLING)
    with pytest.raises(UserError, match=r"rollout.temperature=2.5: vLLM samples at 2 at most"):
        engine.generate(PROMPTS[:1], [[1]], Sampling(3, temperature=2.5))
    assert len(engine.generate([[3] * 244], [[1]], SAMPLING)[0][0].ids) <= 12, "the longest that fits"


@pytest.fixture
def cached(engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Prompt tokens that vLLM took from its cache, request by request."""
    counts: list[int] = []
    real = engine.llm.generate

    def spy(*args: Any, **kwargs: Any) -> Any:
        outputs = real(*args, **kwargs)
        counts.extend(output.num_cached_tokens for output in outputs)
        return outputs

    monkeypatch.setattr(engine.llm, "generate", spy)
    yield counts


def test_a_prompt_is_computed_once_a_group_and_its_start_once_until_the_weights_change(
    engine: VllmEngine, cached: list[int]
) -> None:
    engine.weights_changed()
    engine.generate(PROMPTS[:2], [[1, 2, 3], [4]], SAMPLING)
    probe, first, *others = cached
    assert probe == 0, "nothing is left from before the push"
    assert [first, *others] == [32] * 4, "one whole block of the 40 shared tokens"
    engine.generate(PROMPTS[2:3], [[1]], SAMPLING)
    assert cached[5:] == [32]


def test_the_trainers_threads_can_still_be_set(engine: VllmEngine) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    assert torch.get_num_threads() == before + 1
    torch.set_num_threads(before)


def test_a_bfloat16_engine_is_as_coarse_as_said(policy: Policy) -> None:
    coarse = started(policy, "bfloat16")
    gap = largest_gap(policy, coarse.generate(PROMPTS, SEEDS, SAMPLING))
    # Of the order of 2^-8, the spacing of bfloat16, times logits of up to 5: not a float32 engine, nor a wrong one.
    assert 1e-3 < gap < 0.5


def test_a_model_that_vllm_cannot_run_is_refused_by_name(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    params: RolloutParams = rollout_params()
    unknown = type("NoSuchForCausalLM", (type(policy.model),), {})
    monkeypatch.setattr(policy.model, "__class__", unknown)
    with pytest.raises(UserError, match=r"vLLM does not start: .*NoSuchForCausalLM"):
        VllmEngine(policy, params)
