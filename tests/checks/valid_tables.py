"""Small tables that pass every check, made with the real task and the real reader; tests spoil them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from tuneloop.checks import load_checks
from tuneloop.checks.replies import Setting
from tuneloop.checks.verdict import Table, validate
from tuneloop.tasks import load_task
from tuneloop.toolcalls import Reasoning, calls_as_json, load_dialect, read_reply

Rows = list[dict[str, Any]]

TASK = load_task("tictactoe")
CHECKS = load_checks("tictactoe")
THINK = Reasoning("<think>", "</think>")
COUNT, SAMPLES, GROUP_SIZE, STEPS, MAX_NEW_TOKENS = 200, 3, 4, 20, 48

HERMES_CALL = '<tool_call>\n{"name": "choose_square", "arguments": {"square": %d}}\n</tool_call>'
TEXTS = (
    *(HERMES_CALL % square for square in range(1, 10)),
    "<think>\nthe middle\n</think>" + HERMES_CALL % 5,
    "<think>" + HERMES_CALL % 5,
    "I take the middle.",
    HERMES_CALL % 1 + HERMES_CALL % 2,
    '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
    HERMES_CALL % 10,
)


def records() -> tuple[Rows, Rows, Rows]:
    """All records, and the two sides of a split by symmetry class with about a fifth held out."""
    everything = TASK.generate(COUNT, 7)
    classes = sorted({TASK.split_key(record) for record in everything})
    kept_out = set(classes[::5])
    train = [record for record in everything if TASK.split_key(record) not in kept_out]
    return everything, train, [record for record in everything if TASK.split_key(record) in kept_out]


def setting(dialect: str = "hermes") -> Setting:
    _, train, heldout = records()
    return Setting(TASK, CHECKS, train, heldout, MAX_NEW_TOKENS, dialect, THINK)


def row(record: dict[str, Any], decoding: str, sample: int, text: str) -> dict[str, Any]:
    """One row of a reply table, scored as the pipeline scores it."""
    reading = read_reply(text, load_dialect("hermes"), TASK.tools, THINK)
    outcome = TASK.score(record, reading)
    closed = text != TEXTS[10]
    return {
        "id": record["id"],
        "board": TASK.show(record),
        "stratum": TASK.stratum(record),
        "cluster": TASK.split_key(record),
        "decoding": decoding,
        "sample": sample,
        "prompt_hash": sha256(record["id"].encode()).hexdigest()[:16],
        "text": text,
        "call": calls_as_json(reading),
        "outcome": outcome.name,
        "reward": outcome.reward,
        "length": 21 if closed else MAX_NEW_TOKENS,
        "finish_reason": "stop" if closed else "length",
    }


def evaluation(shift: int = 0) -> Rows:
    """One greedy and `SAMPLES` sampled replies to every held-out board; `shift` gives other texts."""
    wanted = [("greedy", 0), *(("sampled", sample) for sample in range(SAMPLES))]
    pairs = [(record, *how) for record in records()[2] for how in wanted]
    return [row(*pair, TEXTS[(number + shift) % len(TEXTS)]) for number, pair in enumerate(pairs)]


def training(train: Rows | None = None) -> Rows:
    """Groups of replies to six training boards in step 10 and six in step 20."""
    train = records()[1] if train is None else train
    groups = [(10, record) for record in train[:6]] + [(20, record) for record in train[4:10]]
    pairs = [(step, record, sample) for step, record in groups for sample in range(GROUP_SIZE)]
    rows = []
    for number, (step, record, sample) in enumerate(pairs):
        columns = row(record, "sampled", sample, TEXTS[number % len(TEXTS)])
        rows.append({"step": step} | {name: value for name, value in columns.items() if name != "decoding"})
    return rows


def failures_by_record(tables: Sequence[Table]) -> dict[str, set[str]]:
    """`{id: {"table: expectation", …}}` of all expectations that fail, turned round."""
    broken = failures(tables)
    return {i: {name for name, ids in broken.items() if i in ids} for ids in broken.values() for i in ids}


def failures(tables: Sequence[Table]) -> dict[str, list[str]]:
    """`{"table: expectation": ids}` of all expectations that fail."""
    results = validate(tables)["expectations"]
    return {f"{r['table']}: {r['name']}": r["ids"] for r in results if not r["success"]}
