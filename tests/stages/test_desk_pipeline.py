"""The desk through every stage, chosen by `task.name` alone, with tiny numbers; its record suite on spoiled tickets."""

from __future__ import annotations

import importlib
from itertools import product

import pytest

from tuneloop.artifacts import read_json
from tuneloop.checks import load_checks
from tuneloop.checks.records import record_tables
from tuneloop.checks.verdict import validate
from tuneloop.tasks import load_task
from tuneloop.tasks.split import split

pytestmark = pytest.mark.slow

STAGES = ("boards", "check_boards", "policy", "baseline", "train", "retest", "check_rewards", "compare")
TINY_DESK = {
    "task.name": "desk",
    "boards.count": 80,
    "policy.nano.vocabulary": 1024,
    "policy.warm_start.updates": 30,
    "evaluate.samples": 1,
    "rollout.max_new_tokens": 32,
    "train.steps": 2,
    "train.keep_replies_every": 1,
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory, write_params):
    """The folder of a whole run, both check stages included, in this process: large libraries load once."""
    folder = tmp_path_factory.mktemp("desk")
    write_params(folder, TINY_DESK)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in STAGES:
            assert importlib.import_module(f"stages.{name}").main() == 0, name
    return folder


def test_both_checks_pass_and_looked_at_every_table(ended):
    boards, rewards = (read_json(ended / "data" / "checks" / f"{name}.json") for name in ("boards", "rewards"))
    assert (boards["success"], rewards["success"]) == (True, True)
    assert boards["rows"]["boards"] == 80
    assert rewards["rows"].keys() >= {"baseline", "rerun", "retest", "train", "retest against baseline"}
    assert rewards["rows"]["train"] == 2 * 4 * 4  # steps × boards_per_step × group_size


def test_the_report_speaks_of_tickets_and_shows_the_call_that_is_due(ended):
    page = (ended / "data" / "compare" / "report.html").read_text(encoding="utf-8")
    assert "held-out tickets in" in page and "By rule that decides" in page
    assert "due: <code>" in page
    assert [word for word in ("tictactoe", "Tic-Tac-Toe", "symmetry", "square") if word in page] == []


def test_a_task_without_games_plays_none_and_its_page_does_not_speak_of_them(ended):
    assert (ended / "data" / "baseline" / "games.jsonl").read_text(encoding="utf-8") == ""
    assert read_json(ended / "data" / "compare" / "metrics.json")["games"] is None
    page = (ended / "data" / "compare" / "report.html").read_text(encoding="utf-8")
    assert [word for word in ("Whole games", "#games", "No games") if word in page] == []


def test_tickets_spoiled_in_one_way_fail_the_expectation_about_it():
    task = load_task("desk")
    records = task.generate(128, 9)
    train, heldout = split(task, records, 0.2, 1)
    spoiled = {
        train[0]["id"]: ("ticket", f"{train[0]['ticket']} I paid $99, I did.", "every_number_once"),
        train[1]["id"]: ("ticket", f"{train[1]['ticket']} It never came and was broken.", "one_thing_happened"),
        train[2]["id"]: ("policy", "Refunds up to $600 within 4 weeks.", "limit_two_digits"),
        train[3]["id"]: ("ticket", f"{train[3]['ticket']} But I have the receipt.", "one_word_on_the_receipt"),
    }
    for record, key in product(train[:4], ("policy", "ticket")):
        if spoiled[record["id"]][0] == key:
            record[key] = spoiled[record["id"]][1]
    results = validate(record_tables(load_checks("desk"), records, train, heldout, 128, 0.2))["expectations"]
    failed = {(i, r["name"]) for r in results if not r["success"] for i in r["ids"]}
    assert failed == {(i, name) for i, (_, _, name) in spoiled.items()}
