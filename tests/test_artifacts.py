"""Files that the pipeline writes: whole or not at all, the same bytes for the same content."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tuneloop.artifacts import (
    compact_json,
    read_json,
    read_jsonl,
    replacing,
    write_csv,
    write_json,
    write_jsonl,
    write_text,
)
from tuneloop.errors import UserError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_the_old_one_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    write_text(path, "old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == tmp_path, "on the same disk, so that the rename is one step"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["table.txt"]


@pytest.mark.parametrize("problem", [OSError("no room"), ValueError("bad"), KeyboardInterrupt()])
def test_an_error_inside_the_block_leaves_the_old_file_and_no_temporary_one(
    tmp_path: Path, problem: BaseException
) -> None:
    path = tmp_path / "table.txt"
    write_text(path, "old")
    with pytest.raises(type(problem)), replacing(path) as temporary:
        temporary.write_text("half of the n")
        raise problem
    assert path.read_text() == "old"
    assert names(tmp_path) == ["table.txt"]


def test_a_row_that_cannot_be_written_leaves_the_old_table(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [{"a": 1}])
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_jsonl(path, [{"a": 2}, {"a": float("nan")}])
    assert read_jsonl(path) == [{"a": 1}]
    assert names(tmp_path) == ["rows.jsonl"]


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "b" / "c.txt", "x")
    assert (tmp_path / "a" / "b" / "c.txt").read_text() == "x"


def test_lines_end_the_same_on_every_system_and_text_is_utf_8(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [{"b": "é", "a": 1.0}, {"b": "\n", "a": None}])
    # Written out by hand: keys in the order given, no spaces, no escapes beyond what JSON needs.
    assert (tmp_path / "rows.jsonl").read_bytes() == '{"b":"é","a":1.0}\n{"b":"\\n","a":null}\n'.encode()


def test_json_for_people_has_sorted_keys_and_floats_that_read_back_equal(tmp_path: Path) -> None:
    value = {"b": 0.1 + 0.2, "a": {"d": 1e-300, "c": [1, None, True]}}
    write_json(tmp_path / "value.json", value)
    text = (tmp_path / "value.json").read_text()
    assert read_json(tmp_path / "value.json") == value
    assert text.index('"a"') < text.index('"c"') < text.index('"d"') < text.index('"b"')
    assert text.endswith("}\n")
    write_json(tmp_path / "again.json", {key: value[key] for key in reversed(value)})
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "value.json").read_bytes()


def test_a_csv_has_a_header_empty_cells_for_none_and_plain_line_ends(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", [{"step": 1, "length": None, "note": "a,b"}, {"step": 2, "length": 0.1, "note": ""}])
    assert (tmp_path / "t.csv").read_bytes() == b'step,length,note\n1,,"a,b"\n2,0.1,\n'


def test_a_csv_of_no_rows_or_of_other_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no rows"):
        write_csv(tmp_path / "t.csv", [])
    with pytest.raises(ValueError, match="reward"):
        write_csv(tmp_path / "t.csv", [{"step": 1}, {"step": 2, "reward": 1.0}])
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    ["a\u2028b\u2029c", "a\x85b\x0bc\x0cd\x1ce", "line\nbreak\r\n", "\u202e\ufeff", 'quote " and \\', "\x00", "🎲", ""],
)
def test_every_text_that_a_reply_may_hold_survives_writing_and_reading(tmp_path: Path, text: str) -> None:
    rows = [{"text": text}, {"text": "next"}]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    assert read_jsonl(tmp_path / "rows.jsonl") == rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no records"),
        (b'{"a":1}\n[1]\n', r"line 2: is not a JSON object: '\[1\]'"),
        (b'{"a":1}\n\n{"a":2}\n', "line 2: is not a JSON object: ''"),
        (b'{"a":1}\n{"a":\n', "line 2: is not a JSON object"),
        (b'{"a":1}\n\n', "line 2: is not a JSON object: ''"),
        (b"[" * 100_000, "line 1: is not a JSON object"),
        (b'{"a":"\xff"}\n', "is not UTF-8 text"),
    ],
    ids=["empty", "no object", "an empty line", "cut short", "an empty last line", "a deep nest", "not UTF-8"],
)
def test_a_broken_table_is_an_error_that_names_the_file_and_the_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=f"rows.jsonl.*{message}") as error:
        read_jsonl(tmp_path / "rows.jsonl")
    assert len(str(error.value)) < 400, "a long line is not repeated whole"


def test_a_missing_table_is_an_error_that_says_how_to_make_it(tmp_path: Path) -> None:
    for read in (read_json, read_jsonl):
        with pytest.raises(UserError, match=r"gone: cannot be read \(No such file or directory\).*dvc repro"):
            read(tmp_path / "gone")


@pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe", b"[" * 100_000])
def test_a_broken_json_file_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "value.json").write_bytes(content)
    with pytest.raises(UserError, match=r"value\.json: is not valid JSON"):
        read_json(tmp_path / "value.json")


def test_compact_json_is_one_line_without_spaces_in_the_order_given() -> None:
    value = {"name": "choose_square", "arguments": {"square": 5}, "why": "a\nb é"}
    text = compact_json(value)
    assert text == '{"name":"choose_square","arguments":{"square":5},"why":"a\\nb é"}'
    assert json.loads(text) == value


def test_two_processes_that_write_the_same_file_do_not_share_a_temporary_one(tmp_path: Path) -> None:
    with replacing(tmp_path / "x") as temporary:
        assert str(os.getpid()) in temporary.name
        temporary.write_text("")
