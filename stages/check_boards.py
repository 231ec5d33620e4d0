"""check_boards: no record is trained on or evaluated on before it has been checked.

    python -m stages.check_boards

Reads data/boards/{boards,train,heldout}.jsonl and writes data/checks/boards.json. The suites are in
tuneloop/checks/records.py (form, ids, counts, the split) and in the task's own `checks` module (what a
record may hold, and which records count as equal). Where an expectation fails, stderr names table,
expectation and record ids, and the exit status is 1: later stages depend on the JSON, so DVC does not
start them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tuneloop.artifacts import read_jsonl
from tuneloop.checks import load_checks
from tuneloop.checks.records import record_tables
from tuneloop.checks.verdict import Verdict, conclude, validate
from tuneloop.params import load_params
from tuneloop.stage import stage

BOARDS = Path("data/boards")
OUTPUT = Path("data/checks/boards.json")


def check(folder: Path, task_name: str, count: int, heldout_fraction: float) -> Verdict:
    """The verdict on the record tables in `folder`. Raises UserError for a file that cannot be read."""
    generated, train, heldout = (read_jsonl(folder / f"{name}.jsonl") for name in ("boards", "train", "heldout"))
    return validate(record_tables(load_checks(task_name), generated, train, heldout, count, heldout_fraction))


def main() -> int:
    """The exit status: 0 if all expectations hold, 1 if not."""
    with stage("check_boards"):
        params = load_params()
        verdict = check(BOARDS, params.task.name, params.boards.count, params.boards.heldout_fraction)
        return conclude("check_boards", verdict, OUTPUT)


if __name__ == "__main__":
    sys.exit(main())
