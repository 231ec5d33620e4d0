"""The check stages on whole data folders: exit status, verdict file and message."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path

import pytest

from tuneloop.artifacts import read_jsonl, write_jsonl
from tuneloop.errors import UserError

HERE = Path(__file__).parent


@pytest.fixture
def valid(monkeypatch):
    """The tables that `tests/checks` spoils."""
    monkeypatch.syspath_prepend(HERE.parent / "checks")
    return importlib.import_module("valid_tables")


@pytest.fixture
def data(valid, tmp_path, monkeypatch):
    """A workspace with valid data and parameters, as the working directory; its `data` folder."""
    data = tmp_path / "data"
    for name, rows in zip(("boards", "train", "heldout"), valid.records()):
        write_jsonl(data / "boards" / f"{name}.jsonl", rows)
    baseline = valid.evaluation()
    write_jsonl(data / "baseline" / "replies.jsonl", baseline)
    write_jsonl(data / "baseline" / "rerun.jsonl", [row for row in baseline if row["decoding"] == "sampled"])
    write_jsonl(data / "retest" / "replies.jsonl", valid.evaluation(shift=4))
    write_jsonl(data / "train" / "replies.jsonl", valid.training())
    monkeypatch.chdir(tmp_path)
    return data


def check_boards(valid, data):
    from stages.check_boards import check

    return check(data / "boards", "tictactoe", valid.COUNT, 0.2)


def check_rewards(valid, data, **changed):
    from stages.check_rewards import check

    knobs = {
        "max_new_tokens": valid.MAX_NEW_TOKENS,
        "samples": valid.SAMPLES,
        "group_size": valid.GROUP_SIZE,
        "steps": valid.STEPS,
    }
    return check(data, "tictactoe", "hermes", valid.THINK, **(knobs | changed))


def test_valid_data_pass_both_checks(valid, data):
    assert check_boards(valid, data)["success"]
    verdict = check_rewards(valid, data)
    assert verdict["success"]
    assert set(verdict["rows"]) >= {"baseline", "rerun", "retest", "train", "retest against baseline"}


def test_a_spoiled_reward_ends_the_check_with_status_1_and_names_the_record(valid, data, capsys):
    from tuneloop.checks.verdict import conclude

    rows = read_jsonl(data / "retest" / "replies.jsonl")
    won = next(row for row in rows if row["outcome"] == "win")
    won["reward"] = 0.8
    write_jsonl(data / "retest" / "replies.jsonl", rows)
    status = conclude("check_rewards", check_rewards(valid, data), data / "checks" / "rewards.json")
    written = json.loads((data / "checks" / "rewards.json").read_text())
    failed = {(e["table"], e["name"]): e["ids"] for e in written["expectations"] if not e["success"]}
    assert status == 1
    assert failed == {("retest", "reward_of_outcome"): [won["id"]], ("retest", "reward_as_oracle"): [won["id"]]}
    assert "retest: reward_as_oracle: expected column pair values to be equal" in capsys.readouterr().err


def test_a_missing_table_is_an_error_that_names_the_file(valid, data):
    (data / "baseline" / "rerun.jsonl").unlink()
    with pytest.raises(UserError, match=r"baseline/rerun\.jsonl: cannot be read"):
        check_rewards(valid, data)


def test_replies_to_the_tasks_extra_records_pass_only_where_training_uses_them(valid, data):
    extra = valid.TASK.extra_records()[:1]
    write_jsonl(data / "train" / "replies.jsonl", valid.training(valid.records()[1][:9] + extra))
    assert check_rewards(valid, data, extra_records=True)["success"]
    verdict = check_rewards(valid, data)
    failed = {i for e in verdict["expectations"] if not e["success"] for i in e["ids"]}
    assert not verdict["success"] and failed == {extra[0]["id"]}


def test_without_training_steps_no_training_table_is_asked_for(valid, data):
    shutil.rmtree(data / "train")
    verdict = check_rewards(valid, data, steps=0)
    assert verdict["success"]
    assert "train" not in verdict["rows"]


def test_the_boards_stage_gives_status_1_or_0_and_repeats_its_verdict_byte_for_byte(valid, data, capsys):
    from stages import check_boards as stage

    params = (HERE.parents[1] / "params.yaml").read_text().replace("count: 2048", f"count: {valid.COUNT}")
    Path("params.yaml").write_text(params)
    assert stage.main() == 0
    good = Path("data/checks/boards.json").read_bytes()
    assert stage.main() == 0
    assert Path("data/checks/boards.json").read_bytes() == good

    records = read_jsonl(data / "boards" / "boards.jsonl")
    records[3]["board"] = [["O", "O", "O"], ["X", "X", "."], ["X", ".", "."]]
    write_jsonl(data / "boards" / "boards.jsonl", records)
    assert stage.main() == 1
    assert "boards: nobody_has_won: " in capsys.readouterr().err
    assert json.loads(Path("data/checks/boards.json").read_text())["success"] is False


def test_a_policy_whose_dialect_has_no_oracle_stops_the_check(valid, data):
    from stages.check_rewards import check

    with pytest.raises(UserError, match=r"'other'.*cannot read"):
        check(data, "tictactoe", "other", None, max_new_tokens=48, samples=3, group_size=4, steps=20)
