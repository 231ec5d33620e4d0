"""JSON rows as data frames that keep the line numbers and say what is wrong with each row's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from tuneloop.checks.contract import Columns

AS_DOCUMENTED = "as documented"

Facts = Mapping[str, Any]


def frame(rows: Sequence[Mapping[str, Any]], columns: Columns, facts: Sequence[Facts]) -> pd.DataFrame:
    """One frame row for every row of a file: `line` (from 1), the columns of texts and numbers,
    `form` (`as documented`, or what is wrong with the row's keys and types), and the facts.

    A value of an undocumented type counts as missing, so that one text among numbers shows up
    under `form` and does not keep the other expectations from being evaluated. A documented
    column that no row has stays out of the frame. Raises ValueError for a fact with a column's name.
    """
    flat = [name for name, types in columns.items() if not set(types) & {list, dict}]
    table: dict[str, list[Any]] = {"line": list(range(1, len(rows) + 1))}
    for name in flat:
        if any(name in row for row in rows):
            table[name] = [value if type(value := row.get(name)) in columns[name] else None for row in rows]
    table["form"] = [_form(row, columns) for row in rows]
    for name in facts[0] if facts else ():
        if name in table:
            raise ValueError(f"the fact {name!r} has the name of a column")
        table[name] = [fact[name] for fact in facts]
    return frame_of(table)


def frame_of(table: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """Columns by name as a frame. JSON may hold lone surrogates, which neither pandas nor a UTF-8
    file can: they become `\\udcff` and the like, so that bad data is judged and not fallen over."""
    return pd.DataFrame({name: [_storable(value) for value in values] for name, values in table.items()})


def _storable(value: Any) -> Any:
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value


def _form(row: Mapping[str, Any], columns: Columns) -> str:
    problems = [f"no {name!r}" for name in columns if name not in row]
    problems += [f"undocumented {name!r}" for name in row if name not in columns]
    if not problems and list(row) != list(columns):
        problems.append(f"keys in the order {', '.join(row)}")
    problems += [
        f"{name!r} is {type(row[name]).__name__}, not {types[0].__name__}"
        for name, types in columns.items()
        if name in row and row[name] is not None and type(row[name]) not in types
    ]
    return "; ".join(problems) or AS_DOCUMENTED
