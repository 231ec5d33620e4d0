"""Claims about the comparison of baseline and retest, on tables of the real task."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tuneloop.artifacts import compact_json
from tuneloop.errors import UserError
from tuneloop.evaluation.comparison import Change, Comparison, NoiseBand, compare, judge, place
from tuneloop.evaluation.statistics import Interval
from tuneloop.tasks import load_task
from tuneloop.tasks.tictactoe.board import best_squares
from tuneloop.tasks.tictactoe.generator import from_rows
from tuneloop.tasks.tictactoe.reward import move_outcome

TASK = load_task("tictactoe")
RECORDS = TASK.generate(120, 1)
Choose = Callable[[str, Random], int]


def any_square(board: str, random: Random) -> int:
    return random.randint(1, 9)


def mostly_best(board: str, random: Random) -> int:
    return random.choice(best_squares(board)) if random.random() < 0.8 else any_square(board, random)


def table(choose: Choose, seed: int, samples: int = 4, greedy: bool = True) -> list[dict[str, Any]]:
    """A reply table of a player that knows no language: real boards, real scores, seeded choices."""
    random = Random(seed)
    rows = []
    for record in RECORDS:
        board = from_rows(record["board"])
        for decoding, sample in [("greedy", 0)] * greedy + [("sampled", i) for i in range(samples)]:
            square = choose(board, random)
            outcome = move_outcome(board, square)
            rows.append(
                {
                    "id": record["id"],
                    "board": TASK.show(record),
                    "stratum": TASK.stratum(record),
                    "cluster": TASK.split_key(record),
                    "decoding": decoding,
                    "sample": sample,
                    "prompt_hash": f"{int(record['id'][-5:]):016x}",
                    "text": f"I take {square}.",
                    "call": compact_json({"name": "choose_square", "arguments": {"square": square}}),
                    "outcome": outcome.name,
                    "reward": outcome.reward,
                    "length": 20 + square,
                    "finish_reason": "stop",
                }
            )
    return rows


RANDOM, RANDOM_AGAIN, GOOD = table(any_square, 1), table(any_square, 2, greedy=False), table(mostly_best, 3)


def compared(baseline: list[Any], retest: list[Any], rerun: list[Any], **options: Any) -> Comparison:
    return compare(
        baseline,
        retest,
        rerun,
        outcomes=TASK.outcomes,
        measures=TASK.measures,
        reference=TASK.reference_players(RECORDS),
        **{"resamples": 1000, "confidence": 0.95, "seed": 1, **options},
    )


@pytest.fixture(scope="module")
def improved() -> Comparison:
    return compared(RANDOM, GOOD, RANDOM_AGAIN)


def test_a_policy_that_learned_is_called_improved_and_the_way_back_worse(improved: Comparison) -> None:
    assert improved.verdict.kind == "improved" and improved.verdict.sentence.startswith("Improved: ")
    back = compared(GOOD, RANDOM, table(mostly_best, 4, greedy=False))
    assert back.verdict.kind == "worse" and " fell from " in back.verdict.sentence
    # The pairs are the same pairs the other way round.
    assert back.sampled["reward"].difference.value == pytest.approx(-improved.sampled["reward"].difference.value)
    assert (back.mcnemar["legal"].gained, back.mcnemar["legal"].lost) == (
        improved.mcnemar["legal"].lost,
        improved.mcnemar["legal"].gained,
    )


def test_the_same_player_under_another_seed_shows_no_change() -> None:
    same = compared(RANDOM, table(any_square, 7), RANDOM_AGAIN)
    assert same.verdict.kind == "no change shown" and "does not exclude 0" in same.verdict.sentence
    identical = compared(RANDOM, RANDOM, RANDOM_AGAIN)
    assert identical.verdict.kind == "no change shown"
    assert identical.sampled["reward"].difference == Interval(0.0, 0.0, 0.0)
    assert identical.mcnemar["optimal"].p == 1.0


def test_a_difference_within_the_noise_band_is_no_change_even_if_its_interval_excludes_zero() -> None:
    small = Change(Interval(0, -0.1, 0.1), Interval(0.05, -0.05, 0.15), Interval(0.05, 0.01, 0.09))
    noisy = judge(small, NoiseBand(Interval(0.02, -0.03, 0.07), 0.07), [], 0.95)
    assert noisy.kind == "no change shown" and "no more than the 0.070" in noisy.sentence
    assert judge(small, NoiseBand(Interval(0.01, -0.01, 0.03), 0.03), [], 0.95).kind == "improved"


def test_means_and_shares_are_those_of_the_rows(improved: Comparison) -> None:
    # Recomputed from the rows, without pairs or groups.
    for side, rows in (("before", RANDOM), ("after", GOOD)):
        for decoding, changes in (("sampled", improved.sampled), ("greedy", improved.greedy)):
            own = [row for row in rows if row["decoding"] == decoding]
            mean = sum(row["reward"] for row in own) / len(own)
            legal = sum(row["outcome"] in ("legal", "optimal", "win") for row in own) / len(own)
            assert getattr(changes["reward"], side).value == pytest.approx(mean)
            assert getattr(changes["legal"], side).value == pytest.approx(legal)
            shares = improved.shares[decoding][side]
            assert sum(shares.values()) == pytest.approx(1.0)
            assert shares["occupied"] == pytest.approx(1 - legal)
    assert (improved.records, improved.samples) == (120, 4)
    assert improved.clusters == len({TASK.split_key(record) for record in RECORDS})


def test_mcnemar_counts_boards_whose_greedy_reply_changed(improved: Comparison) -> None:
    before, after = (
        {row["id"]: row["outcome"] in ("optimal", "win") for row in rows if row["decoding"] == "greedy"}
        for rows in (RANDOM, GOOD)
    )
    found = improved.mcnemar["optimal"]
    assert found.gained == sum(after[i] and not before[i] for i in before)
    assert found.lost == sum(before[i] and not after[i] for i in before)
    assert found.both + found.gained + found.lost + found.neither == 120


def test_the_noise_band_bounds_what_another_seed_does(improved: Comparison) -> None:
    band = improved.noise["reward"]
    assert band.bound == max(abs(band.difference.low), abs(band.difference.high)) > 0
    assert band.difference.low <= 0 <= band.difference.high  # two seeds of one player, seeds fixed
    assert improved.sampled["reward"].difference.value > band.bound


def test_strata_add_up_to_the_whole(improved: Comparison) -> None:
    assert list(improved.strata) == ["0 marks", "2 marks", "4 marks", "6 marks"]
    assert sum(part["records"] for part in improved.strata.values()) == 120
    whole = sum(part["records"] * part["after"]["optimal"] for part in improved.strata.values()) / 120
    assert whole == pytest.approx(improved.sampled["optimal"].after.value)


def test_the_retest_is_placed_among_the_reference_players() -> None:
    # The reference of all 2201 boards, from the design: a mean of 0.4 is below a player who only
    # knows which squares are free.
    reference = {"any square": {"reward": -0.377}, "any free square": {"reward": 0.483}, "best": {"reward": 0.923}}
    stands = {p.player: p.stands for p in place(Interval(0.4, 0.37, 0.43), reference)}
    assert stands == {"any square": "above", "any free square": "below", "best": "below"}
    assert place(Interval(0.47, 0.44, 0.5), reference)[1].stands == "level with"
    change = Change(Interval(-0.4, -0.5, -0.3), Interval(0.4, 0.37, 0.43), Interval(0.8, 0.7, 0.9))
    sentence = judge(change, NoiseBand(Interval(0, -0.02, 0.02), 0.02), place(change.after, reference), 0.95).sentence
    assert "above “any square” (-0.377)" in sentence and "still below “any free square” (+0.483)" in sentence
    assert sentence.count(".") == sentence.count("0.") + 1  # one sentence: numbers, and a full stop at the end


def test_lengths_are_told_apart_by_how_the_reply_ended() -> None:
    cut = [{**row, "length": 64, "finish_reason": "length"} if row["sample"] == 1 else row for row in GOOD]
    found = compared(RANDOM, cut, RANDOM_AGAIN).lengths["sampled"]
    assert found["before"]["truncated"] is None and found["before"]["truncated_share"] == 0
    assert found["after"]["truncated"] == 64 and found["after"]["truncated_share"] == 0.25
    assert found["after"]["finished"] < found["after"]["all"] < 64


def test_games_are_counted_by_side_opponent_and_result() -> None:
    game = {"side": "X", "opponent": "random", "game": 0, "result": "won", "plies": 5, "moves": "1 2", "fault": None}
    games = {"before": [game, {**game, "result": "forfeit"}], "after": [game, {**game, "side": "O"}]}
    found = compared(RANDOM, GOOD, RANDOM_AGAIN, games=games).games
    assert found["before"] == {"X": {"random": {"won": 1, "drawn": 0, "lost": 0, "forfeit": 1}}}
    assert found["after"]["O"]["random"]["won"] == 1
    with pytest.raises(UserError, match="games, row 1"):
        compared(RANDOM, GOOD, RANDOM_AGAIN, games={"before": [{**game, "result": "maybe"}], "after": []})


def test_the_result_is_plain_json_and_repeats(improved: Comparison) -> None:
    again = compared(RANDOM, GOOD, RANDOM_AGAIN)
    text = json.dumps(improved.to_json(), allow_nan=False, sort_keys=True)
    assert json.dumps(again.to_json(), allow_nan=False, sort_keys=True) == text
    assert json.loads(text)["sampled"]["reward"]["difference"]["low"] > 0


def test_the_order_of_the_retests_rows_does_not_matter(improved: Comparison) -> None:
    assert compared(RANDOM, GOOD[::-1], RANDOM_AGAIN[::-1]).to_json() == improved.to_json()


FIRST = RECORDS[0]["id"]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda rows: [r for r in rows if r["id"] != FIRST], f"1 records ({FIRST}) are not in the retest"),
        (lambda rows: rows + [{**r, "id": "stranger"} for r in rows[:5]], "(stranger) are not in the baseline"),
        (lambda rows: [{**r, "prompt_hash": "f" * 16} if r is rows[1] else r for r in rows], "prompt_hash differs"),
        (lambda rows: [{**r, "board": "........."} if r["id"] == FIRST else r for r in rows], "board differs"),
        (lambda rows: rows[:4] + rows[5:], f"retest: 4 sampled replies to {RECORDS[1]['id']}, where 3 belong"),
        (lambda rows: [r for r in rows if r["sample"] != 3], "4 sampled replies in the baseline, 3 in the retest"),
        (lambda rows: [*rows, rows[0]], f"retest: 2 greedy replies to {FIRST}, where 1 belong"),
        (lambda rows: [r for r in rows if r["decoding"] != "greedy"], "retest: has no greedy replies"),
        (
            lambda rows: [{k: v for k, v in r.items() if k != "cluster"} for r in rows],
            "retest, row 1: no column cluster",
        ),
        (lambda rows: [{**r, "outcome": "brilliant"} for r in rows], "'brilliant' is no outcome of this task"),
    ],
)
def test_tables_that_are_no_pair_are_refused_with_the_reason(
    spoil: Callable[[list[Any]], list[Any]], says: str
) -> None:
    with pytest.raises(UserError) as refused:
        compared(RANDOM, spoil(GOOD), RANDOM_AGAIN)
    assert says in str(refused.value)


def test_a_rerun_of_other_records_is_refused() -> None:
    with pytest.raises(UserError, match="rerun"):
        compared(RANDOM, GOOD, [row for row in RANDOM_AGAIN if row["id"] != FIRST])


def test_records_of_a_single_class_are_refused() -> None:
    def single(rows: list[Any]) -> list[Any]:
        return [{**row, "cluster": "all"} for row in rows]

    with pytest.raises(UserError, match="all of one class"):
        compared(single(RANDOM), single(GOOD), single(RANDOM_AGAIN))
