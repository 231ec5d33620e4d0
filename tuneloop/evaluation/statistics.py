"""Intervals and tests for tables in which records come in classes of near copies.

A held-out table holds several images of one position (its symmetry class), so its rows are not
independent. Every interval here resamples whole classes, with all their records: what happens
inside a class is then part of the spread between classes (Davison & Hinkley, *Bootstrap Methods
and their Application*, 1997, §3.8).

Ends of the intervals are BCa, not percentiles: rewards are bounded, and a policy near the ceiling
makes the distribution of its mean lopsided, which BCa corrects to second order (Efron, *Better
Bootstrap Confidence Intervals*, JASA 82, 1987; Efron & Tibshirani, *An Introduction to the
Bootstrap*, 1993, eq. 14.9–14.15), with the acceleration from the jackknife over classes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import binomtest

Floats = NDArray[np.float64]

_DRAWS_AT_ONCE = 1000


@dataclass(frozen=True)
class Interval:
    """An estimate and the two ends of its confidence interval, in the unit of the values."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class McNemar:
    """Pairs of a yes/no measure: `gained` no → yes, `lost` yes → no; `p` is two-sided and exact."""

    both: int
    gained: int
    lost: int
    neither: int
    p: float


def mean_interval(
    values: ArrayLike, clusters: Sequence[Hashable], *, resamples: int, confidence: float, seed: int
) -> Interval:
    """Mean of `values` (one per record, shape `[n]`) with a BCa interval clustered by `clusters` (`[n]`).

    The same arguments give the same interval. Values that are the same in every class give an
    interval of no width. ValueError for fewer than two classes, unequal lengths or values that are
    not finite.
    """
    totals, counts = _by_cluster(values, clusters)
    mean = float(totals.sum() / counts.sum())
    without_one = (totals.sum() - totals) / (counts.sum() - counts)
    if np.ptp(without_one) <= 1e-12 * max(1.0, abs(mean)):
        return Interval(mean, mean, mean)
    drawn = _resampled_means(totals, counts, resamples, seed)
    low, high = np.quantile(drawn, _bca_levels(mean, drawn, without_one, confidence))
    return Interval(mean, float(low), float(high))


def paired_interval(
    before: ArrayLike, after: ArrayLike, clusters: Sequence[Hashable], *, resamples: int, confidence: float, seed: int
) -> Interval:
    """Mean of `after - before`, record by record (both `[n]`), as `mean_interval` does it."""
    before, after = np.asarray(before, np.float64), np.asarray(after, np.float64)
    if before.shape != after.shape:
        raise ValueError(f"{before.shape[0]} values before, {after.shape[0]} after: pairs need as many of each")
    return mean_interval(after - before, clusters, resamples=resamples, confidence=confidence, seed=seed)


def share_interval(
    values: ArrayLike, clusters: Sequence[Hashable], *, resamples: int, confidence: float, seed: int
) -> Interval:
    """As `mean_interval` for shares in 0..1, except where every value is 0 or every value is 1.

    Resampling such a table only ever repeats it, and would claim a certainty that it does not give:
    there the interval is Wilson's, with each class counted as one observation.
    """
    values = np.asarray(values, np.float64)
    if values.size and values.min() == values.max() and values[0] in (0.0, 1.0):
        _, counts = _by_cluster(values, clusters)
        return wilson_interval(int(values[0]) * len(counts), len(counts), confidence)
    return mean_interval(values, clusters, resamples=resamples, confidence=confidence, seed=seed)


def wilson_interval(successes: int, trials: int, confidence: float) -> Interval:
    """Share of `successes` in independent `trials` with Wilson's score interval (JASA 22, 1927)."""
    result = binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    return Interval(successes / trials, float(result.low), float(result.high))


def mcnemar(before: Sequence[bool], after: Sequence[bool]) -> McNemar:
    """Exact McNemar test of paired yes/no values: a two-sided binomial test with chance 1/2 on the
    pairs that changed (McNemar, Psychometrika 12, 1947); p is 1 where none did.

    It takes the pairs as independent; where records come in classes, read p beside the clustered
    interval of the same measure. ValueError for unequal lengths.
    """
    pairs = list(zip(map(bool, before), map(bool, after), strict=True))
    gained, lost = pairs.count((False, True)), pairs.count((True, False))
    p = binomtest(gained, gained + lost, 0.5).pvalue if gained + lost else 1.0
    return McNemar(pairs.count((True, True)), gained, lost, pairs.count((False, False)), float(p))


def _by_cluster(values: ArrayLike, clusters: Sequence[Hashable]) -> tuple[Floats, Floats]:
    """Sum and number of the values of every class, in order of first appearance."""
    values = np.asarray(values, np.float64)
    if values.ndim != 1 or len(values) != len(clusters):
        raise ValueError(f"values of shape {values.shape} do not match {len(clusters)} cluster labels")
    if not np.isfinite(values).all():
        raise ValueError("some values are not finite")
    numbers = {label: i for i, label in enumerate(dict.fromkeys(clusters))}
    if len(numbers) < 2:
        raise ValueError(f"an interval needs at least 2 classes of records, not {len(numbers)}")
    member = np.array([numbers[label] for label in clusters])
    return np.bincount(member, weights=values), np.bincount(member).astype(np.float64)


def _resampled_means(totals: Floats, counts: Floats, resamples: int, seed: int) -> Floats:
    """Means of `resamples` tables, each of as many classes as there are, drawn with replacement."""
    classes = len(totals)
    rng = np.random.default_rng(seed)
    means = []
    for done in range(0, resamples, _DRAWS_AT_ONCE):
        rows = min(_DRAWS_AT_ONCE, resamples - done)
        # How often each class is drawn is all that a mean needs to know of a resample.
        times = rng.multinomial(classes, np.full(classes, 1 / classes), size=rows).astype(np.float64)
        # Not `times @ totals`: the order of a BLAS sum depends on the number of threads.
        means.append((times * totals).sum(axis=1) / (times * counts).sum(axis=1))
    return np.concatenate(means)


def _bca_levels(mean: float, drawn: Floats, without_one: Floats, confidence: float) -> Floats:
    """The two levels at which BCa reads the resampled means (Efron & Tibshirani eq. 14.9–14.15)."""
    below = ((drawn < mean).mean() + (drawn <= mean).mean()) / 2
    half_a_draw = 0.5 / len(drawn)
    bias = ndtri(np.clip(below, half_a_draw, 1 - half_a_draw))
    pull = without_one.mean() - without_one
    acceleration = (pull**3).sum() / (6 * (pull**2).sum() ** 1.5)
    normal = bias + ndtri([(1 - confidence) / 2, (1 + confidence) / 2])
    return ndtr(bias + normal / (1 - acceleration * normal))
