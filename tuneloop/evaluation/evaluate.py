"""The evaluation: held-out records asked greedily and n times sampled, whole games, one summary.

Baseline, retest and the evaluations during training all come through here. Seeds depend on
`seed`, record and sample alone, never on the policy: baseline and retest draw the same noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from tuneloop.rollout.ask import Asker
from tuneloop.rollout.contract import Sampling, reply_seed
from tuneloop.tasks.contract import Record, Task

Row = dict[str, Any]
RECORDS_AT_ONCE = 128


def greedy_rows(
    asker: Asker, records: Sequence[Record], max_new_tokens: int, done: Callable[[int], None] = lambda n: None
) -> list[Row]:
    """One likeliest reply a record."""
    return _rows(asker, records, 1, 0, Sampling(max_new_tokens, greedy=True), "greedy", done)


def sampled_rows(
    asker: Asker,
    records: Sequence[Record],
    samples: int,
    seed: int,
    sampling: Sampling,
    done: Callable[[int], None] = lambda n: None,
) -> list[Row]:
    """`samples` sampled replies a record."""
    return _rows(asker, records, samples, seed, sampling, "sampled", done)


def _rows(
    asker: Asker,
    records: Sequence[Record],
    samples: int,
    seed: int,
    sampling: Sampling,
    decoding: str,
    done: Callable[[int], None],
) -> list[Row]:
    rows = []
    for start in range(0, len(records), RECORDS_AT_ONCE):
        part = records[start : start + RECORDS_AT_ONCE]
        seeds = [[reply_seed(seed, "evaluate", record["id"], i) for i in range(samples)] for record in part]
        for record, answers in zip(part, asker.ask(part, seeds, sampling)):
            rows += [asker.row(record, i, answer, decoding=decoding) for i, answer in enumerate(answers)]
        done(len(part) * samples)
    return rows


def summarise(rows: Sequence[Row], task: Task) -> dict[str, Any]:
    """Mean reward, the task's measures, outcome shares and reply lengths of some rows."""
    lengths = {
        "all": [row["length"] for row in rows],
        "finished": [row["length"] for row in rows if row["finish_reason"] == "stop"],
        "truncated": [row["length"] for row in rows if row["finish_reason"] == "length"],
    }
    count = len(rows)
    with_agent = bool(rows) and "fault" in rows[0]
    return {
        "reward": fmean(row["reward"] for row in rows),
        **{name: sum(row["outcome"] in yes for row in rows) / count for name, yes in task.measures.items()},
        "shares": {name: sum(row["outcome"] == name for row in rows) / count for name in task.outcomes},
        "length": {name: fmean(values) if values else None for name, values in lengths.items()},
        "replies": count,
        # Only where an agent answers: how many of the replies above stand for an episode that failed.
        **({"faults": dict(Counter(row["fault"] for row in rows if row["fault"]))} if with_agent else {}),
    }
