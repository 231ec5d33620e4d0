"""The torch engine against transformers and against the trainer's own scoring."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from policies.tiny_models import FAMILIES, VOCABULARY, distributions, drawn, qwen3
from transformers import PreTrainedModel

from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.prompt_tree import prompt_tree
from tuneloop.policies.scoring import reply_logprobs
from tuneloop.rollout import torch_engine
from tuneloop.rollout.contract import Reply, Sampling
from tuneloop.rollout.torch_engine import TorchEngine

END = 2
PREFIX = [5, 9, 9, 31]
PROMPTS = [[*PREFIX, 7], [*PREFIX, 8, 3, 3, 12, 30], [*PREFIX, 8, 3], [*PREFIX, 8]]
"""The last prompt begins the third, and that the second."""
SEEDS = [[1, 2, 3], [4], [], [5, 6, 7, 8, 9, 10, 11]]
SAMPLING = Sampling(max_new_tokens=12)


def flat(groups: list[list[Reply]]) -> list[Reply]:
    return [reply for group in groups for reply in group]


def scored(model: PreTrainedModel, groups: list[list[Reply]], temperature: float = 1.0) -> torch.Tensor:
    """The trainer's log-probabilities of all reply tokens, groups of any size."""
    parts = []
    with torch.no_grad():
        for prompt, group in zip(PROMPTS, groups):
            if group:
                tree = prompt_tree([prompt], [[reply.ids for reply in group]])
                parts.append(reply_logprobs(DenseDecoder(model), tree, temperature)[0])
    return torch.cat(parts)


def flat_logprobs(groups: list[list[Reply]]) -> torch.Tensor:
    return torch.tensor([p for reply in flat(groups) for p in reply.logprobs], dtype=torch.float64)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 5e-5), (torch.float64, 1e-9)])
def test_log_probabilities_are_those_that_the_trainer_gives_the_same_tokens(
    family: str, dtype: torch.dtype, limit: float, temperature: float
) -> None:
    model = drawn(FAMILIES[family], dtype=dtype)
    groups = TorchEngine(model, [END]).generate(PROMPTS, SEEDS, Sampling(12, temperature))
    assert [len(group) for group in groups] == [3, 1, 0, 7]
    assert (flat_logprobs(groups) - scored(model, groups, temperature)).abs().max() < limit


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_replies_are_those_of_transformers_generate(family: str) -> None:
    model = drawn(FAMILIES[family], seed=4)
    # Whatever the model says seventh after the first prompt ends a reply: not all run to the limit.
    (free,), *_ = TorchEngine(model, []).generate(PROMPTS, [[0]] * 4, Sampling(12, greedy=True))
    ends = [free.ids[6], END]
    groups = TorchEngine(model, ends).generate(PROMPTS, [[0]] * 4, Sampling(12, greedy=True))
    for prompt, (reply,) in zip(PROMPTS, groups):
        ids = torch.tensor([prompt])
        expected = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12, eos_token_id=ends
        )
        assert reply.ids == expected[0, len(prompt) :].tolist()
    assert groups[0][0].finish_reason == "stop"


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return drawn(qwen3)


@pytest.fixture(scope="module")
def alone(model: PreTrainedModel) -> dict[int, list[int]]:
    """By seed: the reply when nothing else is in the batch."""
    engine = TorchEngine(model, [END, 7, 30])
    return {
        seed: engine.generate([prompt], [[seed]], SAMPLING)[0][0].ids
        for prompt, seeds in zip(PROMPTS, SEEDS)
        for seed in seeds
    }


@pytest.mark.parametrize("batch_replies", [1, 3, 1024])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2]])
def test_a_seed_gives_the_same_reply_whatever_else_is_in_the_batch(
    model: PreTrainedModel, alone: dict[int, list[int]], batch_replies: int, order: list[int]
) -> None:
    engine = TorchEngine(model, [END, 7, 30], batch_replies)
    seeds = [SEEDS[b][::-1] for b in order]
    groups = engine.generate([PROMPTS[b] for b in order], seeds, SAMPLING)
    assert [[reply.ids for reply in group] for group in groups] == [[alone[s] for s in group] for group in seeds]
    assert len({tuple(ids) for ids in alone.values()}) == len(alone)


def test_greedy_replies_do_not_depend_on_seeds_or_batch(model: PreTrainedModel) -> None:
    engine, greedy = TorchEngine(model, [END]), Sampling(12, greedy=True)
    groups = engine.generate(PROMPTS, SEEDS, greedy)
    for prompt, group in zip(PROMPTS, groups):
        ((expected,),) = engine.generate([prompt], [[99]], greedy)
        assert all(reply.ids == expected.ids for reply in group)


def test_the_limit_cuts_a_reply_and_changes_nothing_before_the_cut(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, [END])
    long, short = (engine.generate(PROMPTS, SEEDS, Sampling(limit)) for limit in (12, 5))
    for one, other in zip(flat(long), flat(short)):
        assert other.ids == one.ids[:5]


