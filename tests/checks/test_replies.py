"""Reward tables: good ones pass; each way to spoil one fails its own expectations, by record id."""

from __future__ import annotations

import math

import pytest
from valid_tables import (
    GROUP_SIZE,
    MAX_NEW_TOKENS,
    SAMPLES,
    STEPS,
    evaluation,
    failures,
    failures_by_record,
    records,
    setting,
    training,
)

from tuneloop.checks.replies import evaluation_tables, pairing_table, training_tables
from tuneloop.errors import UserError

REPLIES = {"greedy": 1, "sampled": SAMPLES}


def failed(rows, replies=REPLIES):
    return failures(evaluation_tables("baseline", rows, setting(), replies))


def failed_training(rows):
    return failures(training_tables("train", rows, setting(), GROUP_SIZE, STEPS))


def incomplete(rows):
    """The failures among the counts alone: a missing or repeated row changes nothing about the others."""
    return failures(evaluation_tables("baseline", rows, setting(), REPLIES)[1:])


def first(rows, **wanted):
    return next(row for row in rows if all(row[name] == value for name, value in wanted.items()))


def test_an_evaluation_as_the_pipeline_writes_it_passes():
    rows = evaluation()
    assert {row["outcome"] for row in rows} >= {"no_call", "several_calls", "wrong_tool", "bad_arguments", "win"}
    assert failed(rows) == {}


def test_an_evaluation_without_truncated_replies_passes():
    assert failed([row | {"finish_reason": "stop"} for row in evaluation()]) == {}


SPOILED_CELLS = [
    # (what the row to spoil holds, the cells that spoil it, the expectations that fail)
    ({"outcome": "win"}, {"reward": 0.8}, {"reward_of_outcome", "reward_as_oracle"}),
    ({"outcome": "optimal"}, {"reward": math.nan}, {"reward_not_missing"}),
    ({"outcome": "legal"}, {"reward": None}, {"reward_not_missing"}),
    ({"outcome": "optimal"}, {"reward": 1}, {"reward_not_missing", "form_as_documented"}),
    ({"outcome": "win"}, {"outcome": "optimal"}, {"outcome_as_oracle", "reward_of_outcome"}),
    ({"outcome": "legal"}, {"outcome": "optimal", "reward": 0.8}, {"outcome_as_oracle", "reward_as_oracle"}),
    ({"outcome": "no_call"}, {"outcome": "several_calls"}, {"outcome_as_oracle"}),
    ({"outcome": "legal"}, {"outcome": "fine"}, {"outcome_known", "outcome_as_oracle"}),
    ({"outcome": "no_call"}, {"call": '{"name":"choose_square","arguments":{"square":5}}'}, {"call_where_no_fault"}),
    ({"outcome": "occupied"}, {"call": None}, {"call_where_no_fault"}),
    ({"outcome": "legal"}, {"call": "choose_square(5)"}, {"call_where_no_fault"}),
    ({"outcome": "legal"}, {"length": MAX_NEW_TOKENS + 1}, {"length_in_range"}),
    ({"outcome": "legal"}, {"length": 0}, {"length_in_range"}),
    ({"outcome": "legal"}, {"length": 21.0}, {"length_not_missing", "form_as_documented"}),
    ({"outcome": "legal"}, {"finish_reason": "length"}, {"cut_only_at_the_limit"}),
    ({"outcome": "legal"}, {"finish_reason": "eos"}, {"finish_reason_known"}),
    ({"outcome": "legal"}, {"prompt_hash": "0123"}, {"prompt_hash_form", " by record: one_prompt"}),
    ({"outcome": "legal"}, {"board": "XO./.../..."}, {"board_of_record"}),
    ({"outcome": "legal"}, {"stratum": "8 marks"}, {"stratum_of_record"}),
    ({"outcome": "legal"}, {"cluster": "........."}, {"cluster_of_record"}),
    ({"outcome": "legal"}, {"note": "hello"}, {"form_as_documented"}),
    ({"decoding": "greedy"}, {"decoding": "beam"}, {"decoding_known", " by record: greedy_complete"}),
    ({"sample": 2}, {"sample": 1}, {" by record: sampled_complete"}),
]


@pytest.fixture(scope="module")
def spoiled():
    """One evaluation with every case of `SPOILED_CELLS` in a record of its own: what fails by record,
    and the record of each case. (One run of Great Expectations for all cases.)"""
    rows = evaluation()
    hurt: list[str] = []
    for wanted, cells, _ in SPOILED_CELLS:
        row = next(r for r in rows if r["id"] not in hurt and all(r[name] == v for name, v in wanted.items()))
        row.update(cells)
        hurt.append(row["id"])
    return failures_by_record(evaluation_tables("baseline", rows, setting(), REPLIES)), hurt


