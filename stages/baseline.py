"""baseline: the base policy on the held-out records and in whole games, before any training.

    python -m stages.baseline

Reads data/boards/heldout.jsonl and data/policy/model; writes data/baseline/replies.jsonl (greedy and
sampled replies, one row a reply), games.jsonl, metrics.json and timings.json, and
rerun.jsonl, the sampled evaluation under another seed: how far numbers move when nothing changed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tuneloop.evaluation.measure import measure
from tuneloop.params import load_params
from tuneloop.stage import stage


def main() -> int:
    with stage("baseline"):
        measure(load_params(), Path("data/policy/model"), Path("data/baseline"), rerun=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
