"""boards: the records of the task, and the held-out split.

    python -m stages.boards

Writes data/boards/boards.jsonl (all records), train.jsonl and heldout.jsonl (no held-out record shares
its split key with a training record) and summary.json. The same params give the same bytes.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from tuneloop.artifacts import write_json, write_jsonl
from tuneloop.params import load_params
from tuneloop.stage import stage
from tuneloop.tasks import load_task
from tuneloop.tasks.split import split

OUT = Path("data/boards")


def main() -> int:
    with stage("boards"):
        params = load_params()
        task = load_task(params.task.name)
        records = task.generate(params.boards.count, params.boards.seed)
        train, heldout = split(task, records, params.boards.heldout_fraction, params.boards.seed)
        tables = {"boards": records, "train": train, "heldout": heldout}
        for name, rows in tables.items():
            write_jsonl(OUT / f"{name}.jsonl", rows)
        summary = {
            name: {
                "records": len(rows),
                "split_keys": len({task.split_key(row) for row in rows}),
                "strata": dict(sorted(Counter(task.stratum(row) for row in rows).items())),
            }
            for name, rows in tables.items()
        }
        write_json(OUT / "summary.json", summary)
        print(f"{len(records)} records: {len(train)} to train on, {len(heldout)} held out")
    return 0


if __name__ == "__main__":
    sys.exit(main())