def frequencies_fit(counts: np.ndarray, probabilities: np.ndarray) -> bool:
    """Pearson's chi-square at the 1 in 1000 level; rare cells are pooled until each expects 5."""
    order = np.argsort(probabilities)
    counts, expected = counts[order], probabilities[order] * counts.sum()
    rare = int(np.searchsorted(expected.cumsum(), 5)) + 1 if expected[0] < 5 else 0
    if rare:
        counts = np.append(counts[rare:], counts[:rare].sum())
        expected = np.append(expected[rare:], expected[:rare].sum())
    return scipy.stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > 0.001


@pytest.mark.parametrize("temperature", [1.0, 0.5, 1.8])
def test_pairs_of_tokens_come_as_often_as_transformers_says(model: PreTrainedModel, temperature: float) -> None:
    prompt, draws = [5, 9, 31, 7], 12_000
    (group,) = TorchEngine(model, []).generate([prompt], [list(range(draws))], Sampling(2, temperature))
    counts = np.zeros((VOCABULARY, VOCABULARY))
    for reply in group:
        counts[tuple(reply.ids)] += 1
    with torch.no_grad():
        first = distributions(model, prompt, [0], temperature)[0].exp()
        second = torch.stack([distributions(model, prompt, [i, 0], temperature)[1] for i in range(VOCABULARY)]).exp()
    expected = (first[:, None] * second).numpy().ravel()
    assert frequencies_fit(counts.ravel(), expected)

    # The same test tells this temperature from one a quarter higher.
    with torch.no_grad():
        other = distributions(model, prompt, [0], temperature * 1.25)[0].exp().numpy()
    assert not frequencies_fit(counts.sum(1), other)


def test_top_k_and_top_p_cut_what_is_drawn_and_not_the_log_probabilities(model: PreTrainedModel) -> None:
    prompt, sampling = [5, 9, 31, 7], Sampling(3, temperature=1.3, top_k=6, top_p=0.8)
    (group,) = TorchEngine(model, []).generate([prompt], [list(range(200))], sampling)
    for reply in group:
        with torch.no_grad():
            rows = distributions(model, prompt, reply.ids, 1.3)
        for t, token in enumerate(reply.ids):
            likeliest = rows[t].exp().sort(descending=True)
            head = likeliest.values[:6]
            inside = int((head.cumsum(0) < 0.8 * head.sum()).sum()) + 1
            assert token in likeliest.indices[:inside]
            assert reply.logprobs[t] == pytest.approx(rows[t, token].item(), rel=1e-6)


@pytest.fixture(scope="module")
def free(model: PreTrainedModel) -> list[Reply]:
    """Forty replies of 12 tokens that nothing ended."""
    (group,) = TorchEngine(model, []).generate([PROMPTS[0]], [list(range(40))], SAMPLING)
    assert all(len(reply.ids) == 12 and reply.finish_reason == "length" for reply in group)
    return group


@pytest.mark.parametrize("ends", [[3], [3, 17], [0, 3, 9, 17, 30]])
@pytest.mark.parametrize("limit", range(1, 13))
def test_a_reply_stops_at_its_first_end_token_and_has_length_exactly_where_the_limit_cut_it(
    model: PreTrainedModel, free: list[Reply], ends: list[int], limit: int
) -> None:
    (group,) = TorchEngine(model, ends).generate([PROMPTS[0]], [list(range(40))], Sampling(limit))
    for reply, unended in zip(group, free):
        places = [t for t, token in enumerate(unended.ids[:limit]) if token in ends]
        expected = (unended.ids[: places[0] + 1], "stop") if places else (unended.ids[:limit], "length")
        assert (reply.ids, reply.finish_reason) == expected
        assert len(reply.logprobs) == len(reply.ids)


def test_those_end_tokens_also_fall_exactly_on_limits(free: list[Reply]) -> None:
    # The test above would say nothing of that case if no reply had it: end token at place t, limit t + 1.
    assert all(any(reply.ids[limit - 1] in (0, 3, 9, 17, 30) for reply in free) for limit in range(1, 13))


def test_an_end_token_that_is_also_the_padding_token_is_kept_and_scored(model: PreTrainedModel) -> None:
    assert model.config.pad_token_id == model.config.eos_token_id == END
    groups = TorchEngine(model, [END]).generate(PROMPTS, [list(range(30))] * 4, Sampling(12, temperature=2.0))
    ended = [reply for reply in flat(groups) if reply.finish_reason == "stop"]
    assert len(ended) > 5 and all(reply.ids[-1] == END for reply in ended)
    assert (flat_logprobs(groups) - scored(model, groups, 2.0)).abs().max() < 1e-9


