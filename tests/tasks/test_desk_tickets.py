"""The desk's records: seeded, different, readable, split by wording, and practised without saying what is due."""

from __future__ import annotations

from collections import Counter
from functools import cache
from math import sqrt
from random import Random

import pytest

from tuneloop.checks import load_checks
from tuneloop.errors import UserError
from tuneloop.tasks import load_task
from tuneloop.tasks.desk import facts_of, generator, rules
from tuneloop.tasks.desk.demonstrations import LOOSE_SHARE, any_call
from tuneloop.tasks.desk.prompt import REASONS
from tuneloop.tasks.desk.tickets import Facts, Phrases, policy_text, read, ticket_text, wording_of
from tuneloop.tasks.desk.wordings import ITEMS, PROBLEMS, RECEIPTS, WORDINGS
from tuneloop.tasks.split import split
from tuneloop.toolcalls import Reasoning, load_dialect, read_reply

TASK = load_task("desk")
CHECKS = load_checks("desk")
GOOD = (
    "Refunds up to $60 within 4 weeks. | "
    "My lamp was damaged! Order 482, $45, from 3 weeks ago, and the receipt is gone."
)
SLOTS = ("order", "paid", "weeks", "item", "problem", "receipt")


@cache
def records() -> list[dict]:
    """Not made when the file is imported: every process of the suite does that."""
    return TASK.generate(2048, 2026)


@cache
def parts() -> tuple[list[dict], list[dict]]:
    """Training and held-out tickets."""
    return split(TASK, records(), 0.2, 2026)


def test_the_same_arguments_give_the_same_records_and_another_seed_gives_others():
    assert TASK.generate(200, 7) == TASK.generate(200, 7)
    assert TASK.generate(200, 7)[:50] != TASK.generate(200, 8)[:50]


def test_2048_tickets_are_all_different_numbered_and_valid():
    assert len({TASK.show(record) for record in records()}) == 2048
    assert [record["id"] for record in records()] == [f"generated-{number:05d}" for number in range(2048)]
    assert all(TASK.validate(record, "here") is record for record in records())


def test_more_tickets_than_there_are_is_refused_with_their_number():
    """64 wordings × 900 orders × 90 dollars × 90 limits × 8 weeks × 8 windows × 8 items × 15 and 6 phrases."""
    there_are = 64 * 900 * 90 * 90 * 8 * 8 * 8 * 15 * 6
    with pytest.raises(UserError, match=f"boards.count.*{there_are}"):
        TASK.generate(there_are + 1, 1)


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "12"])
def test_a_count_that_is_no_positive_whole_number_is_refused(count):
    with pytest.raises(UserError, match=r"boards\.count"):
        TASK.generate(count, 1)


def test_every_rule_decides_about_as_often_as_its_weight_says():
    """Weights 1, 1, 1, 2, 1, 3 of 9; four standard errors of a share of 2,048 draws."""
    counts = Counter(TASK.stratum(record) for record in records())
    for name, weight in {
        "solved": 1,
        "safety": 1,
        "too late": 1,
        "no receipt": 2,
        "over the limit": 1,
        "refund": 3,
    }.items():
        share = weight / 9
        assert abs(counts[name] / 2048 - share) < 4 * sqrt(share * (1 - share) / 2048), name


def test_every_rule_has_a_weight():
    assert list(generator.WEIGHTS) == list(rules.CASES)


def test_the_wordings_are_64_each_used_equally_often():
    assert len(set(WORDINGS)) == len(WORDINGS) == 64
    assert set(Counter(TASK.split_key(record) for record in records()).values()) == {32}


def test_every_wording_tells_each_fact_once():
    assert all(wording.count(f"{{{slot}}}") == 1 for wording in WORDINGS for slot in SLOTS)


def test_facts_written_in_any_wording_and_phrase_are_read_back():
    random = Random(1)
    for wording in range(len(WORDINGS)):
        for _ in range(30):
            facts, phrases = generator.draw_facts(random), generator.draw_phrases(random)
            ticket = ticket_text(facts, phrases, wording)
            assert (read(policy_text(facts), ticket), wording_of(ticket)) == (facts, wording)


