"""The transformers engine against the torch engine, and against the trainer's scoring where only it samples."""

from __future__ import annotations

import pytest
import torch
from policies.tiny_models import FAMILIES, VOCABULARY, bailing_hybrid, drawn, qwen3, with_exact_norms
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from tuneloop.errors import UserError
from tuneloop.policies.decoders import load_decoder
from tuneloop.policies.model_decoder import ModelDecoder
from tuneloop.policies.prompt_tree import prompt_tree
from tuneloop.policies.scoring import reply_logprobs
from tuneloop.rollout import transformers_engine
from tuneloop.rollout.contract import Reply, Sampling
from tuneloop.rollout.torch_engine import TorchEngine
from tuneloop.rollout.transformers_engine import TransformersEngine

ENDS = [2, 7, 30]
PREFIX = [5, 9, 9, 31]
PROMPTS = [[*PREFIX, 7], [*PREFIX, 8, 3, 3, 12, 30], [*PREFIX, 8, 3], [*PREFIX, 8]]
SEEDS = [[1, 2, 3], [4], [], [5, 6, 7, 8, 9, 10, 11]]
SAMPLING = Sampling(max_new_tokens=12)


def hybrid() -> PreTrainedModel:
    return drawn(bailing_hybrid, dtype=torch.float32)


def flat(groups: list[list[Reply]]) -> list[Reply]:
    return [reply for group in groups for reply in group]


def largest_gap(model: PreTrainedModel, groups: list[list[Reply]], temperature: float = 1.0) -> float:
    """Between the engine's log-probabilities and those that the trainer gives the same tokens."""
    gaps = []
    with torch.no_grad():
        for prompt, group in zip(PROMPTS, groups):
            if group:
                tree = prompt_tree([prompt], [[reply.ids for reply in group]])
                expected, _ = reply_logprobs(load_decoder(model), tree, temperature)
                found = torch.tensor([p for r in group for p in r.logprobs], dtype=torch.float64)
                gaps.append((found - expected).abs().max().item())
    return max(gaps)


@pytest.mark.parametrize(
    "sampling",
    [SAMPLING, Sampling(12, temperature=0.6), Sampling(12, 1.3, top_p=0.8, top_k=6), Sampling(12, greedy=True)],
    ids=["plain", "cool", "cut", "greedy"],
)
@pytest.mark.parametrize("family", ["qwen3 grouped tied", "llama grouped untied"])
def test_replies_and_log_probabilities_are_those_of_the_torch_engine(family: str, sampling: Sampling) -> None:
    model = with_exact_norms(drawn(FAMILIES[family]))
    found = TransformersEngine(model, ENDS).generate(PROMPTS, SEEDS, sampling)
    expected = TorchEngine(model, ENDS).generate(PROMPTS, SEEDS, sampling)
    assert [len(group) for group in found] == [3, 1, 0, 7]
    for one, other in zip(flat(found), flat(expected), strict=True):
        assert (one.ids, one.finish_reason) == (other.ids, other.finish_reason)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-9)


def test_left_padding_is_right_for_the_hybrid_architecture_and_its_numbers_are_the_trainers() -> None:
    model = hybrid()
    engine = TransformersEngine(model, ENDS)
    assert engine.pads
    groups = engine.generate(PROMPTS, SEEDS, Sampling(12, temperature=1.5))
    assert {reply.finish_reason for reply in flat(groups)} == {"stop", "length"}
    # float32 on both sides; the linear attention is computed in chunks here and token by token there.
    assert largest_gap(model, groups, 1.5) < 1e-4


def test_a_hybrid_reply_depends_on_its_seed_and_on_nothing_else_in_the_batch() -> None:
    engine = TransformersEngine(hybrid(), ENDS)
    alone = {
        seed: engine.generate([prompt], [[seed]], SAMPLING)[0][0].ids
        for prompt, seeds in zip(PROMPTS, SEEDS)
        for seed in seeds
    }
    assert len({tuple(ids) for ids in alone.values()}) == len(alone)
    for batch_replies, order in ((256, [0, 1, 2, 3]), (3, [3, 1, 0, 2])):
        engine.batch_replies, seeds = batch_replies, [SEEDS[b][::-1] for b in order]
        groups = engine.generate([PROMPTS[b] for b in order], seeds, SAMPLING)
        assert [[reply.ids for reply in group] for group in groups] == [[alone[s] for s in group] for group in seeds]


def test_greedy_hybrid_replies_are_those_of_transformers_generate() -> None:
    model = hybrid()
    groups = TransformersEngine(model, ENDS).generate(PROMPTS[:2], [[0]] * 2, Sampling(10, greedy=True))
    for prompt, (reply,) in zip(PROMPTS, groups):
        ids = torch.tensor([prompt])
        expected = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=10, eos_token_id=ENDS
        )
        assert reply.ids == expected[0, len(prompt) :].tolist()