@pytest.fixture
def one_lane() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def tokens_computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many tokens went through the embedding, call by call."""
    calls: list[int] = []
    embed: Callable = F.embedding

    def counted(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        calls.append(ids.numel())
        return embed(ids, weight)

    monkeypatch.setattr(F, "embedding", counted)
    yield calls


def test_the_shared_prefix_and_each_prompt_are_computed_once(
    model: PreTrainedModel, one_lane: None, tokens_computed: list[int]
) -> None:
    TorchEngine(model, []).generate(PROMPTS, [list(range(6))] * 4, Sampling(3))
    # 4 shared tokens, then 1 + 5 + 2 + 1 of the prompts' own; then 24 replies, twice (the third token needs
    # no further pass).
    assert tokens_computed == [4, 9, 24, 24]


def test_the_shared_prefix_is_computed_again_only_once_the_weights_have_changed(
    model: PreTrainedModel, one_lane: None, tokens_computed: list[int]
) -> None:
    engine = TorchEngine(model, [])
    first = engine.generate(PROMPTS, [[1]] * 4, Sampling(1))
    kept = engine.generate(PROMPTS, [[1]] * 4, Sampling(1))
    assert tokens_computed == [4, 9, 9]
    assert kept == first  # to the last bit: what was kept is what would be computed
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(1.5)
    engine.weights_changed()
    changed = engine.generate(PROMPTS, [[1]] * 4, Sampling(1))
    assert tokens_computed == [4, 9, 9, 4, 9]
    assert changed == TorchEngine(model, []).generate(PROMPTS, [[1]] * 4, Sampling(1)) != first


def test_another_shared_prefix_is_not_mistaken_for_the_kept_one(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, [])
    for prompts in (PROMPTS, PROMPTS[1:3], [[1, *p] for p in PROMPTS], PROMPTS):
        seeds = [[1, 2]] * len(prompts)
        assert engine.generate(prompts, seeds, Sampling(5)) == TorchEngine(model, []).generate(
            prompts, seeds, Sampling(5)
        )


@pytest.mark.parametrize("folded", [0, 1 << 20])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_neither_lanes_nor_where_the_prefix_is_kept_change_a_reply(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, one_lane: None, folded: int, threads: int
) -> None:
    expected = TorchEngine(model, [2, 7]).generate(PROMPTS, [list(range(6))] * 4, Sampling(20))
    monkeypatch.setattr(torch_engine, "FOLDED_TOKENS", folded)
    monkeypatch.setattr(torch_engine, "LANE_REPLIES", 1)
    torch.set_num_threads(threads)
    groups = TorchEngine(model, [2, 7]).generate(PROMPTS, [list(range(6))] * 4, Sampling(20))
    assert [reply.ids for reply in flat(groups)] == [reply.ids for reply in flat(expected)]
    assert (flat_logprobs(groups) - flat_logprobs(expected)).abs().max() < 1e-12


def test_replies_that_have_ended_leave_the_batch(
    model: PreTrainedModel, one_lane: None, tokens_computed: list[int]
) -> None:
    ends = [0, 2, 7, 11, 17, 30]
    groups = TorchEngine(model, ends).generate(PROMPTS, [list(range(16))] * 4, Sampling(40))
    replies = flat(groups)
    _, _, *rows = tokens_computed
    for t, carried in enumerate(rows):
        running = sum(len(reply.ids) > t + 1 for reply in replies)
        # At most a quarter of what is computed may be replies that have already ended.
        assert 0.75 * carried < running <= carried
    assert rows[0] > rows[-1] and sorted(rows, reverse=True) == rows
    assert len(rows) == max(len(reply.ids) for reply in replies) - 1
    assert (flat_logprobs(groups) - scored(model, groups)).abs().max() < 1e-9


@pytest.mark.parametrize("prompts", [[[7]], [[7], [7]], [[7, 8], [7]], [[7], [7, 8], [7, 8, 9], [8]]])
def test_one_token_prompts_equal_prompts_and_prefixes_of_one_another_are_prompts_like_any(
    model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    engine = TorchEngine(model, [END])
    together = engine.generate(prompts, [[3, 4]] * len(prompts), SAMPLING)
    for prompt, group in zip(prompts, together):
        (expected,) = engine.generate([prompt], [[3, 4]], SAMPLING)
        assert [r.ids for r in group] == [r.ids for r in expected]
        with torch.no_grad():
            for reply in group:
                rows = distributions(model, prompt, reply.ids)
                found = torch.tensor(reply.logprobs, dtype=torch.float64)
                assert torch.allclose(found, rows[range(len(reply.ids)), reply.ids], atol=1e-6)


def test_nothing_asked_is_nothing_answered(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, [END])
    assert engine.generate([], [], SAMPLING) == []
    assert engine.generate(PROMPTS[:2], [[], []], SAMPLING) == [[], []]
    with pytest.raises(ValueError, match="2 prompts but seeds for 1"):
        engine.generate(PROMPTS[:2], [[1]], SAMPLING)


def test_the_next_call_samples_from_weights_that_changed_in_place() -> None:
    changing = drawn(qwen3)
    engine = TorchEngine(changing, [END])
    before = engine.generate(PROMPTS, SEEDS, SAMPLING)
    with torch.no_grad():
        for parameter in changing.parameters():
            parameter.mul_(1.1)
    engine.weights_changed()
    after = engine.generate(PROMPTS, SEEDS, SAMPLING)
    assert (flat_logprobs(after) - scored(changing, after)).abs().max() < 1e-9
    assert before != after


def test_sampling_leaves_no_gradient_and_no_graph(model: PreTrainedModel) -> None:
    TorchEngine(model, [END]).generate(PROMPTS, SEEDS, SAMPLING)
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
