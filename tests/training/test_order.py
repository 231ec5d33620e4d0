"""The order of visits: whole passes, and records that are not settled first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tuneloop.training.order import DISTANCE_WEIGHT, SETTLED_WEIGHT, Visits, passes

Record = dict[str, Any]

RECORDS = [{"id": f"r{i}"} for i in range(40)]
RANGE = (-1.0, 1.0)


def test_every_pass_over_the_records_is_a_shuffle_of_all_of_them() -> None:
    records = list(range(48))
    found = [passes(records, start, 48, seed=5) for start in (0, 48, 96)]
    assert all(sorted(one) == records for one in found)
    assert len({tuple(one) for one in [records, *found]}) == 4, "each pass has an order of its own"
    assert passes(records, 0, 48, seed=6) != found[0]


@pytest.mark.parametrize("chunk", [1, 4, 7, 48, 100])
def test_the_order_of_passes_is_the_same_however_it_is_cut_into_steps(chunk: int) -> None:
    records = list("abcdefghijk")
    whole = passes(records, 0, 200, seed=1)
    cut = [r for start in range(0, 200, chunk) for r in passes(records, start, chunk, seed=1)]
    assert cut[:200] == whole


def visits(rewards: Callable[[Record], Sequence[float]]) -> Visits:
    made = Visits(RANGE)
    for record in RECORDS:
        made.note(record, rewards(record))
    return made


def test_every_record_is_visited_once_before_any_comes_twice() -> None:
    made, order = Visits(RANGE), []
    for step in range(8):
        chosen = made.choose(RECORDS, 5, 1, step)
        for record in chosen:
            made.note(record, [-1.0, 1.0])
        order += [r["id"] for r in chosen]
    assert sorted(order) == sorted(r["id"] for r in RECORDS)


def test_the_first_pass_is_shuffled_by_the_seed() -> None:
    first = [r["id"] for r in Visits(RANGE).choose(RECORDS, 40, 1, 0)]
    assert first != [r["id"] for r in RECORDS] and first != [r["id"] for r in Visits(RANGE).choose(RECORDS, 40, 2, 0)]


def test_one_step_visits_no_record_twice() -> None:
    assert len({r["id"] for r in visits(lambda r: [0.0, 1.0]).choose(RECORDS, 30, 1, 3)}) == 30


@pytest.mark.parametrize(
    ("groups", "weight"),
    [
        ([[1.0, 1.0]], SETTLED_WEIGHT),  # settled at the best there is
        ([[-1.0, -1.0]], SETTLED_WEIGHT + DISTANCE_WEIGHT),  # agreed on the worst
        ([[0.8] * 7], SETTLED_WEIGHT + DISTANCE_WEIGHT * 0.1),  # a tenth of the range below the best
        ([[0.0, 0.8]], 1.0),  # the group disagrees
        ([[0.0, 0.8], [0.0, 0.0]], 1.0),  # agrees on less than it once had
        ([[0.0, 0.8], [0.8, 0.8]], SETTLED_WEIGHT + DISTANCE_WEIGHT * 0.1),
    ],
)
def test_a_record_weighs_by_what_its_last_group_showed(groups: list[list[float]], weight: float) -> None:
    made = Visits(RANGE)
    for rewards in groups:
        made.note(RECORDS[0], rewards)
    assert made.weight(RECORDS[0]) == pytest.approx(weight)


def test_more_visits_than_records_take_all_of_them_in_turn() -> None:
    chosen = visits(lambda r: [0.0, 1.0]).choose(RECORDS[:3], 7, 1, 0)
    assert sorted(Counter(r["id"] for r in chosen).values()) == [2, 2, 3]


def test_records_come_in_proportion_to_their_weights_and_settled_ones_come_back() -> None:
    # One record a step: the chance is weight / sum of weights. 20 unsettled (1), 20 settled (0.05): 0.05 / 21 each.
    made = visits(lambda r: [0.0, 1.0] if int(r["id"][1:]) < 20 else [1.0, 1.0])
    counts = Counter(made.choose(RECORDS, 1, 7, step)[0]["id"] for step in range(21_000))
    settled = [counts[f"r{i}"] for i in range(20, 40)]
    assert sum(settled) == pytest.approx(1000, abs=5 * 31)  # binomial: standard deviation 31
    assert min(settled) > 0


def test_the_same_state_seed_and_step_choose_the_same_also_after_a_round_trip() -> None:
    made = visits(lambda r: [0.0, 1.0] if r["id"] < "r3" else [0.8, 0.8])
    again = Visits(RANGE, dict(made.seen))
    assert made.choose(RECORDS, 9, 5, 17) == again.choose(RECORDS, 9, 5, 17)
    assert made.choose(RECORDS, 9, 5, 17) != made.choose(RECORDS, 9, 5, 18)
