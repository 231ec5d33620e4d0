"""Agents between records and policy: what is recorded, what sampling they get, what they earn, how they fail."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import agents_of_tests
import pytest
from agents.conftest import TASK
from agents_of_tests import LEGAL, WIN

from tuneloop.errors import UserError
from tuneloop.evaluation.evaluate import greedy_rows, summarise
from tuneloop.rollout.ask import Answer, Asker
from tuneloop.rollout.contract import Sampling, reply_seed
from tuneloop.rollout.trajectory import rows

Asking = Callable[..., Asker]
SAMPLING = Sampling(40)
OF_TESTS = "agents_of_tests"


@pytest.fixture
def records(tiny_records: tuple[list, list]) -> list[dict[str, Any]]:
    return tiny_records[0]


def seeds_of(records: list, each: int) -> list[list[int]]:
    return [[1000 * b + i for i in range(each)] for b in range(len(records))]


def flat(answers: list[list[Answer]]) -> list[Answer]:
    return [answer for group in answers for answer in group]


@pytest.mark.parametrize("sampling", [SAMPLING, Sampling(40, greedy=True)], ids=["sampled", "greedy"])
def test_an_agent_of_one_call_gives_the_replies_and_the_engine_calls_of_no_agent_bit_for_bit(
    asking: Asking, records: list, sampling: Sampling
) -> None:
    plain, agent = asking(None), asking("agent.one_call:choose")
    taken, seeds = [records[0], records[1], records[0]], seeds_of(records[:3], 2)
    expected, found = (asker.ask(taken, seeds, sampling) for asker in (plain, agent))
    assert agent.engine.calls == plain.engine.calls, "same prompts, groups, seeds and sampling, in one call"
    for one, other in zip(flat(expected), flat(found), strict=True):
        assert (one.reply, one.text, one.reading, one.outcome) == (
            other.reply,
            other.text,
            other.reading,
            other.outcome,
        )
    for record, group in zip(taken, found):
        assert all(answer.trajectory.turns[0].prompt == plain.prompt(record, 0) for answer in group)
    row = agent.row(records[0], 1, found[0][1], decoding="sampled")
    assert {**row, "turns": 0, "rewarded_by": 0, "fault": 0} == {
        **plain.row(records[0], 1, expected[0][1], decoding="sampled"),
        **dict.fromkeys(("turns", "rewarded_by", "fault"), 0),
    }
    assert (len(row["turns"]), row["rewarded_by"], row["fault"]) == (1, "task", None)


def test_whatever_an_agent_asks_for_the_engine_samples_as_training_does(asking: Asking, records: list) -> None:
    asker = asking(f"{OF_TESTS}:asks_for_other_sampling")
    answer = asker.ask(records[:1], [[77]], SAMPLING)[0][0]
    prompt = asker.prompt(records[0], 0)
    # A lower limit stands, a higher one does not; a call that is asked for is not drawn again and again.
    assert asker.engine.calls == [
        ([prompt], [[77, reply_seed(77, "turn", 1)]], Sampling(7)),
        ([prompt], [[reply_seed(77, "turn", 2)]], Sampling(40)),
    ]
    assert [turn.reply for turn in answer.trajectory.turns] == asker.engine.replies[tuple(prompt)]
    assert answer.reply == answer.trajectory.turns[-1].reply


def test_a_streaming_agent_is_recorded_as_any_other(asking: Asking, records: list) -> None:
    asker = asking(f"{OF_TESTS}:streams")
    answer = asker.ask(records[:1], [[5]], SAMPLING)[0][0]
    assert [turn.reply for turn in answer.trajectory.turns] == flat([[r] for r in asker.engine.replies.popitem()[1]])


@pytest.mark.parametrize(("agent", "in_rows"), [("goes_on", 1), ("rewrites", 2)])
def test_two_turns_are_one_row_where_the_second_prompt_goes_on_and_two_where_it_does_not(
    asking: Asking, records: list, agent: str, in_rows: int
) -> None:
    asker = asking(f"{OF_TESTS}:{agent}")
    answers = flat(asker.ask(records[:4], seeds_of(records[:4], 2), SAMPLING))
    counts = [len(rows(answer.trajectory.turns)) for answer in answers]
    # A reply sampled in other tokens than its text is written in does not go on: a row more, never a wrong one.
    assert counts.count(in_rows) >= len(counts) / 2
    for answer in answers:
        assert len(answer.trajectory.turns) == 2
        for turn in answer.trajectory.turns:
            assert turn.reply in asker.engine.replies[tuple(turn.prompt)]
        for row in rows(answer.trajectory.turns):
            assert_sampled(row.prompt, row.ids, row.sampled, asker.engine.replies)


def assert_sampled(prompt: list[int], ids: list[int], sampled: list[bool], replies: dict) -> int:
    """Every run of sampled tokens is a reply that the engine gave to exactly what stands before it; how many."""
    starts = [i for i, flag in enumerate(sampled) if flag and (i == 0 or not sampled[i - 1])]
    for start in starts:
        end = next((i for i in range(start, len(ids)) if not sampled[i]), len(ids))
        assert ids[start:end] in [reply.ids for reply in replies[(*prompt, *ids[:start])]]
    return len(starts)


# What it earns


@pytest.mark.parametrize(
    ("returned", "outcome", "by"),
    [(None, None, "task"), (WIN, None, "agent"), (0.5, 0.5, "agent"), (-1, -1.0, "agent"), (LEGAL, LEGAL, "agent")],
    ids=str,
)
def test_an_episode_earns_what_the_task_or_the_agent_says(
    asking: Asking, records: list, monkeypatch: pytest.MonkeyPatch, returned: Any, outcome: Any, by: str
) -> None:
    monkeypatch.setattr(agents_of_tests, "RETURNS", [returned])
    asker = asking(f"{OF_TESTS}:returns")
    answer = asker.ask(records[:1], [[3]], SAMPLING)[0][0]
    _, reading = asker.read(answer.reply)
    if returned is WIN:
        assert (answer.outcome, answer.reading) == (TASK.score(records[0], WIN), WIN)
    elif returned is LEGAL:
        assert answer.outcome == LEGAL
    else:
        scored = TASK.score(records[0], reading)
        assert (answer.outcome.name, answer.outcome.reward) == (
            scored.name,
            scored.reward if outcome is None else outcome,
        )
    assert asker.row(records[0], 0, answer, step=1)["rewarded_by"] == by


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (math.nan, "the reward nan; it must be a number from -1 to 1"),
        (7, "the reward 7; it must be a number from -1 to 1"),
        (True, "True (bool); return nothing"),
        ("square 5", "'square 5' (str); return nothing"),
        (agents_of_tests.Outcome("superb", 1.0), "the outcome 'superb'; the task has no_call"),
    ],
    ids=str,
)
def test_what_an_agent_may_not_return_ends_the_run_by_the_records_name(
    asking: Asking, records: list, monkeypatch: pytest.MonkeyPatch, returned: Any, reason: str
) -> None:
    monkeypatch.setattr(agents_of_tests, "RETURNS", [returned])
    with pytest.raises(UserError, match=rf"on record {records[0]['id']} the agent returned {re.escape(reason)}"):
        asking(f"{OF_TESTS}:returns").ask(records[:1], [[3]], SAMPLING)


# How it fails


def test_agents_that_raise_hang_flood_block_or_say_nothing_lose_their_own_episodes_alone(
    asking: Asking, records: list, capsys: pytest.CaptureFixture
) -> None:
    taken = [{**records[i], "id": f"record-{i}"} for i in range(6)]
    plain = asking(None)
    asker = asking(f"{OF_TESTS}:misbehaves", {"rollout.agent_timeout": 2.5, "rollout.agent_turns": 5})
    found = asker.ask(taken, seeds_of(taken, 1), SAMPLING)
    assert [answer.fault for answer in flat(found)] == ["raised", "timed_out", "flooded", "timed_out", "silent", None]
    expected = plain.ask(taken, seeds_of(taken, 1), SAMPLING)
    assert found[5][0].reply.ids == expected[5][0].reply.ids, "though it had to begin anew, the same episode"
    assert len(found[2][0].trajectory.turns) == 5 and set(agents_of_tests.SEEN) <= {429, 401, 410}
    assert 429 in agents_of_tests.SEEN
    told = capsys.readouterr().out
    assert "raised on record record-0: ValueError: my own mistake" in told and "agents_of_tests.py, line" in told
    assert told.count("timed_out on record") == told.count("flooded on record record-2") == 1
    # In an evaluation it counts as what an empty reply earns, so that shares still sum to 1.
    faulty = found[0][0]
    assert (faulty.text, faulty.outcome) == ("", TASK.score(records[0], faulty.reading))
    assert asker.row(taken[0], 0, faulty, decoding="greedy")["fault"] == "raised"
    # The endpoint is still there for whoever behaves.
    assert flat(asker.ask(taken[5:], [[4]], SAMPLING))[0].fault is None


def test_an_agent_that_blocks_for_less_than_the_timeout_takes_nobodys_time(asking: Asking, records: list) -> None:
    taken = [{**records[i], "id": f"record-{i}"} for i in range(3)]
    found = asking(f"{OF_TESTS}:dawdles", {"rollout.agent_timeout": 2.5}).ask(taken, seeds_of(taken, 1), SAMPLING)
    assert [answer.fault for answer in flat(found)] == [None] * 3


def test_an_evaluation_counts_failed_episodes_as_empty_replies_and_says_how_many(asking: Asking, records: list) -> None:
    asker = asking(f"{OF_TESTS}:misbehaves")
    taken = [{**records[i], "id": f"record-{i % 2 * 5}"} for i in range(4)]  # every other one raises
    summary = summarise(greedy_rows(asker, taken, 40), TASK)
    assert summary["faults"] == {"raised": 2}
    assert sum(summary["shares"].values()) == pytest.approx(1)
    assert summary["shares"]["no_call"] >= 0.5


def test_an_agent_whose_every_episode_fails_ends_the_run_with_the_reasons(asking: Asking, records: list) -> None:
    with pytest.raises(UserError, match=r"every episode failed: 8 raised, the first raised on record .*nothing works"):
        asking(f"{OF_TESTS}:always_raises").ask(records[:2], seeds_of(records[:2], 4), SAMPLING)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("agents_of_tests", "must be a Python path"),
        ("no_such_module:choose", "no_such_module cannot be imported"),
        (f"{OF_TESTS}:absent", "has no 'absent'"),
        (f"{OF_TESTS}:not_async", "is not an async function"),
        (f"{OF_TESTS}:of_two", r"cannot be called with \(client, record, task\)"),
    ],
)
def test_an_agent_that_cannot_be_used_is_refused_before_anything_runs(asking: Asking, name: str, reason: str) -> None:
    with pytest.raises(UserError, match=f"rollout.agent={name}: .*{reason}"):
        asking(name)
