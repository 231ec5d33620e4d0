"""retest: the trained policy in the same environment: same code, prompts and seeds as baseline.

    python -m stages.retest

Reads data/boards/heldout.jsonl and data/train/policy; writes data/retest/replies.jsonl (greedy and
sampled replies, one row a reply), games.jsonl, metrics.json and timings.json.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tuneloop.evaluation.measure import measure
from tuneloop.params import load_params
from tuneloop.stage import stage


def main() -> int:
    with stage("retest"):
        measure(load_params(), Path("data/train/policy"), Path("data/retest"), rerun=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