def test_every_phrase_is_drawn():
    text = " ".join(record["ticket"] for record in records())
    phrases = [*ITEMS, *(p for group in (*PROBLEMS.values(), *RECEIPTS.values()) for p in group)]
    assert [phrase for phrase in phrases if phrase not in text] == []


def test_no_wording_is_on_both_sides_of_the_split_by_the_tasks_own_reading_and_by_that_of_the_checks():
    for key in (TASK.split_key, CHECKS.split_class):
        assert not {key(record) for record in parts()[0]} & {key(record) for record in parts()[1]}
    assert abs(len(parts()[1]) / 2048 - 0.2) < 0.02


def test_task_and_checks_tell_the_same_64_wordings_apart():
    pairs = {(TASK.split_key(record), CHECKS.split_class(record)) for record in records()}
    assert len(pairs) == len({mine for mine, _ in pairs}) == len({theirs for _, theirs in pairs}) == 64


@pytest.mark.parametrize(("count", "fraction"), [(500, 0.1), (700, 0.2), (2048, 0.35)])
def test_the_share_held_out_is_within_the_tolerance_of_the_data_checks(count, fraction):
    """0.02, `tuneloop.checks.records.SHARE_TOLERANCE`, for 500 records and more."""
    records = TASK.generate(count, 3)
    for seed in (1, 2, 3):
        assert abs(len(split(TASK, records, fraction, seed)[1]) / count - fraction) < 0.02


def test_a_shown_ticket_is_parsed_back():
    assert TASK.stratum(TASK.parse(GOOD)) == "no receipt"
    for record in records()[::50]:
        shown = TASK.show(record)
        assert TASK.parse(shown) == {**record, "id": shown}
        assert "\n" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "X.O/.../XO.",
        "Refunds up to $60 within 4 weeks.",
        "Refunds up to $60 within 4 weeks. | Where is my lamp?",
        GOOD.replace("$45", "$5"),
        GOOD.replace("4 weeks.", "1 weeks."),
        GOOD.replace("up to", "of"),
        GOOD.replace(" | ", "\n"),
        f"{GOOD} ",
    ],
)
def test_a_text_that_is_no_ticket_is_refused_with_an_example(text):
    with pytest.raises(UserError, match="a record looks like"):
        TASK.parse(text)


@pytest.mark.parametrize("record", [None, {}, {"id": ""}, {"id": "a"}, {"id": "a", "policy": "x", "ticket": 5}])
def test_what_is_no_record_is_refused_with_where_it_stands(record):
    with pytest.raises(UserError, match=r"heldout\.jsonl, line 3"):
        TASK.validate(record, "heldout.jsonl, line 3")


def test_the_policy_is_shown_the_policy_the_ticket_and_every_reason_code():
    record = records()[0]
    system, user = TASK.messages(record)
    assert user["content"] == f"{record['policy']}\n{record['ticket']}"
    codes = [
        code
        for tool in TASK.tools
        for code in tool["function"]["parameters"]["properties"].get("reason", {}).get("enum", [])
    ]
    assert codes == ["damaged", "wrong_item", "missing", "safety", "over_limit", "solved", "too_late"]
    assert "too_late" in system["content"] and "over_limit" in system["content"]


@cache
def demonstrations() -> list:
    return TASK.demonstrations(parts()[0], 3000, 5, load_dialect("hermes").render)


def facts_told(demonstration) -> Facts:
    """The facts as the demonstration's own reasoning lists them."""
    words = demonstration.reasoning.split("\n")[-4:]
    paid, limit = (int(word.strip("$,")) for word in words[0].split() if word.startswith("$"))
    weeks, window = (int(word.strip(",")) for word in words[1].split() if word.strip(",").isdigit())
    order = next(
        int(w)
        for w in "".join(c if c.isalnum() or c == "$" else " " for c in demonstration.record["ticket"]).split()
        if w.isdigit() and len(w) == 3
    )
    return Facts(order, paid, weeks, words[2] == "receipt", words[3].replace(" ", "_"), limit, window)


