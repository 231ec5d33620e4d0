"""Great Expectations over in-memory tables, and a verdict whose bytes repeat.

The suites live in code and the context in memory: nothing is written but the verdict, which holds
no run ids, times or machine details, in a fixed order (Great Expectations returns results in an
order of its own).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from tuneloop.artifacts import write_json

if TYPE_CHECKING:
    from great_expectations.data_context import AbstractDataContext
    from great_expectations.expectations import Expectation

MAX_IDS = 20
MAX_EXAMPLES = 3

Verdict = dict[str, Any]
"""`{"success", "rows": {table: n}, "expectations": [{"table", "name", "column", "success",
"unexpected_count", "ids", "detail"}, …]}`, expectations sorted by table, name and column; `note`, a sentence about the
check, where there is one."""


@dataclass(frozen=True)
class Table:
    """`frame` has a column `id`, and `line` where its rows are lines of a file."""

    name: str
    frame: pd.DataFrame
    expectations: Mapping[str, Expectation]


def validate(tables: Sequence[Table]) -> Verdict:
    """Evaluate every table's expectations. Failures of any kind, a missing column included, are
    results and not exceptions; `ids` are the first 20 distinct records that failed."""
    import great_expectations as gx

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    results = [result for table in tables for result in _evaluate(context, table)]
    results.sort(key=lambda result: (result["table"], result["name"], result["column"] or ""))
    return {
        "success": all(result["success"] for result in results),
        "rows": {table.name: len(table.frame) for table in tables},
        "expectations": results,
    }


def conclude(stage: str, verdict: Verdict, path: Path | str) -> int:
    """Write the verdict to `path`, print its failures to stderr, and give the exit status: 0 or 1."""
    write_json(path, verdict)
    failures = [result for result in verdict["expectations"] if not result["success"]]
    if not failures:
        return 0
    total = len(verdict["expectations"])
    print(f"{stage}: {len(failures)} of {total} expectations failed, see {path}", file=sys.stderr)
    for failure in failures:
        records = f" [{', '.join(failure['ids'])}]" if failure["ids"] else ""
        print(f"  {failure['table']}: {failure['name']}: {failure['detail']}{records}", file=sys.stderr)
    return 1


def _evaluate(context: AbstractDataContext, table: Table) -> list[dict[str, Any]]:
    import great_expectations as gx

    for name, expectation in table.expectations.items():
        expectation.meta = {"name": name}
    asset = context.data_sources.add_pandas(table.name).add_dataframe_asset(table.name)
    suite = gx.ExpectationSuite(name=table.name, expectations=list(table.expectations.values()))
    definition = context.validation_definitions.add(
        gx.ValidationDefinition(
            name=table.name,
            data=asset.add_batch_definition_whole_dataframe("whole"),
            suite=context.suites.add(suite),
        )
    )
    run = definition.run(
        batch_parameters={"dataframe": table.frame},
        result_format={
            "result_format": "COMPLETE",
            "unexpected_index_column_names": [name for name in ("line", "id") if name in table.frame],
        },
    )
    return [_plain(table, result.to_json_dict()) for result in run.results]


def _plain(table: Table, result: Mapping[str, Any]) -> dict[str, Any]:
    configuration, outcome = result["expectation_config"], result["result"]
    kwargs = configuration["kwargs"]
    column = kwargs.get("column") or kwargs.get("column_A")
    failing = outcome.get("unexpected_index_list") or []
    ids = list(dict.fromkeys(_record(row) for row in failing))
    return {
        "table": table.name,
        "name": configuration["meta"]["name"],
        "column": column,
        "success": bool(result["success"]),
        "unexpected_count": int(outcome.get("unexpected_count") or 0),
        "ids": ids[:MAX_IDS],
        "detail": _detail(table, kwargs, column, outcome, failing, result),
    }


def _detail(
    table: Table,
    kwargs: Mapping[str, Any],
    column: str | None,
    outcome: Mapping[str, Any],
    failing: Sequence[Mapping[str, Any]],
    result: Mapping[str, Any],
) -> str:
    """What was expected and, for a failure, what was found instead."""
    expected = _expected(result["expectation_config"]["type"], kwargs)
    if "observed_value" in outcome:
        return f"{expected}; it is {_short(outcome['observed_value'])}"
    if result["success"]:
        return expected
    wanted = [name for name in (kwargs.get("column"), kwargs.get("column_A"), kwargs.get("column_B")) if name]
    absent = [name for name in wanted if name not in table.frame]
    if absent:
        return f"{expected}; the table has no column {', '.join(map(repr, absent))}"
    if not failing:
        return f"{expected}; it could not be evaluated: {_exception(result['exception_info'])}"
    examples = [
        f"{_place(row)}: {', '.join(f'{name} {_short(row.get(name))}' for name in wanted)}"
        for row in failing[:MAX_EXAMPLES]
    ]
    more = len(failing) - len(examples)
    return f"{expected}; " + "; ".join(examples) + (f"; and {more} more" if more else "")


def _expected(kind: str, kwargs: Mapping[str, Any]) -> str:
    """The expectation in words: its type and arguments as Great Expectations names them."""
    skipped = {"batch_id", "column", "column_A", "column_B", "condition_parser", "ignore_row_if", "row_condition"}
    columns = [str(kwargs[name]) for name in ("column", "column_A", "column_B") if name in kwargs]
    arguments = [f"{name} {_short(kwargs[name])}" for name in sorted(kwargs) if name not in skipped]
    words = f"expected {kind.removeprefix('expect_').replace('_', ' ')}"
    return " ".join([words, f"({', '.join(columns + arguments)})"] if columns or arguments else [words])


def _record(row: Mapping[str, Any]) -> str:
    """The failing row's record id; its line where it has no id."""
    return _one_line(row["id"]) if isinstance(row.get("id"), str) else f"line {row.get('line', '?')}"


def _place(row: Mapping[str, Any]) -> str:
    record = _record(row)
    return f"{record} (line {row['line']})" if "line" in row and isinstance(row.get("id"), str) else record


def _short(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "missing"
    text = str(float(value)) if isinstance(value, float) else _one_line(str(value))
    return text if len(text) <= 120 else text[:117] + "…"


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n")


def _exception(info: Mapping[str, Any]) -> str:
    """The message of a failed evaluation; Great Expectations keys it by metric or not at all."""
    entries = [info] if "exception_message" in info else [info[key] for key in sorted(info)]
    messages = sorted({str(entry["exception_message"]) for entry in entries if entry.get("exception_message")})
    return "; ".join(messages) or "no reason given"
