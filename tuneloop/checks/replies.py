"""The reward tables: every reply's row against its record, an independent oracle and the counts asked for."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

from tuneloop.checks.contract import TaskChecks
from tuneloop.checks.frames import AS_DOCUMENTED, frame, frame_of
from tuneloop.checks.verdict import Table
from tuneloop.tasks.contract import Record, Task
from tuneloop.toolcalls.contract import FaultName, Reasoning

if TYPE_CHECKING:
    from great_expectations.expectations import Expectation

Rows = Sequence[Mapping[str, Any]]

EVALUATION_COLUMNS: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "board": (str,),
    "stratum": (str,),
    "cluster": (str,),
    "decoding": (str,),
    "sample": (int,),
    "prompt_hash": (str,),
    "text": (str,),
    "call": (str, type(None)),
    "outcome": (str,),
    "reward": (float,),
    "length": (int,),
    "finish_reason": (str,),
}
TRAINING_COLUMNS = {"step": (int,)} | {name: types for name, types in EVALUATION_COLUMNS.items() if name != "decoding"}

TYPES = EVALUATION_COLUMNS | TRAINING_COLUMNS

FAULTS = frozenset(get_args(FaultName))


@dataclass(frozen=True)
class Setting:
    """What the replies were made under. `train` and `heldout` are the records of the split; `most_turns`: replies in
    the longest answer of which a row tells."""

    task: Task
    checks: TaskChecks
    train: Sequence[Record]
    heldout: Sequence[Record]
    max_new_tokens: int
    dialect: str
    reasoning: Reasoning | None
    most_turns: int = 1
    fewest_tokens: int = 1
    """Of an answer: a failed episode of an agent may have none."""

    @cached_property
    def records(self) -> dict[str, Record]:
        return {record["id"]: record for record in (*self.train, *self.heldout)}

    @cached_property
    def sides(self) -> dict[str, str]:
        return {r["id"]: "train" for r in self.train} | {r["id"]: "heldout" for r in self.heldout}


def evaluation_tables(
    name: str,
    rows: Rows,
    setting: Setting,
    replies: Mapping[str, int],
    columns: Mapping[str, tuple[type, ...]] = EVALUATION_COLUMNS,
) -> list[Table]:
    """An evaluation's replies, and their counts by held-out record.

    `replies`: how many replies every record has under each decoding, e.g. `{"greedy": 1, "sampled": 8}`.
    """
    import great_expectations.expectations as gxe

    expectations = _row_expectations(columns, setting, "heldout")
    expectations["decoding_known"] = gxe.ExpectColumnValuesToBeInSet(column="decoding", value_set=list(replies))
    return [
        Table(name, frame(rows, columns, _facts(rows, setting)), expectations),
        _by_record(f"{name} by record", rows, setting.heldout, replies),
    ]


def training_tables(
    name: str,
    rows: Rows,
    setting: Setting,
    group_size: int,
    steps: int,
    columns: Mapping[str, tuple[type, ...]] = TRAINING_COLUMNS,
) -> list[Table]:
    """The replies kept during training, and their counts by group (one record in one step)."""
    import great_expectations.expectations as gxe

    expectations = _row_expectations(columns, setting, "train")
    expectations["step_in_range"] = gxe.ExpectColumnValuesToBeBetween(column="step", min_value=0, max_value=steps)
    return [
        Table(name, frame(rows, columns, _facts(rows, setting)), expectations),
        _by_group(f"{name} by group", rows, group_size),
    ]


def pairing_table(first: str, first_rows: Rows, second: str, second_rows: Rows) -> Table:
    """The replies of two evaluations side by side: the same records, decodings, samples and prompts."""
    import great_expectations.expectations as gxe

    hashes = [_hashes(rows) for rows in (first_rows, second_rows)]
    keys = sorted(hashes[0].keys() | hashes[1].keys())
    absent = [[name for name, known in zip((first, second), hashes) if key not in known] for key in keys]
    table = frame_of(
        {
            "id": [key[0] for key in keys],
            "missing": [f"{key[1]} {key[2]} in {names[0]}" if names else "nothing" for key, names in zip(keys, absent)],
            first: [hashes[0].get(key) for key in keys],
            second: [hashes[1].get(key) for key in keys],
        }
    )
    return Table(
        f"{second} against {first}",
        table,
        {
            "same_replies": gxe.ExpectColumnValuesToBeInSet(column="missing", value_set=["nothing"]),
            "same_prompts": gxe.ExpectColumnPairValuesToBeEqual(
                column_A=first, column_B=second, ignore_row_if="either_value_is_missing"
            ),
        },
    )


def _row_expectations(columns: Mapping[str, tuple[type, ...]], setting: Setting, side: str) -> dict[str, Expectation]:
    import great_expectations.expectations as gxe

    def equal(first: str, second: str) -> Expectation:
        # A missing value fails `…_not_missing`, or stands for a record that fails `record_of_…`.
        return gxe.ExpectColumnPairValuesToBeEqual(
            column_A=first, column_B=second, ignore_row_if="either_value_is_missing"
        )

    expectations = {
        f"{name}_not_missing": gxe.ExpectColumnValuesToNotBeNull(column=name)
        for name, types in columns.items()
        if not {type(None), list} & set(types)
    }
    return expectations | {
        "form_as_documented": gxe.ExpectColumnValuesToBeInSet(column="form", value_set=[AS_DOCUMENTED]),
        f"record_of_{side}": gxe.ExpectColumnValuesToBeInSet(column="side", value_set=[side]),
        "board_of_record": equal("board", "expected_board"),
        "stratum_of_record": equal("stratum", "expected_stratum"),
        "cluster_of_record": equal("cluster", "expected_cluster"),
        "prompt_hash_form": gxe.ExpectColumnValuesToMatchRegex(column="prompt_hash", regex=r"\A[0-9a-f]{16}\Z"),
        "outcome_known": gxe.ExpectColumnValuesToBeInSet(column="outcome", value_set=list(setting.task.outcomes)),
        "outcome_as_oracle": equal("outcome", "oracle_outcome"),
        "reward_of_outcome": equal("reward", "outcome_reward"),
        "reward_as_oracle": equal("reward", "oracle_reward"),
        "call_where_no_fault": gxe.ExpectColumnValuesToBeInSet(column="call_use", value_set=["as due"]),
        "length_in_range": gxe.ExpectColumnValuesToBeBetween(
            column="length", min_value=setting.fewest_tokens, max_value=setting.max_new_tokens * setting.most_turns
        ),
        "finish_reason_known": gxe.ExpectColumnValuesToBeInSet(column="finish_reason", value_set=["stop", "length"]),
        "cut_only_at_the_limit": gxe.ExpectColumnValuesToBeInSet(column="cut_at", value_set=[setting.max_new_tokens]),
    }


def _facts(rows: Rows, setting: Setting) -> list[dict[str, Any]]:
    """What every row should say, derived from its record and its text."""
    facts = []
    for row in rows:
        record = setting.records.get(row["id"]) if isinstance(row.get("id"), str) else None
        shown = None if record is None else setting.task.show(record)
        oracle: tuple[str | None, float | None] = (None, None)
        # What an agent says that its episode earned, no oracle can compute again (`tuneloop.checks.agents`).
        by_agent = row.get("rewarded_by") == "agent"
        if shown is not None and isinstance(row.get("text"), str) and not by_agent:
            of_row = getattr(setting.checks, "oracle_of_row", None)
            judge, what = (setting.checks.oracle, row["text"]) if of_row is None else (of_row, row)
            oracle = judge(shown, what, setting.reasoning, setting.dialect)
        outcome = row.get("outcome") if isinstance(row.get("outcome"), str) else None
        facts.append(
            {
                "side": "unknown" if record is None else setting.sides[record["id"]],
                "expected_board": shown,
                "expected_stratum": None if record is None else setting.task.stratum(record),
                "expected_cluster": None if record is None else setting.task.split_key(record),
                "oracle_outcome": oracle[0],
                "oracle_reward": oracle[1],
                "outcome_reward": None if by_agent else setting.checks.REWARDS.get(outcome),
                "call_use": "as due" if by_agent else _call_use(row.get("call"), outcome, setting.task),
                "cut_at": _last_length(row) if row.get("finish_reason") == "length" else None,
            }
        )
    return facts


def _last_length(row: Mapping[str, Any]) -> Any:
    """Tokens of the row's last reply."""
    return row["turns"][-1]["length"] if row.get("turns") else row.get("length")