@pytest.fixture
def blind() -> PreTrainedModel:
    """A model that never sees the mask, so that it reads padding like any other token."""
    model = with_exact_norms(drawn(qwen3))
    whole = model.forward

    # transformers calls the cache `cache` since 5.24, `past_key_values` before.
    def without_mask(input_ids=None, position_ids=None, cache=None, past_key_values=None, use_cache=None):
        given = {"position_ids": position_ids, "cache": cache, "past_key_values": past_key_values}
        return whole(input_ids=input_ids, use_cache=use_cache, **{k: v for k, v in given.items() if v is not None})

    model.forward = without_mask
    return model


def test_an_architecture_that_padding_disturbs_gets_prompts_of_equal_length_together(blind: PreTrainedModel) -> None:
    engine = TransformersEngine(blind, ENDS)
    assert not engine.pads
    prompts = [*PROMPTS, [1, 2, 3, 4, 5]]  # as long as the first and the last but one
    seeds = [*SEEDS, [12, 13]]
    assert list(engine._batches(prompts, seeds)) == [[0, 3, 4], [1]]
    expected = TorchEngine(drawn(qwen3), ENDS).generate(prompts, seeds, SAMPLING)
    found = engine.generate(prompts, seeds, SAMPLING)
    assert [r.ids for r in flat(found)] == [r.ids for r in flat(expected)]


def test_learned_positions_are_right_behind_padding() -> None:
    model = drawn(
        lambda: GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=64, eos_token_id=2)
        )
    )
    engine = TransformersEngine(model, ENDS)
    assert engine.pads
    assert largest_gap(model, engine.generate(PROMPTS, SEEDS, SAMPLING)) < 1e-9


def test_half_precision_products_are_those_of_the_trainer_but_for_rounding() -> None:
    model = drawn(qwen3, dtype=torch.float32)
    engine = TransformersEngine(model, ENDS, torch.bfloat16)
    assert engine.pads
    groups = engine.generate(PROMPTS, SEEDS, SAMPLING)
    with torch.no_grad():
        tree = prompt_tree([PROMPTS[0]], [[reply.ids for reply in groups[0]]])
        expected, _ = reply_logprobs(ModelDecoder(model, torch.bfloat16), tree)
    found = torch.tensor([p for reply in groups[0] for p in reply.logprobs])
    # bfloat16 keeps 8 bits: logits near 10 are off by a few hundredths; float32 would agree to 1e-5.
    assert 1e-4 < (found - expected).abs().max() < 0.3
    assert largest_gap(model, groups) > 1e-4


def test_a_prompt_is_computed_once_a_group_and_replies_that_have_ended_leave_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = drawn(qwen3)
    engine = TransformersEngine(model, [0, 2, 7, 11, 17, 30])
    calls: list[tuple[int, ...]] = []
    run = transformers_engine.Flight._run

    def counted(self: transformers_engine.Flight, ids: torch.Tensor, positions: torch.Tensor) -> None:
        calls.append(tuple(ids.shape))
        run(self, ids, positions)

    monkeypatch.setattr(transformers_engine.Flight, "_run", counted)
    replies = flat(engine.generate(PROMPTS, [list(range(16))] * 4, Sampling(40)))
    # Four prompts, padded to the longest of 9 tokens; then one token a reply.
    assert calls[0] == (4, 9)
    assert {width for _, width in calls[1:]} == {1}
    for t, (carried, _) in enumerate(calls[1:]):
        running = sum(len(reply.ids) > t + 1 for reply in replies)
        # At most a quarter of what is computed may be replies that have already ended.
        assert 0.75 * carried < running <= carried
    assert calls[1][0] > calls[-1][0]


def test_the_next_call_samples_from_weights_that_changed_in_place() -> None:
    model = drawn(qwen3)
    engine = TransformersEngine(model, ENDS)
    before = engine.generate(PROMPTS, SEEDS, SAMPLING)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    engine.weights_changed()
    after = engine.generate(PROMPTS, SEEDS, SAMPLING)
    assert before != after
    assert largest_gap(model, after) < 1e-5
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_nothing_asked_is_nothing_answered() -> None:
    engine = TransformersEngine(drawn(qwen3), ENDS)
    assert engine.generate([], [], SAMPLING) == []
    assert engine.generate(PROMPTS[:2], [[], []], SAMPLING) == [[], []]
    with pytest.raises(ValueError, match="2 prompts but seeds for 1"):
        engine.generate(PROMPTS[:2], [[1]], SAMPLING)


def test_a_cache_that_gives_other_logits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = drawn(qwen3)
    real = transformers_engine.Flight.advance

    def late(self: transformers_engine.Flight, tokens: torch.Tensor) -> None:
        self.positions = self.positions + 3
        real(self, tokens)

    monkeypatch.setattr(transformers_engine.Flight, "advance", late)
    with pytest.raises(UserError, match=r"'qwen3'.*other logits.*vllm"):
        TransformersEngine(model, ENDS)
