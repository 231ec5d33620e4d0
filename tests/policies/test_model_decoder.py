"""`ModelDecoder` against `DenseDecoder` where both compute a model, against transformers where only it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from policies.tiny_models import (
    FAMILIES,
    VOCABULARY,
    bailing_hybrid,
    distributions,
    drawn,
    llama,
    qwen3,
    relative_error,
    with_exact_norms,
)
from torch.distributed.fsdp import fully_shard
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
)

from tuneloop.errors import UserError
from tuneloop.policies import decoders
from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.decoders import load_decoder
from tuneloop.policies.model_decoder import ModelDecoder
from tuneloop.policies.prompt_tree import prompt_tree
from tuneloop.policies.scoring import reply_logprobs
from tuneloop.policies.warm_start import warm_start
from tuneloop.rollout.contract import Sampling
from tuneloop.rollout.transformers_engine import TransformersEngine
from tuneloop.training.batch import Group
from tuneloop.training.objectives import OBJECTIVES, Clip
from tuneloop.training.update import accumulate

PREFIX = [5, 9, 9, 31]
PROMPTS = [[*PREFIX, 7], [*PREFIX, 8, 3, 3, 12, 30], [*PREFIX, 8, 3], [*PREFIX, 1]]
REPLIES = [[[4, 4, 2], []], [[11], [39, 10, 6, 17, 2]], [[1, 2], [2]], [[], []]]
"""Replies of 3, 0, 1, 5, 2 and 1 tokens, and a group without any."""
SEQUENCES = [(prompt, reply) for prompt, group in zip(PROMPTS, REPLIES) for reply in group if reply]
WEIGHTS = torch.linspace(-1, 2, 12, dtype=torch.float64)
"""Every token pulls with a weight of its own, so that no two can be exchanged unseen."""


def gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=64, eos_token_id=2)
    )


def gemma2(cap: float | None) -> PreTrainedModel:
    return Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, final_logit_softcapping=cap, attn_logit_softcapping=None,
        )
    )  # fmt: skip


def cohere(scale: float) -> PreTrainedModel:
    return CohereForCausalLM(
        CohereConfig(
            vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
            logit_scale=scale, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_and_gradients_are_those_of_the_dense_decoder(family: str) -> None:
    ours, dense = with_exact_norms(drawn(FAMILIES[family])), drawn(FAMILIES[family])
    tree = prompt_tree(PROMPTS, REPLIES)
    found, entropy = reply_logprobs(ModelDecoder(ours), tree, temperature=0.7)
    expected, expected_entropy = reply_logprobs(DenseDecoder(dense), tree, temperature=0.7)
    assert relative_error(found, expected) < 1e-9
    assert relative_error(entropy, expected_entropy) < 1e-9
    for logp, h in ((found, entropy), (expected, expected_entropy)):
        (WEIGHTS @ logp + WEIGHTS.flip(0) @ h).backward()
    for (name, parameter), reference in zip(ours.named_parameters(), dense.parameters(), strict=True):
        assert relative_error(parameter.grad, reference.grad) < 1e-9, name


@pytest.mark.parametrize(
    ("make", "dtype", "limit"),
    [
        # float32 is what its experts and its linear attention compute in, whatever the model's type.
        (bailing_hybrid, torch.float32, 1e-4),
        (gpt2, torch.float64, 1e-9),
        (lambda: gemma2(None), torch.float64, 1e-6),
        (lambda: cohere(1.0), torch.float64, 1e-6),
    ],
    ids=["bailing_hybrid", "gpt2", "gemma2 uncapped", "cohere unscaled"],
)
def test_other_architectures_are_scored_as_transformers_scores_one_sequence_at_a_time(
    make: Callable[[], PreTrainedModel], dtype: torch.dtype, limit: float
) -> None:
    ours, theirs = drawn(make, dtype=dtype), drawn(make, dtype=dtype)
    found, _ = reply_logprobs(ModelDecoder(ours), prompt_tree(PROMPTS, REPLIES))
    rows = torch.cat([distributions(theirs, *sequence) for sequence in SEQUENCES])
    expected = rows.gather(1, torch.tensor([i for _, reply in SEQUENCES for i in reply])[:, None])[:, 0]
    assert relative_error(found, expected) < limit
    (WEIGHTS.to(dtype) @ found).backward()
    (WEIGHTS.to(dtype) @ expected).backward()
    scale = max(p.grad.norm() for p in theirs.parameters())
    for (name, parameter), reference in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert (parameter.grad - reference.grad).norm() < 10 * limit * scale, name


def test_checkpointed_layers_give_the_same_gradients_and_are_computed_twice() -> None:
    model = drawn(qwen3)
    computed: list[int] = []
    model.model.layers[0].self_attn.register_forward_hook(lambda *_: computed.append(1))
    found = {}
    for checkpoint_layers in (False, True):
        decoder = ModelDecoder(model, checkpoint_layers=checkpoint_layers)
        computed.clear()
        (WEIGHTS @ reply_logprobs(decoder, prompt_tree(PROMPTS, REPLIES))[0]).backward()
        assert len(computed) == 1 + checkpoint_layers
        found[checkpoint_layers] = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        assert not any(module.training for module in model.modules())
    assert all(relative_error(one, other) < 1e-12 for one, other in zip(*found.values()))


def test_half_precision_products_leave_log_probabilities_and_master_gradients_in_float32() -> None:
    model = drawn(bailing_hybrid, dtype=torch.float32)
    tree = prompt_tree(PROMPTS, REPLIES)
    expected, _ = reply_logprobs(ModelDecoder(model), tree)
    found, _ = reply_logprobs(ModelDecoder(model, torch.bfloat16), tree)
    assert found.dtype == torch.float32
    # bfloat16 keeps 8 bits: about 0.4 % a rounding, a few dozen roundings deep.
    assert 1e-4 < relative_error(found, expected) < 0.05
    found.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


def test_every_packed_token_has_its_hidden_state_also_where_a_group_has_no_replies() -> None:
    model = with_exact_norms(drawn(qwen3))
    for tree in (prompt_tree(PROMPTS, REPLIES), prompt_tree(PROMPTS, []), prompt_tree([[3], [3]], [[[1, 2]], [[]]])):
        with torch.no_grad():
            found, expected = ModelDecoder(model).forward(tree), DenseDecoder(model).forward(tree)
        assert relative_error(found, expected) < 1e-9


@pytest.mark.parametrize(
    "make", [lambda: gemma2(30.0), lambda: gemma2(10.0), lambda: cohere(0.0625)], ids=["cap 30", "cap 10", "scale"]
)
def test_a_model_that_caps_or_scales_its_logits_is_refused(make: Callable[[], PreTrainedModel]) -> None:
    # As transformers begins with it: logits near 0.1, which a cap of 30 leaves as they are to six digits.
    with pytest.raises(UserError, match="scales, caps or shifts"):
        ModelDecoder(make().eval())


def test_a_bias_of_the_head_is_refused() -> None:
    model = drawn(llama)
    model.lm_head.bias = torch.nn.Parameter(torch.ones(VOCABULARY, dtype=torch.float64))
    with pytest.raises(UserError, match="logits"):
        ModelDecoder(model)


def test_the_check_leaves_the_model_as_it_was() -> None:
    model = drawn(bailing_hybrid, dtype=torch.float32)
    ids = torch.tensor([PROMPTS[1]])
    with torch.no_grad():
        before = model(input_ids=ids).logits
        ModelDecoder(model)
        assert torch.equal(model(input_ids=ids).logits, before)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_the_dense_decoder_is_taken_where_it_can_be_and_anything_else_is_announced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    decoders._announce.cache_clear()  # said once a process
    assert type(load_decoder(qwen3())) is DenseDecoder
    assert capsys.readouterr().out == ""
    scaled = llama()
    scaled.config.rope_parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    assert type(load_decoder(scaled)) is ModelDecoder
    assert "'linear'" in capsys.readouterr().out
    assert type(load_decoder(gpt2().eval())) is ModelDecoder
    assert "'gpt2'" in capsys.readouterr().out


@pytest.fixture
def alone_in_a_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_model_that_is_spread_over_ranks_is_refused(alone_in_a_group: None) -> None:
    model = drawn(bailing_hybrid, dtype=torch.float32)
    decoder, engine = ModelDecoder(model), TransformersEngine(model, [2])
    fully_shard(model)
    with pytest.raises(UserError, match=r"machine\.ranks: .*'bailing_hybrid'.*one rank"):
        decoder.forward(prompt_tree(PROMPTS, REPLIES))
    with pytest.raises(UserError, match=r"machine\.ranks"):
        engine.generate(PROMPTS, [[1]] * 4, Sampling(2))


@pytest.fixture
def threads_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def gradients(model: PreTrainedModel, threads: int, micro_batch_replies: int) -> dict[str, torch.Tensor]:
    torch.set_num_threads(threads)
    with torch.no_grad():
        old = reply_logprobs(ModelDecoder(model), prompt_tree(PROMPTS, REPLIES))[0].tolist()
    numbers = iter(old)
    groups = [
        Group(prompt, group, [[next(numbers) - 0.1 for _ in reply] for reply in group], [1.0, -0.5])
        for prompt, group in zip(PROMPTS, REPLIES)
    ]
    accumulate(ModelDecoder(model), groups, OBJECTIVES["gspo"], Clip(0.2, 0.2), 1.0, 8, micro_batch_replies)
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def test_an_update_of_a_hybrid_model_is_the_same_in_one_piece_in_micro_batches_and_in_lanes(
    threads_as_before: None,
) -> None:
    model = drawn(bailing_hybrid, dtype=torch.float32)
    whole = gradients(model, threads=1, micro_batch_replies=512)
    scale = max(gradient.norm() for gradient in whole.values())
    assert scale > 1e-3
    for threads, replies in ((1, 2), (2, 512)):
        found = gradients(model, threads, replies)
        assert all((found[name] - whole[name]).norm() < 1e-4 * scale for name in whole)


def test_a_hybrid_model_learns_its_examples() -> None:
    torch.manual_seed(0)
    model = bailing_hybrid(initializer_range=0.1).eval()
    examples = [([5, 9, i], [i + 1, 2]) for i in range(10, 20)] * 8
    losses = warm_start(ModelDecoder(model), examples, batch_size=10, lr=2e-2)
    # ln 40 = 3.69 nats a token where nothing is known; 1.15 where all is but which of the ten examples it is.
    assert losses[0] > 3 and losses[-1] < 2.5