def _call_use(call: Any, outcome: str | None, task: Task) -> str | None:
    """Whether the column `call` holds what the outcome asks for; None for an outcome that is itself unknown."""
    if outcome not in task.outcomes:
        return None
    if outcome in FAULTS:
        return "as due" if call is None else "a call although the outcome is a fault"
    if call is None:
        return "no call although the outcome is none of the faults"
    try:
        written = json.loads(call)
    except (TypeError, ValueError, RecursionError):
        written = None
    is_call = isinstance(written, dict) and list(written) == ["name", "arguments"]
    return "as due" if is_call and isinstance(written["arguments"], dict) else "not the JSON of a call"


def _by_record(name: str, rows: Rows, records: Sequence[Record], replies: Mapping[str, int]) -> Table:
    import great_expectations.expectations as gxe

    samples, prompts = _grouped(rows, ("id", "decoding"))
    ids = [record["id"] for record in records]
    table: dict[str, list[Any]] = {"id": ids}
    expectations: dict[str, Expectation] = {
        "one_prompt": gxe.ExpectColumnValuesToBeBetween(column="prompts", max_value=1)
    }
    for decoding, count in replies.items():
        table[decoding] = [_completeness(samples[i, decoding], count) for i in ids]
        expectations[f"{decoding}_complete"] = gxe.ExpectColumnValuesToBeInSet(column=decoding, value_set=["complete"])
    table["prompts"] = [len({prompt for decoding in replies for prompt in prompts[i, decoding]}) for i in ids]
    return Table(name, frame_of(table), expectations)


