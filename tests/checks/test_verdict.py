"""The machinery: named tables and suites in, one verdict out."""

from __future__ import annotations

import json
import subprocess
import sys

import pandas as pd
import pytest

from tuneloop.checks.verdict import Table, conclude, validate

FRAME = pd.DataFrame({"line": [1, 2, 3], "id": ["a", "b", None], "n": [1.0, 5.0, 9.0]})


def table(**expectations) -> Table:
    return Table("numbers", FRAME, expectations)


@pytest.fixture(scope="module")
def gxe():
    import great_expectations.expectations as gxe

    return gxe


def test_a_failing_row_is_named_by_its_id_and_by_its_line_where_it_has_no_id(gxe):
    verdict = validate([table(small=gxe.ExpectColumnValuesToBeBetween(column="n", max_value=4))])
    [result] = verdict["expectations"]
    assert (verdict["success"], result["unexpected_count"], result["ids"]) == (False, 2, ["b", "line 3"])
    assert "b (line 2): n 5.0; line 3: n 9.0" in result["detail"]


def test_a_verdict_has_exactly_the_documented_keys(gxe):
    verdict = validate([table(there=gxe.ExpectColumnValuesToNotBeNull(column="n"))])
    assert verdict == {
        "success": True,
        "rows": {"numbers": 3},
        "expectations": [
            {
                "table": "numbers",
                "name": "there",
                "column": "n",
                "success": True,
                "unexpected_count": 0,
                "ids": [],
                "detail": "expected column values to not be null (n)",
            }
        ],
    }


def test_a_missing_column_is_a_failed_result_that_says_so(gxe):
    [result] = validate([table(there=gxe.ExpectColumnValuesToNotBeNull(column="reward"))])["expectations"]
    assert not result["success"]
    assert result["detail"].endswith("the table has no column 'reward'")


def test_an_expectation_that_cannot_be_evaluated_is_a_failed_result(gxe):
    texts = Table(
        "texts", pd.DataFrame({"id": ["a"], "n": ["x"]}), {"mean": gxe.ExpectColumnMeanToBeBetween(column="n")}
    )
    [result] = validate([texts])["expectations"]
    assert not result["success"]
    assert "could not be evaluated" in result["detail"]


def test_the_first_twenty_records_are_named_and_all_rows_are_counted(gxe):
    frame = pd.DataFrame({"id": [f"r{i // 2:02d}" for i in range(60)], "n": [1] * 60})
    zero = gxe.ExpectColumnValuesToBeInSet(column="n", value_set=[0])
    [result] = validate([Table("many", frame, {"zero": zero})])["expectations"]
    assert result["unexpected_count"] == 60
    assert result["ids"] == [f"r{i:02d}" for i in range(20)]


def test_the_same_tables_give_the_same_bytes_whatever_the_order_of_the_suite(gxe, tmp_path):
    def expectations():
        return {
            "b": gxe.ExpectColumnValuesToBeBetween(column="n", max_value=4),
            "a": gxe.ExpectColumnValuesToNotBeNull(column="id"),
            "c": gxe.ExpectColumnMeanToBeBetween(column="n", max_value=1),
            "d": gxe.ExpectColumnValuesToNotBeNull(column="absent"),
        }

    first, again, turned = expectations(), expectations(), dict(reversed(expectations().items()))
    for name, suite in (("first", first), ("again", again), ("turned", turned)):
        conclude("check", validate([table(**suite)]), tmp_path / name)
    written = (tmp_path / "first").read_bytes()
    assert written == (tmp_path / "again").read_bytes() == (tmp_path / "turned").read_bytes()
    assert [e["name"] for e in json.loads(written)["expectations"]] == ["a", "b", "c", "d"]


def test_a_failed_verdict_is_written_explained_on_stderr_and_gives_status_1(gxe, tmp_path, capsys):
    verdict = validate([table(small=gxe.ExpectColumnValuesToBeBetween(column="n", max_value=4))])
    assert conclude("check_numbers", verdict, tmp_path / "checks" / "numbers.json") == 1
    assert json.loads((tmp_path / "checks" / "numbers.json").read_text()) == verdict
    message = capsys.readouterr().err
    assert "check_numbers: 1 of 1 expectations failed" in message
    assert "numbers: small: " in message and "[b, line 3]" in message


def test_a_good_verdict_is_written_in_silence_and_gives_status_0(gxe, tmp_path, capfd):
    verdict = validate([table(there=gxe.ExpectColumnValuesToNotBeNull(column="n"))])
    assert conclude("check_numbers", verdict, tmp_path / "numbers.json") == 0
    assert json.loads((tmp_path / "numbers.json").read_text())["success"] is True
    out, err = capfd.readouterr()
    assert (out, err) == ("", ""), "no progress bars"


def test_great_expectations_stays_unloaded_until_a_suite_is_built_and_then_sends_nothing():
    code = (
        "import os, sys; from tuneloop.checks import load_checks, records, replies, verdict; load_checks('tictactoe');"
        "assert 'great_expectations' not in sys.modules; assert os.environ['GX_ANALYTICS_ENABLED'] == 'false'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
