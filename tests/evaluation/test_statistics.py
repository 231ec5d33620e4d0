"""Claims about the paired statistics, against independent references."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from tuneloop.evaluation.statistics import (
    Interval,
    mcnemar,
    mean_interval,
    paired_interval,
    share_interval,
    wilson_interval,
)

OPTIONS = {"resamples": 4000, "confidence": 0.95, "seed": 5}


def test_with_one_record_a_class_it_is_scipys_bca_bootstrap() -> None:
    # Reference: scipy.stats.bootstrap(method="BCa"), on lopsided values; both ends carry the Monte
    # Carlo error of their own draws, about 0.02 standard errors of the mean at 20,000 resamples.
    values = np.random.default_rng(1).exponential(size=40) ** 1.5
    ours = mean_interval(values, list(range(40)), resamples=20_000, confidence=0.9, seed=3)
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, confidence_level=0.9, method="BCa", rng=np.random.default_rng(4)
    ).confidence_interval
    error = values.std(ddof=1) / np.sqrt(40)
    assert ours.value == pytest.approx(values.mean(), abs=1e-12)
    assert ours.low == pytest.approx(theirs.low, abs=0.1 * error)
    assert ours.high == pytest.approx(theirs.high, abs=0.1 * error)


def test_bca_moves_the_interval_towards_the_long_tail() -> None:
    # Efron & Tibshirani 1993, ch. 14: for the mean of right-skewed values the BCa interval reaches
    # further to the right than to the left of the estimate.
    values = np.random.default_rng(1).exponential(size=30) ** 2
    found = mean_interval(values, list(range(30)), **OPTIONS)
    assert found.high - found.value > 1.2 * (found.value - found.low)


def test_copies_of_a_record_in_its_class_add_no_certainty() -> None:
    # 30 values each seen 8 times in its class carry what the 30 values carry.
    values = np.random.default_rng(2).normal(size=30)
    once = mean_interval(values, list(range(30)), **OPTIONS)
    copied = mean_interval(np.repeat(values, 8), np.repeat(np.arange(30), 8).tolist(), **OPTIONS)
    assert (copied.low, copied.high) == pytest.approx((once.low, once.high), abs=1e-12)
    taken_as_independent = mean_interval(np.repeat(values, 8), list(range(240)), **OPTIONS)
    # sqrt(8) = 2.83 times narrower, which is the error that clustering prevents.
    ratio = (once.high - once.low) / (taken_as_independent.high - taken_as_independent.low)
    assert ratio == pytest.approx(8**0.5, rel=0.1)


def test_a_95_percent_interval_holds_the_truth_about_95_times_in_100() -> None:
    # Simulation with a known mean of 0: 30 classes of 1 to 8 records, a class effect and noise. The
    # bootstrap is known to fall a little short with few classes; 200 trials have a standard error of 1.5.
    rng = np.random.default_rng(11)
    hits = 0
    for trial in range(200):
        sizes = rng.integers(1, 9, size=30)
        clusters = np.repeat(np.arange(30), sizes)
        values = rng.normal(size=30)[clusters] + rng.normal(size=len(clusters))
        found = mean_interval(values, clusters.tolist(), resamples=500, confidence=0.95, seed=trial)
        hits += found.low <= 0 <= found.high
    assert 0.88 <= hits / 200 <= 0.99


def test_classes_of_unequal_size_weigh_by_their_records() -> None:
    # (1 + 0 + 0 + 0) / 4, by hand: the mean over records, not over classes (which would be 1/2).
    assert mean_interval([1, 0, 0, 0], ["a", "b", "b", "b"], **OPTIONS).value == 0.25


def test_pairs_take_out_what_both_sides_share() -> None:
    # after = before + 0.1 + small noise: the boards differ by 1, the pairs by 0.01.
    rng = np.random.default_rng(3)
    before = rng.normal(size=50)
    after = before + 0.1 + rng.normal(scale=0.01, size=50)
    found = paired_interval(before, after, list(range(50)), **OPTIONS)
    assert found.excludes_zero and found.high - found.low < 0.01
    back = paired_interval(after, before, list(range(50)), **OPTIONS)
    assert back.value == pytest.approx(-found.value) and back.high < 0 and back.excludes_zero


def test_the_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    values, clusters = np.random.default_rng(6).normal(size=60), [i // 3 for i in range(60)]
    first = mean_interval(values, clusters, **OPTIONS)
    assert mean_interval(values, clusters, **OPTIONS) == first
    assert mean_interval(values, clusters, **{**OPTIONS, "seed": 6}) != first


def test_values_without_any_spread_give_an_interval_without_width() -> None:
    assert mean_interval([0.3, 0.3, 0.3], ["a", "b", "b"], **OPTIONS) == Interval(
        pytest.approx(0.3), pytest.approx(0.3), pytest.approx(0.3)
    )


def test_a_share_of_all_or_none_is_not_called_certain() -> None:
    # Wilson (1927) with 20 classes, none failing: the lower end is n / (n + z²) = 20 / (20 + 3.8415).
    found = share_interval([1.0] * 40, [i // 2 for i in range(40)], **OPTIONS)
    assert (found.value, found.high) == (1.0, 1.0) and found.low == pytest.approx(20 / 23.8415, abs=1e-4)
    assert share_interval([0.0] * 40, [i // 2 for i in range(40)], **OPTIONS).high == pytest.approx(
        3.8415 / 23.8415, abs=1e-4
    )


def test_wilson_against_a_published_example() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 3: 81 of 263 → 0.2553 to 0.3662.
    found = wilson_interval(81, 263, 0.95)
    assert (found.low, found.high) == (pytest.approx(0.2553, abs=5e-5), pytest.approx(0.3662, abs=5e-5))


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    [
        (0, 0, 1.0),  # nothing changed
        (5, 0, 2 / 2**5),  # both tails of five equal coins
        (1, 5, 2 * (1 + 6) / 2**6),  # P(at most 1 of 6), doubled
        (3, 3, 1.0),  # as even as can be
    ],
)
def test_exact_mcnemar_against_sums_by_hand(gained: int, lost: int, p: float) -> None:
    before = [False] * gained + [True] * lost + [True] * 4 + [False] * 2
    after = [True] * gained + [False] * lost + [True] * 4 + [False] * 2
    found = mcnemar(before, after)
    assert (found.both, found.gained, found.lost, found.neither) == (4, gained, lost, 2)
    assert found.p == pytest.approx(p, rel=1e-12)


@pytest.mark.parametrize(
    ("values", "clusters", "says"),
    [
        ([1.0, 2.0], ["a"], "do not match"),
        ([1.0, 2.0], ["a", "a"], "at least 2 classes"),
        ([1.0, float("nan")], ["a", "b"], "not finite"),
    ],
)
def test_tables_without_an_interval_are_refused(values: list[float], clusters: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        mean_interval(values, clusters, **OPTIONS)


def test_pairs_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="3 values before, 2 after"):
        paired_interval([1, 2, 3], [1, 2], ["a", "b", "c"], **OPTIONS)
    with pytest.raises(ValueError):
        mcnemar([True], [True, False])
