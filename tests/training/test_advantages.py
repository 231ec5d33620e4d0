"""Group-relative advantages."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneloop.training.advantages import group_advantages

REWARDS = st.lists(st.sampled_from([-1.0, 0.0, 0.8, 1.0]), min_size=2, max_size=16)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 16, 31])
# Seven 0.8s in float32 have a mean that is not 0.8 and, with a small epsilon under the fraction, advantages
# near 1. The others are as unfriendly: no short binary form, far from 0, too fine for float32.
@pytest.mark.parametrize("reward", [0.8, -1.0, 0.1, 1 / 3, 1e-30, 16777217.0, 1e15 + 0.3, -7.7e-9])
@pytest.mark.parametrize("scale", [True, False])
def test_equal_rewards_have_advantages_of_exactly_0(size: int, reward: float, scale: bool) -> None:
    found = group_advantages([reward] * size, scale)
    assert found.dtype == np.float64 and found.tolist() == [0.0] * size


@given(REWARDS, st.booleans())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_advantages_are_the_exact_ones_and_sum_to_0(rewards: list[float], scale: bool) -> None:
    found = group_advantages(rewards, scale)
    exact = [Fraction(r) for r in rewards]
    mean = sum(exact) / len(exact)
    variance = sum((r - mean) ** 2 for r in exact) / len(exact)
    divisor = math.sqrt(variance) if scale and variance else 1.0
    assert found.tolist() == pytest.approx([float(r - mean) / divisor for r in exact], rel=1e-12, abs=1e-14)
    assert abs(math.fsum(found)) < 1e-12
    if scale and variance:
        assert math.fsum(found**2) / len(found) == pytest.approx(1, rel=1e-12)


def test_scaled_advantages_of_two_unlike_replies_are_plus_and_minus_1() -> None:
    assert group_advantages([0.8, -1.0]).tolist() == pytest.approx([1.0, -1.0], rel=1e-12)
    assert group_advantages([0.8, -1.0], scale=False).tolist() == pytest.approx([0.9, -0.9], rel=1e-12)
