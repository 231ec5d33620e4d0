"""The record tables: everything generated, and its two sides of the held-out split."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tuneloop.checks.contract import TaskChecks
from tuneloop.checks.frames import AS_DOCUMENTED, frame
from tuneloop.checks.verdict import Table

if TYPE_CHECKING:
    from great_expectations.expectations import Expectation

Rows = Sequence[Mapping[str, Any]]

SHARE_TOLERANCE = 0.02
"""Whole classes move between the sides of the split, so its share is only near the one asked for."""

FEW = 500
"""Below this many records one class can be more than the tolerance; then both sides must exist."""


def record_tables(
    checks: TaskChecks, generated: Rows, train: Rows, heldout: Rows, count: int, heldout_fraction: float
) -> list[Table]:
    """The tables `boards`, `train` and `heldout` with their expectations.

    `count` and `heldout_fraction` are what was asked for (`boards.count`, `boards.heldout_fraction`).
    """
    return [
        _generated(checks, generated, train, heldout, count, heldout_fraction),
        _train(checks, train, generated),
        _heldout(checks, heldout, generated, train),
    ]


def _generated(
    checks: TaskChecks, generated: Rows, train: Rows, heldout: Rows, count: int, heldout_fraction: float
) -> Table:
    import great_expectations.expectations as gxe

    train_ids, heldout_ids = ({_id(record) for record in side} for side in (train, heldout))
    facts = [
        _joined(
            checks.record_facts(record),
            expected_id=checks.generated_id(number),
            content=_content(record),
            side=_side_name(_id(record) in train_ids, _id(record) in heldout_ids),
            is_heldout=int(_id(record) in heldout_ids),
        )
        for number, record in enumerate(generated)
    ]
    in_order = gxe.ExpectColumnPairValuesToBeEqual(column_A="id", column_B="expected_id", ignore_row_if="neither")
    ids_in_order = {} if checks.generated_id(0) is None else {"ids_in_order": in_order}
    if count < FEW:
        share = gxe.ExpectColumnMeanToBeBetween(
            column="is_heldout", min_value=0, max_value=1, strict_min=True, strict_max=True
        )
    else:
        share = gxe.ExpectColumnMeanToBeBetween(
            column="is_heldout",
            min_value=round(heldout_fraction - SHARE_TOLERANCE, 6),
            max_value=round(heldout_fraction + SHARE_TOLERANCE, 6),
        )
    return Table(
        "boards",
        frame(generated, checks.RECORD_COLUMNS, facts),
        _joined(
            checks.record_expectations(),
            form_as_documented=gxe.ExpectColumnValuesToBeInSet(column="form", value_set=[AS_DOCUMENTED]),
            ids_not_missing=gxe.ExpectColumnValuesToNotBeNull(column="id"),
            ids_unique=gxe.ExpectColumnValuesToBeUnique(column="id"),
            **ids_in_order,
            records_unique=gxe.ExpectColumnValuesToBeUnique(column="content"),
            count_as_asked=gxe.ExpectTableRowCountToEqual(value=count),
            on_one_side_of_the_split=gxe.ExpectColumnValuesToBeInSet(column="side", value_set=["train", "heldout"]),
            heldout_share_as_asked=share,
        ),
    )


def _train(checks: TaskChecks, records: Rows, generated: Rows) -> Table:
    facts = [{"boards_has": has} for has in _origins(records, generated)]
    return Table("train", frame(records, checks.RECORD_COLUMNS, facts), _side_expectations())


def _heldout(checks: TaskChecks, records: Rows, generated: Rows, train: Rows) -> Table:
    import great_expectations.expectations as gxe

    trained: dict[str | None, list[str]] = defaultdict(list)
    for record in train:
        trained[checks.split_class(record)].append(str(record.get("id")))
    trained[None] = []  # A broken record equals nothing; its form fails instead.
    facts = [
        {"boards_has": has, "equals_in_train": ", ".join(trained[checks.split_class(record)]) or None}
        for record, has in zip(records, _origins(records, generated), strict=True)
    ]
    expectations = _side_expectations()
    expectations["no_equal_in_train"] = gxe.ExpectColumnValuesToBeNull(column="equals_in_train")
    return Table("heldout", frame(records, checks.RECORD_COLUMNS, facts), expectations)


def _side_expectations() -> dict[str, Expectation]:
    import great_expectations.expectations as gxe

    return {
        "form_as_documented": gxe.ExpectColumnValuesToBeInSet(column="form", value_set=[AS_DOCUMENTED]),
        "ids_not_missing": gxe.ExpectColumnValuesToNotBeNull(column="id"),
        "ids_unique": gxe.ExpectColumnValuesToBeUnique(column="id"),
        "same_record_in_boards": gxe.ExpectColumnValuesToBeInSet(column="boards_has", value_set=["this record"]),
    }


def _origins(records: Rows, generated: Rows) -> list[str]:
    """What the table of all records has under each record's id."""
    contents = {_id(record): _content(record) for record in generated}
    return [
        "this record"
        if contents.get(_id(record)) == _content(record)
        else "another record"
        if _id(record) in contents
        else "no such id"
        for record in records
    ]


def _joined(of_task: Mapping[str, Any], **ours: Any) -> dict[str, Any]:
    """Both, or ValueError where a task uses a name of ours: neither may silently replace the other."""
    if shared := of_task.keys() & ours.keys():
        raise ValueError(f"the task's checks may not use the names {', '.join(sorted(shared))}")
    return {**ours, **of_task}


def _id(record: Mapping[str, Any]) -> str | None:
    return record["id"] if isinstance(record.get("id"), str) else None


def _content(record: Mapping[str, Any]) -> str:
    return json.dumps({key: value for key, value in record.items() if key != "id"}, sort_keys=True)


def _side_name(in_train: bool, in_heldout: bool) -> str:
    sides = [name for name, found in (("train", in_train), ("heldout", in_heldout)) if found]
    return " and ".join(sides) or "neither"
