"""Training curves as columns of numbers."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tuneloop.errors import UserError

Columns = Mapping[str, NDArray[np.float64]]
"""Column name → one number a row; NaN where the cell is empty."""


def read_columns(path: Path | str, needed: Sequence[str]) -> Columns | None:
    """The table at `path`, or None if there is no such file or it has no rows.

    Raises UserError naming file, line and column for a missing column or a cell that is no number.
    """
    path = Path(path)
    if not path.exists():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    if missing := [name for name in needed if name not in (reader.fieldnames or ())]:
        raise UserError(f"{path}: no column {', '.join(missing)}; train again to make it")
    if not rows:
        return None
    columns = {}
    for name in reader.fieldnames or ():
        values = []
        for line, row in enumerate(rows, 2):
            try:
                values.append(float(row[name]) if row[name] not in ("", None) else np.nan)
            except ValueError:
                raise UserError(f"{path}, line {line}: {name} is {row[name]!r}, not a number") from None
        columns[name] = np.array(values)
    return columns


def running_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Mean of the last `window` values at every place (fewer at the start), leaving out NaN."""
    result = np.full(len(values), np.nan)
    for i in range(len(values)):
        last = values[max(0, i + 1 - window) : i + 1]
        if np.isfinite(last).any():
            result[i] = np.nanmean(last)
    return result


def smoothing_window(steps: int) -> int:
    """A twentieth of the run, at least 1: enough to see a trend, too little to hide a collapse."""
    return max(1, round(steps / 20))
