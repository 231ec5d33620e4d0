"""The edges of every stage: what it says, and how it ends."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from stages import boards
from tuneloop.artifacts import read_json, read_jsonl
from tuneloop.errors import UserError
from tuneloop.stage import stage
from tuneloop.tasks import load_task


def test_a_stage_says_when_it_starts_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with stage("boards"):
        print("work")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["[boards] started", "work"]
    assert lines[2].startswith("[boards] ended after 0.")


def test_a_users_mistake_is_its_text_on_stderr_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end, stage("boards"):
        raise UserError("boards.count: too many")
    assert end.value.code == 2
    said = capsys.readouterr()
    assert said.err == "[boards] error: boards.count: too many\n"
    assert "ended" not in said.out


def test_ctrl_c_is_one_line_and_status_130(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end, stage("train"):
        raise KeyboardInterrupt
    assert end.value.code == 130
    assert capsys.readouterr().err == "[train] interrupted\n"


def test_a_fault_of_the_program_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), stage("train"):
        print(1 // 0)


# The first stage


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_params: Callable[..., None]) -> Path:
    write_params(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tables(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "data" / "boards").iterdir()}


def test_the_boards_stage_splits_all_boards_so_that_no_class_is_on_both_sides(here: Path) -> None:
    assert boards.main() == 0
    rows = {name: read_jsonl(here / f"data/boards/{name}.jsonl") for name in ("boards", "train", "heldout")}
    assert len(rows["boards"]) == 60
    assert sorted(r["id"] for r in rows["train"] + rows["heldout"]) == [r["id"] for r in rows["boards"]]
    keys = {name: {load_task("tictactoe").split_key(row) for row in table} for name, table in rows.items()}
    assert not keys["train"] & keys["heldout"]
    summary = read_json(here / "data/boards/summary.json")
    for name, table in rows.items():
        assert summary[name]["records"] == len(table) == sum(summary[name]["strata"].values())
        assert summary[name]["split_keys"] == len(keys[name])


def test_the_same_parameters_give_the_same_bytes_and_another_seed_gives_others(
    here: Path, write_params: Callable[..., None]
) -> None:
    boards.main()
    first = tables(here)
    boards.main()
    assert tables(here) == first
    write_params(here, {"boards.seed": 7})
    boards.main()
    assert all(tables(here)[name] != content for name, content in first.items() if name != "summary.json")


def test_the_boards_are_those_of_the_documented_generator(here: Path, write_params: Callable[..., None]) -> None:
    write_params(here, {"boards.count": 16, "boards.seed": 7})
    boards.main()
    # The published hash for 16 boards from seed 7.
    digest = hashlib.sha256((here / "data/boards/boards.jsonl").read_bytes()).hexdigest()
    assert digest == "ecfa9e8146e7a4c0756ba71f945e408f598877b88a82a3ab5d18715ee4ae1e44"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"boards.count": 2202}, "2201"),
        ({"boards.count": 1}, "leave none for training"),
        ({"task.name": "chess"}, "there is no task 'chess'; known tasks: "),
    ],
)
def test_a_wrong_number_stops_the_stage_with_its_reason_and_writes_nothing(
    here: Path,
    write_params: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, object],
    message: str,
) -> None:
    write_params(here, changes)
    with pytest.raises(SystemExit) as end:
        boards.main()
    assert end.value.code == 2
    assert message in capsys.readouterr().err
    assert not (here / "data").exists()
