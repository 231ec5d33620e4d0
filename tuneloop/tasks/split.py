"""The held-out split: by the task's split key, before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tuneloop.errors import UserError
from tuneloop.tasks.contract import Record, Task


def split(task: Task, records: Sequence[Record], fraction: float, seed: int) -> tuple[list[Record], list[Record]]:
    """(train, held-out), each in the order of `records`. All records with one split key land on the
    same side; keys are drawn at random until at least `fraction` of the records is held out.

    Raises UserError where no key would be left for one of the sides.
    """
    sizes: dict[str, int] = {}
    for record in records:
        key = task.split_key(record)
        sizes[key] = sizes.get(key, 0) + 1
    keys = sorted(sizes)
    Random(seed).shuffle(keys)
    held: set[str] = set()
    taken = 0
    for key in keys:
        if taken >= fraction * len(records):
            break
        held.add(key)
        taken += sizes[key]
    if len(held) == len(keys):
        raise UserError(
            f"boards.count, boards.heldout_fraction: {len(records)} records of {len(keys)} kinds leave none for "
            f"training when {fraction:.0%} are held out; ask for more records"
        )
    sides: tuple[list[Record], list[Record]] = ([], [])
    for record in records:
        sides[task.split_key(record) in held].append(record)
    return sides
