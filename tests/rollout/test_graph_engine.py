"""The GPU's engine on a CPU, where the same passes run without graphs, against the torch engine."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from policies.tiny_models import FAMILIES, distributions, drawn, qwen3
from transformers import PreTrainedModel

from tuneloop.rollout import graph_engine
from tuneloop.rollout.contract import Reply, Sampling
from tuneloop.rollout.graph_engine import GraphEngine, bucket
from tuneloop.rollout.graph_step import Room, Step
from tuneloop.rollout.torch_engine import TorchEngine

END = 2
PREFIX = [5, 9, 9, 31]
PROMPTS = [[*PREFIX, 7], [*PREFIX, 8, 3, 3, 12, 30], [*PREFIX, 8, 3], [*PREFIX, 8]]
"""The last prompt begins the third, and that the second."""
APART = [[first, *prompt] for first, prompt in enumerate(PROMPTS)]
"""The same without a shared prefix."""
SEEDS = [[1, 2, 3], [4], [], [5, 6, 7, 8, 9, 10, 11]]
WAYS = {
    "whole distribution": Sampling(12),
    "colder": Sampling(12, temperature=0.6),
    "greedy": Sampling(12, greedy=True),
    "top-k": Sampling(12, top_k=6),
    "top-p": Sampling(12, temperature=1.3, top_p=0.8),
    "one token": Sampling(1),
}


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return drawn(qwen3)


def flat(groups: list[list[Reply]]) -> list[Reply]:
    return [reply for group in groups for reply in group]


def same(found: list[list[Reply]], expected: list[list[Reply]]) -> None:
    assert [len(group) for group in found] == [len(group) for group in expected]
    for one, other in zip(flat(found), flat(expected)):
        assert (one.ids, one.finish_reason) == (other.ids, other.finish_reason)
        assert one.logprobs == pytest.approx(other.logprobs, rel=0, abs=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_replies_are_those_of_the_torch_engine(model: PreTrainedModel, way: str) -> None:
    for ends in ([], [END, 7, 30]):
        expected, engine = TorchEngine(model, ends), GraphEngine(model, ends)
        for prompts in (PROMPTS, APART):
            same(engine.generate(prompts, SEEDS, WAYS[way]), expected.generate(prompts, SEEDS, WAYS[way]))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_replies_as_with_the_torch_engine(family: str) -> None:
    model = drawn(FAMILIES[family])
    same(
        GraphEngine(model, [7]).generate(PROMPTS, SEEDS, Sampling(9)),
        TorchEngine(model, [7]).generate(PROMPTS, SEEDS, Sampling(9)),
    )


@pytest.mark.parametrize("prompts", [[[7]], [[7], [7]], [[7, 8], [7]], [[7], [7, 8], [7, 8, 9], [8]]])
def test_one_token_prompts_equal_prompts_and_prefixes_of_one_another_are_prompts_like_any(
    model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    seeds = [[3, 4]] * len(prompts)
    found = GraphEngine(model, [END]).generate(prompts, seeds, WAYS["colder"])
    same(found, TorchEngine(model, [END]).generate(prompts, seeds, WAYS["colder"]))


def test_replies_that_all_end_at_once_are_one_token_long(model: PreTrainedModel) -> None:
    everything = list(range(model.config.vocab_size))
    groups = GraphEngine(model, everything).generate(PROMPTS, SEEDS, WAYS["whole distribution"])
    assert {(len(reply.ids), reply.finish_reason) for reply in flat(groups)} == {(1, "stop")}


def test_nothing_asked_is_nothing_answered(model: PreTrainedModel) -> None:
    engine = GraphEngine(model, [END])
    assert engine.generate([], [], Sampling(3)) == []
    assert engine.generate(PROMPTS[:2], [[], []], Sampling(3)) == [[], []]
    # Groups without replies that make a batch of their own.
    few = GraphEngine(model, [END], batch_replies=1).generate(PROMPTS, [[], [5], [], []], Sampling(3))
    assert few == [[], engine.generate(PROMPTS, [[], [5], [], []], Sampling(3))[1], [], []]
    with pytest.raises(ValueError, match="2 prompts but seeds for 1"):
        engine.generate(PROMPTS[:2], [[1]], Sampling(3))
    with pytest.raises(ValueError, match="at least one token"):
        engine.generate([[1], []], [[1], [2]], Sampling(3))


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int]]]:
    """Passes for 1, 2, 3, 4, 6, 8 … rows and at most 5 prompt tokens; yields the passes made: which, how many rows."""
    monkeypatch.setattr(graph_engine, "BUCKETS", [b // 16 for b in graph_engine.BUCKETS])
    monkeypatch.setattr(graph_engine, "PROMPT_ROWS", 5)
    passes: list[tuple[str, int]] = []

    def noted(self: Step, key: tuple, work: object) -> None:
        passes.append(key[:2])
        work()

    monkeypatch.setattr(Step, "_run", noted)
    yield passes


def test_replies_that_have_ended_leave_once_the_others_fit_a_smaller_pass(
    model: PreTrainedModel, small_buckets: list[tuple[str, int]]
) -> None:
    ends, seeds, sampling = [2, 7, 11, 17, 30], [list(range(16))] * 4, Sampling(40)
    groups = GraphEngine(model, ends).generate(PROMPTS, seeds, sampling)
    same(groups, TorchEngine(model, ends).generate(PROMPTS, seeds, sampling))
    lengths = np.array([len(reply.ids) for reply in flat(groups)])
    rows = [rows for name, rows in small_buckets if name == "next"]
    # Pass i computes token i + 1; who is still writing is asked before tokens 4, 8, …
    writing = [(lengths > max(4 * ((i + 1) // 4), 0)).sum() for i in range(len(rows))]
    assert rows == [bucket(max(int(count), 1)) for count in writing]
    assert rows[0] == 64 > rows[-1] and len(rows) - lengths.max() < 4


def test_long_prompts_are_computed_in_parts_and_the_shared_prefix_once_until_the_weights_change(
    small_buckets: list[tuple[str, int]],
) -> None:
    changing = drawn(qwen3)
    engine = GraphEngine(changing, [END])
    same(
        engine.generate(PROMPTS, SEEDS, Sampling(2)), TorchEngine(changing, [END]).generate(PROMPTS, SEEDS, Sampling(2))
    )
    # 4 shared tokens; 1 + 5 + 2 + 1 of the prompts' own, in 5 and 4 (a pass has 6 rows, not 5); 11 replies.
    assert small_buckets == [("prompt", 4), ("prompt", 6), ("prompt", 4), ("first", 12), ("next", 12)]
    small_buckets.clear()
    engine.generate(PROMPTS, SEEDS, Sampling(1))
    assert small_buckets == [("prompt", 6), ("prompt", 4), ("first", 12)]
    engine.weights_changed()
    engine.generate(PROMPTS, SEEDS, Sampling(1))
    assert small_buckets[3:] == [("prompt", 4), ("prompt", 6), ("prompt", 4), ("first", 12)]


def test_another_prefix_other_sizes_and_small_batches_change_nothing(model: PreTrainedModel) -> None:
    engine = GraphEngine(model, [END, 7], batch_replies=4)
    for prompts in (PROMPTS, PROMPTS[1:3], APART, PROMPTS[:1], PROMPTS):
        for limit in (5, 9):
            seeds = [[1, 2, 3]] * len(prompts)
            expected = TorchEngine(model, [END, 7]).generate(prompts, seeds, Sampling(limit))
            same(engine.generate(prompts, seeds, Sampling(limit)), expected)


def test_the_next_call_samples_from_weights_that_changed_in_place() -> None:
    changing = drawn(FAMILIES["llama grouped untied"])
    engine = GraphEngine(changing, [END])
    before = engine.generate(PROMPTS, SEEDS, Sampling(12))
    with torch.no_grad():
        for parameter in changing.parameters():
            parameter.mul_(1.1)
    engine.weights_changed()
    after = engine.generate(PROMPTS, SEEDS, Sampling(12))
    same(after, TorchEngine(changing, [END]).generate(PROMPTS, SEEDS, Sampling(12)))
    assert before != after


def test_bfloat16_copies_leave_the_model_alone_and_stay_near_its_log_probabilities() -> None:
    model = drawn(qwen3, dtype=torch.float32)
    kept = [parameter.clone() for parameter in model.parameters()]
    (group,) = GraphEngine(model, [], torch.bfloat16).generate(PROMPTS[:1], [list(range(20))], Sampling(8))
    with torch.no_grad():
        exact = torch.stack([distributions(model, PROMPTS[0], r.ids)[range(8), r.ids] for r in group])
    gap = (torch.tensor([reply.logprobs for reply in group]) - exact).abs().mean()
    # bfloat16 keeps 8 bits: about 0.4 % a rounding, a few dozen roundings deep.
    assert 0 < gap < 0.05
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), kept, strict=True))


def test_room_grows_for_what_is_needed_and_keeps_what_it_had() -> None:
    room = Room(16, 100, 100, 4, 50)
    grown = room.grown(Room(32, 80, 100, 8, 50))
    assert grown == Room(36, 100, 100, 9, 50)
    assert grown.holds(room) and grown.holds(Room(32, 80, 100, 8, 50)) and not room.holds(grown)