@pytest.mark.parametrize("case", range(len(SPOILED_CELLS)), ids=lambda case: str(SPOILED_CELLS[case][1])[:50])
def test_a_spoiled_cell_is_named_by_its_record(spoiled, case):
    broken, hurt = spoiled
    names = SPOILED_CELLS[case][2]
    assert broken[hurt[case]] == {f"baseline{'' if name.startswith(' by') else ': '}{name}" for name in names}


def test_spoiled_cells_fail_nothing_but_their_own_records(spoiled):
    broken, hurt = spoiled
    assert broken.keys() == set(hurt)


def test_a_missing_reply_is_named_by_its_record():
    rows = evaluation()
    dropped = rows.pop(5)
    assert incomplete(rows) == {f"baseline by record: {dropped['decoding']}_complete": [dropped["id"]]}


def test_a_reply_that_occurs_twice_is_named_by_its_record():
    rows = evaluation()
    rows.append(rows[5])
    assert incomplete(rows) == {f"baseline by record: {rows[5]['decoding']}_complete": [rows[5]["id"]]}


def test_a_heldout_record_without_any_reply_is_named():
    rows = evaluation()
    gone = rows[0]["id"]
    missing = {f"baseline by record: {decoding}_complete": [gone] for decoding in REPLIES}
    assert incomplete([row for row in rows if row["id"] != gone]) == missing


def test_a_column_that_no_row_has_fails_every_expectation_on_it_and_every_row():
    rows = evaluation()
    for row in rows:
        del row["stratum"]
    heldout = [record["id"] for record in records()[2]][:20]
    assert failed(rows) == {
        "baseline: form_as_documented": heldout,
        "baseline: stratum_not_missing": [],
        "baseline: stratum_of_record": [],
    }


def test_a_greedy_reply_in_the_rerun_is_named():
    rows = evaluation()
    sampled = [row for row in rows if row["decoding"] == "sampled"]
    assert failed(sampled, {"sampled": SAMPLES}) == {}
    assert failed([rows[0], *sampled], {"sampled": SAMPLES}) == {"baseline: decoding_known": [rows[0]["id"]]}


def test_an_evaluation_reply_to_a_training_board_is_named():
    rows = evaluation()
    stray = next(row for row in training() if row["outcome"] == "legal")
    rows.append({name: stray.get(name, "sampled") for name in rows[0]})
    assert failed(rows) == {"baseline: record_of_heldout": [stray["id"]]}


def test_two_evaluations_of_the_same_prompts_pair_up():
    assert failures([pairing_table("baseline", evaluation(), "retest", evaluation(shift=4))]) == {}


def test_a_record_with_another_prompt_in_the_retest_is_named():
    retest = evaluation(shift=4)
    changed = retest[-1]["id"]
    retest = [row | {"prompt_hash": "0" * 16} if row["id"] == changed else row for row in retest]
    tables = [pairing_table("baseline", evaluation(), "retest", retest)]
    assert failures(tables) == {"retest against baseline: same_prompts": [changed]}


def test_a_reply_that_only_one_evaluation_has_is_named():
    retest = evaluation(shift=4)
    dropped = retest.pop(7)
    tables = [pairing_table("baseline", evaluation(), "retest", retest)]
    assert failures(tables) == {"retest against baseline: same_replies": [dropped["id"]]}


def test_training_replies_as_the_pipeline_writes_them_pass():
    assert failed_training(training()) == {}


def test_a_training_reply_to_a_heldout_board_is_named():
    heldout = evaluation()
    rows = training()
    leaked = [{"step": 10} | {k: v for k, v in row.items() if k != "decoding"} for row in heldout[1:4]]
    rows += [*leaked, leaked[-1] | {"sample": 3}]
    assert failed_training(rows) == {"train: record_of_train": [heldout[0]["id"]]}


def test_an_incomplete_group_is_named_even_if_another_step_has_the_record_in_full():
    rows = training()
    both = next(row["id"] for row in rows if row["step"] == 20)
    assert any(row["id"] == both and row["step"] == 10 for row in rows)
    rows.remove(first(rows, step=20, id=both, sample=2))
    assert failures(training_tables("train", rows, setting(), GROUP_SIZE, STEPS)[1:]) == {
        "train by group: group_complete": [both]
    }


def test_a_step_beyond_the_last_is_named():
    rows = [row | {"step": STEPS + 1} if row["step"] == STEPS else row for row in training()]
    late = list(dict.fromkeys(row["id"] for row in rows if row["step"] > STEPS))
    assert failed_training(rows) == {"train: step_in_range": late}


def test_a_dialect_without_an_oracle_is_refused_and_not_passed():
    with pytest.raises(UserError, match=r"'other'.*cannot read"):
        evaluation_tables("baseline", evaluation(), setting("other"), REPLIES)
