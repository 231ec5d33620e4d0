"""Drawing tokens: inverse transform sampling, held against probabilities computed apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneloop.rollout.contract import Sampling, reply_seed
from tuneloop.rollout.sampling import next_tokens, uniforms

LAST = 1 - 2**-53
"""The largest number that `Generator.random` gives."""
GRID = [*np.linspace(0, 1, 4001)[:-1], LAST]


def draw(logits: list[float], u: list[float], **sampling: float) -> list[int]:
    rows = torch.tensor([logits] * len(u), dtype=torch.float64)
    ids, logp = next_tokens(rows, Sampling(1, **sampling), torch.tensor(u, dtype=torch.float64))
    temperature = sampling.get("temperature", 1.0)
    expected = (rows[0] / temperature).log_softmax(-1)
    # Whatever is cut away, the log-probability is that of the whole distribution.
    assert torch.allclose(logp, expected[ids], rtol=1e-12)
    return ids.tolist()


def softmax(logits: list[float], temperature: float) -> list[float]:
    weights = [math.exp((x - max(logits)) / temperature) for x in logits]
    return [w / math.fsum(weights) for w in weights]


def kept(probabilities: list[float], top_k: int, top_p: float) -> set[int]:
    """What top-k and then top-p leave, by sorting: the k likeliest, then the shortest head of them that
    holds at least the share p of their sum."""
    order = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])[: top_k or None]
    whole, head, held = math.fsum(probabilities[i] for i in order), [], 0.0
    for i in order:
        if held >= top_p * whole:
            break
        head.append(i)
        held += probabilities[i]
    return set(head)


@given(
    st.lists(st.integers(-40, 20), min_size=1, max_size=9, unique=True),
    st.sampled_from([0.3, 1.0, 2.0]),
    st.integers(0, 10),
    st.sampled_from([0.1, 0.5, 0.83, 1.0]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_top_k_and_top_p_draw_every_kept_token_at_its_share_and_no_other(
    tenths: list[int], temperature: float, top_k: int, top_p: float
) -> None:
    logits = [t / 10 for t in tenths]
    probabilities = softmax(logits, temperature)
    keep = kept(probabilities, top_k, top_p)
    ids = draw(logits, GRID, temperature=temperature, top_k=top_k, top_p=top_p)
    total = math.fsum(probabilities[i] for i in keep)
    for token, probability in enumerate(probabilities):
        share = ids.count(token) / len(ids)
        # An evenly spaced grid of u meets an interval's length to within one step at either end.
        expected = probability / total if token in keep else 0.0
        assert share == pytest.approx(expected, abs=2 / len(GRID)) if token in keep else share == 0


FORBIDDEN = -math.inf
POSSIBLE = {
    # At both ends and in the middle; -200 is a probability of exactly 0 in float32.
    "a few tokens": [FORBIDDEN, 0.0, FORBIDDEN, 1.0, 0.5, -200.0, FORBIDDEN],
    # Whole stretches of a larger vocabulary, whose length is no round number.
    "many tokens": [*[FORBIDDEN] * 40, 0.0, 1.0, *[FORBIDDEN] * 70, 0.5, -200.0, *[FORBIDDEN] * 37],
}


@pytest.mark.parametrize("logits", POSSIBLE.values(), ids=POSSIBLE)
@pytest.mark.parametrize("sampling", [Sampling(1), Sampling(1, top_k=3), Sampling(1, top_p=0.999)])
def test_a_token_of_probability_0_is_never_drawn(logits: list[float], sampling: Sampling) -> None:
    u = torch.tensor([0.0, 5e-324, 2**-53, *np.linspace(0, LAST, 999), LAST], dtype=torch.float64)
    ids, logp = next_tokens(torch.tensor([logits] * len(u), dtype=torch.float32), sampling, u)
    assert set(ids.tolist()) == {i for i, logit in enumerate(logits) if logit > -100}
    assert torch.isfinite(logp).all()


@pytest.mark.parametrize("vocabulary", [31, 32, 33, 64, 511])
def test_tokens_of_any_vocabulary_are_drawn_at_their_shares(vocabulary: int) -> None:
    logits = (torch.randn(vocabulary, generator=torch.Generator().manual_seed(1)) * 2).tolist()
    u = np.linspace(0, 1, 4001)[:-1].tolist()
    shares = np.bincount(draw(logits, u), minlength=vocabulary) / len(u)
    assert np.abs(shares - softmax(logits, 1.0)).max() < 2 / len(u)


def test_u_of_0_draws_the_first_possible_token_and_the_last_u_the_last() -> None:
    # 1,000 tokens: their probabilities, summed, do not round to 1.
    logits = torch.linspace(-3, 3, 1000)
    ids, _ = next_tokens(logits.expand(2, -1), Sampling(1), torch.tensor([0.0, LAST], dtype=torch.float64))
    assert ids.tolist() == [0, 999]


@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=100), st.floats(0, LAST))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_any_u_draws_a_token_of_the_vocabulary_that_has_a_probability(logits: list[float], u: float) -> None:
    rows = torch.tensor([logits], dtype=torch.float32)
    ids, _ = next_tokens(rows, Sampling(1), torch.tensor([u], dtype=torch.float64))
    assert rows.softmax(-1)[0, ids[0]] > 0


def test_greedy_takes_the_likeliest_token_whatever_else_is_set() -> None:
    sampling = Sampling(1, temperature=9.0, top_p=0.1, top_k=1, greedy=True)
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    ids, logp = next_tokens(logits, sampling, torch.tensor([0.999]))
    assert ids.tolist() == [1]
    assert logp.item() == pytest.approx(2 - math.log(1 + math.e + math.e**2), rel=1e-6)


@pytest.mark.parametrize("length", [1, 4, 5, 32])
def test_the_numbers_are_those_of_numpys_philox_generator_keyed_by_the_seed(length: int) -> None:
    seeds = [0, 1, 2**32, 2**63, 2**64 - 1, 2**64, 2**128 - 1, *(reply_seed("x", i) for i in range(20))]
    expected = [np.random.Generator(np.random.Philox(key=seed)).random(length) for seed in seeds]
    assert np.array_equal(uniforms(seeds, length), np.stack(expected))


def test_a_replys_numbers_depend_on_its_seed_alone() -> None:
    seeds = [3, 2**64 - 1, 0, 3]
    rows = uniforms(seeds, 6)
    assert (rows[0] == rows[3]).all() and len({row.tobytes() for row in rows}) == 3
    assert (uniforms([0], 6) == rows[2]).all()
    # A higher limit draws the same numbers first.
    assert (uniforms(seeds, 9)[:, :6] == rows).all()


def test_reply_seeds_tell_their_parts_apart() -> None:
    # sha256 over the parts with a separator: ("a", "bc") is not ("ab", "c"), 1 and "1" are the same text.
    seeds = [reply_seed(*parts) for parts in (("a", "bc"), ("ab", "c"), ("abc",), (1, 2), (12,))]
    assert len(set(seeds)) == 5 and reply_seed(1, "x") == reply_seed("1", "x")
    assert all(0 <= seed < 2**64 for seed in seeds)