def _by_group(name: str, rows: Rows, group_size: int) -> Table:
    import great_expectations.expectations as gxe

    samples, prompts = _grouped(rows, ("step", "id"))
    table = {
        "id": [i for _, i in samples],
        "step": [step for step, _ in samples],
        "replies": [_completeness(found, group_size) for found in samples.values()],
        "prompts": [len(set(prompts[group])) for group in samples],
    }
    return Table(
        name,
        frame_of(table),
        {
            "group_complete": gxe.ExpectColumnValuesToBeInSet(column="replies", value_set=["complete"]),
            "one_prompt": gxe.ExpectColumnValuesToBeBetween(column="prompts", max_value=1),
        },
    )


def _grouped(rows: Rows, keys: tuple[str, str]) -> tuple[dict[Any, list[int]], dict[Any, list[str]]]:
    """The sample numbers and the prompt hashes under every pair of keys."""
    samples: dict[Any, list[int]] = defaultdict(list)
    prompts: dict[Any, list[str]] = defaultdict(list)
    for row in rows:
        key = tuple(row.get(name) for name in keys)
        if _typed((*key, row.get("sample")), (*keys, "sample")):
            samples[key].append(row["sample"])
            if isinstance(row.get("prompt_hash"), str):
                prompts[key].append(row["prompt_hash"])
    return samples, prompts


def _hashes(rows: Rows) -> dict[tuple[Any, ...], Any]:
    """The prompt hash of every (id, decoding, sample)."""
    names = ("id", "decoding", "sample")
    keys = [tuple(row.get(name) for name in names) for row in rows]
    return {key: row.get("prompt_hash") for key, row in zip(keys, rows) if _typed(key, names)}


def _typed(values: Iterable[Any], names: Iterable[str]) -> bool:
    """Rows with values of other types fail `form_as_documented`; they have no place in a count."""
    return all(type(value) in TYPES[name] for value, name in zip(values, names))


def _completeness(samples: Iterable[int], count: int) -> str:
    """`complete` if the samples are exactly 0 … count-1, else what is missing, repeated or too many."""
    found = Counter(samples)
    problems = {
        "missing": sorted(set(range(count)) - set(found)),
        "repeated": sorted(sample for sample, times in found.items() if times > 1),
        "unasked": sorted(set(found) - set(range(count))),
    }
    texts = [f"{what} {', '.join(map(str, which))}" for what, which in problems.items() if which]
    return "; ".join(texts) or "complete"