def test_demonstrations_list_what_ticket_and_policy_say():
    for demonstration in demonstrations():
        facts, ticket = facts_told(demonstration), demonstration.record["ticket"]
        assert demonstration.record["policy"] == policy_text(facts)
        assert f"${facts.paid}" in ticket and f"{facts.weeks} weeks ago" in ticket
        assert any(phrase in ticket for phrase in PROBLEMS[facts.problem])
        assert any(phrase in ticket for phrase in RECEIPTS[facts.receipt])
        over, late = (
            "over" in demonstration.reasoning.split("\n")[-4],
            "late" in demonstration.reasoning.split("\n")[-3],
        )
        assert (over, late) == (facts.paid > facts.limit, facts.weeks > facts.window)


def test_the_call_that_is_demonstrated_does_not_depend_on_what_is_due():
    """By construction: from one seed, the same order, dollars and limit give the same call whatever else is told."""
    random = Random(2)
    for seed in range(300):
        one = generator.draw_facts(random)
        other = Facts(one.order, one.paid, 9, not one.receipt, random.choice(list(PROBLEMS)), one.limit, 2)
        assert any_call(Random(seed), one) == any_call(Random(seed), other)


def test_demonstrated_tools_are_as_often_the_right_one_as_chance_allows():
    """A quarter of the valid calls, within four standard errors; and no tool is preferred under any rule."""
    reading = [
        read_reply(d.content, load_dialect("hermes"), TASK.tools, Reasoning("<think>", "</think>"))
        for d in demonstrations()
    ]
    calls = [
        (rules.due(facts_told(d)).name, r.name)
        for d, r in zip(demonstrations(), reading)
        if r.__class__.__name__ == "ToolCall"
    ]
    assert abs(sum(wanted == made for wanted, made in calls) / len(calls) - 0.25) < 4 * sqrt(0.25 * 0.75 / len(calls))
    for tool in REASONS:
        made = Counter(made for wanted, made in calls if wanted == tool)
        for count in (made[name] for name in REASONS):
            assert abs(count / made.total() - 0.25) < 4.5 * sqrt(0.25 * 0.75 / made.total())


def test_demonstrations_use_no_wording_of_a_heldout_ticket():
    known = {wording_of(record["ticket"]) for record in parts()[0]}
    shown = {wording_of(d.record["ticket"]) for d in demonstrations()}
    assert shown == known | {None}


def test_loose_tickets_are_no_records_but_tell_the_same_numbers_to_the_oracle():
    from tuneloop.tasks.desk.oracle import told

    loose = [d for d in demonstrations() if wording_of(d.record["ticket"]) is None]
    assert abs(len(loose) / len(demonstrations()) - LOOSE_SHARE) < 0.05
    for demonstration in loose:
        facts, found = facts_told(demonstration), told(TASK.show(demonstration.record))
        assert (found.order, found.paid, found.weeks) == (facts.order, facts.paid, facts.weeks)


def test_demonstrations_repeat_and_there_are_no_extra_records_and_no_games():
    again = TASK.demonstrations(parts()[0], 50, 5, load_dialect("hermes").render)
    assert again == demonstrations()[:50]
    assert (TASK.extra_records(), TASK.games) == ([], None)


def test_facts_of_a_record_have_one_due_call_that_is_read_as_valid():
    for record in records()[::7]:
        call = rules.due(facts_of(record))
        text = load_dialect("hermes").render(call)
        assert read_reply(text, load_dialect("hermes"), TASK.tools, None) == call


def test_phrases_name_places_that_exist():
    assert {len(phrases) for phrases in (*PROBLEMS.values(), *RECEIPTS.values())} == {3}
    assert ticket_text(facts_of(records()[0]), Phrases(2, 2, len(ITEMS) - 1), 0)
