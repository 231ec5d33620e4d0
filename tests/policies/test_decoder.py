"""`DenseDecoder` against transformers: the same models, one sequence at a time."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policies.tiny_models import (
    FAMILIES,
    VOCABULARY,
    distributions,
    drawn,
    llama,
    logprobs,
    qwen2,
    qwen3,
    relative_error,
)
from policies.tiny_models import with_exact_norms as exact
from transformers import GPT2Config, GPT2LMHeadModel

from tuneloop.errors import UserError
from tuneloop.policies import kernels
from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.prompt_tree import prompt_tree
from tuneloop.policies.scoring import reply_logprobs

PREFIX = [5, 9, 9, 31]
PROMPTS = [[*PREFIX, 7], [*PREFIX, 8, 3, 3, 12, 30], [*PREFIX, 8, 3]]
REPLIES = [[[4, 4, 2], []], [[11], [39, 0, 6, 17, 2]], [[1, 2], [2]]]
"""Three prompts that share four tokens, then one, five and two of their own, two of which go on
sharing; replies of 3, 0, 1, 5, 2 and 1 tokens."""
SEQUENCES = [(prompt, reply) for prompt, group in zip(PROMPTS, REPLIES) for reply in group]


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_are_those_of_transformers(family: str) -> None:
    model = drawn(FAMILIES[family])
    with torch.no_grad():
        expected = torch.cat([logprobs(model, *sequence) for sequence in SEQUENCES])
        found, _ = reply_logprobs(DenseDecoder(model), prompt_tree(PROMPTS, REPLIES))
    assert relative_error(found, expected) < 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_entropies_and_all_gradients_are_those_of_transformers_autograd(family: str) -> None:
    ours, theirs = drawn(FAMILIES[family]), exact(drawn(FAMILIES[family]))
    found, entropy = reply_logprobs(DenseDecoder(ours), prompt_tree(PROMPTS, REPLIES), temperature=0.7)
    rows = torch.cat([distributions(theirs, *sequence, temperature=0.7) for sequence in SEQUENCES])
    expected = rows.gather(1, torch.tensor([i for _, reply in SEQUENCES for i in reply])[:, None])[:, 0]
    expected_entropy = torch.distributions.Categorical(logits=rows).entropy()
    assert relative_error(found, expected) < 1e-12
    assert relative_error(entropy, expected_entropy) < 1e-12

    # Every token pulls with a weight of its own, so that no two can be exchanged unseen.
    weights = torch.linspace(-1, 2, len(found), dtype=torch.float64)
    (weights @ found + weights.flip(0) @ entropy).backward()
    (weights @ expected + weights.flip(0) @ expected_entropy).backward()
    for (name, parameter), reference in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert relative_error(parameter.grad, reference.grad) < 1e-10, name


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_in_transformers_gives_the_same_log_probabilities(side: str) -> None:
    model = exact(drawn(FAMILIES["qwen2 grouped tied"]))
    rows = [[*prompt, *reply] for prompt, reply in SEQUENCES]
    width = max(map(len, rows))
    ids, mask, positions = (torch.zeros(len(rows), width, dtype=torch.long) for _ in range(3))
    places = []
    for i, row in enumerate(rows):
        place = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        # The padding is the end token, which also occurs in the replies.
        ids[i] = model.config.pad_token_id
        ids[i, place], mask[i, place], positions[i, place] = torch.tensor(row), 1, torch.arange(len(row))
        places.append(place)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
        found, _ = reply_logprobs(DenseDecoder(model), prompt_tree(PROMPTS, REPLIES))
    expected = [
        logits[i, place][len(prompt) - 1 + t].log_softmax(-1)[token]
        for i, (place, (prompt, reply)) in enumerate(zip(places, SEQUENCES))
        for t, token in enumerate(reply)
    ]
    assert relative_error(found, torch.stack(expected)) < 1e-12


SHALLOW = exact(drawn(lambda: qwen3(layers=1), seed=3))
TOKENS = st.integers(0, VOCABULARY - 1)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[int]], list[list[list[int]]]]:
    """Any prompts (equal ones and prefixes of one another among them) with equally many replies each."""
    shared = draw(st.lists(TOKENS, max_size=5))
    prompts = draw(st.lists(st.lists(TOKENS, max_size=5).map(lambda own: shared + own), min_size=1, max_size=4))
    prompts = [prompt or [0] for prompt in prompts]
    size = draw(st.integers(1, 3))
    replies = st.lists(st.lists(TOKENS, max_size=5), min_size=size, max_size=size)
    return prompts, [draw(replies) for _ in prompts]


@given(batches())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_any_mix_of_prompts_and_reply_lengths_scores_like_one_sequence_at_a_time(
    batch: tuple[list[list[int]], list[list[list[int]]]],
) -> None:
    prompts, replies = batch
    with torch.no_grad():
        tree = prompt_tree(prompts, replies)
        found, _ = reply_logprobs(DenseDecoder(SHALLOW), tree)
        expected = [logprobs(SHALLOW, prompt, reply) for prompt, group in zip(prompts, replies) for reply in group]
    assert torch.allclose(found, torch.cat(expected), rtol=1e-9, atol=1e-11)
    assert tree.reply_ids.tolist() == [i for group in replies for reply in group for i in reply]


def test_the_place_where_the_shared_part_ends_changes_nothing() -> None:
    model = drawn(qwen3)
    with torch.no_grad():
        found = [
            reply_logprobs(DenseDecoder(model), prompt_tree(PROMPTS, REPLIES, prefix=prefix))[0]
            for prefix in (0, 1, len(PREFIX), 100)
        ]
    for one, other in itertools.pairwise(found):
        assert relative_error(one, other) < 1e-12


def test_every_prompt_token_is_computed_once_however_many_replies_follow() -> None:
    # 4 shared tokens, 1 + 5 + 2 of the prompts' own, 12 reply tokens less the last of five replies.
    tree = prompt_tree(PROMPTS, REPLIES)
    assert (tree.prefix, tree.prompt_tokens, len(tree.ids)) == (4, 4 + 8, 4 + 8 + 12 - 5)


def test_scoring_in_chunks_gives_the_same_values_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, chunked = drawn(qwen3), drawn(qwen3)
    weights = torch.linspace(-1, 2, 12, dtype=torch.float64)
    for model, elements in ((whole, 1 << 24), (chunked, 5 * VOCABULARY)):  # 12 rows at once, or 5, 5 and 2
        monkeypatch.setattr(kernels, "CHUNK_ELEMENTS", elements)
        logp, entropy = reply_logprobs(DenseDecoder(model), prompt_tree(PROMPTS, REPLIES))
        (weights @ logp + weights.flip(0) @ entropy).backward()
    for (name, a), b in zip(whole.named_parameters(), chunked.parameters(), strict=True):
        assert relative_error(b.grad, a.grad) < 1e-12, name


def test_half_precision_models_are_scored_in_float32() -> None:
    model = drawn(qwen3, dtype=torch.bfloat16)
    with torch.no_grad():
        found, entropy = reply_logprobs(DenseDecoder(model), prompt_tree(PROMPTS, REPLIES))
        expected = torch.cat([logprobs(model.double(), *sequence) for sequence in SEQUENCES])
    assert found.dtype == entropy.dtype == torch.float32
    # bfloat16 keeps 8 bits: about 0.4 % a rounding, a few dozen roundings deep.
    assert relative_error(found.double(), expected) < 0.05


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "linear"),
        ({"use_sliding_window": True}, "sliding"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "gelu"),
    ],
)
def test_a_model_whose_forward_pass_would_differ_is_refused(change: dict[str, object], said: str) -> None:
    model = qwen2() if "use_sliding_window" in change else llama()
    for name, value in change.items():
        setattr(model.config, name, value)
    with pytest.raises(UserError, match=said):
        DenseDecoder(model)


def test_another_architecture_is_refused_by_name() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=10, n_embd=8, n_layer=1, n_head=1))
    with pytest.raises(UserError, match="'gpt2'"):
        DenseDecoder(model)


@pytest.mark.parametrize(
    ("prompts", "replies"),
    [([], []), ([[1], []], [[[1]], [[2]]]), ([[1], [2]], [[[1]], [[2], [3]]]), ([[1], [2]], [[[1]]])],
)
def test_a_batch_that_is_no_tree_is_a_value_error(prompts: list, replies: list) -> None:
    with pytest.raises(ValueError):
        prompt_tree(prompts, replies)
