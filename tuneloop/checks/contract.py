"""What a task brings to the data checks: a module `checks` in the task's folder with these members.

It must not reuse the code it checks. A board reader, a scorer or a symmetry that is shared with the
task would repeat the task's bug in the check and agree with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tuneloop.toolcalls.contract import Reasoning

if TYPE_CHECKING:
    from great_expectations.expectations import Expectation

Columns = Mapping[str, tuple[type, ...]]
"""The keys of every row of a table, in order, and the Python types of the values that JSON gives;
a value may be missing only where `type(None)` is among them."""


class TaskChecks(Protocol):
    RECORD_COLUMNS: Columns
    """The keys of a record; the first is `id`."""

    REWARDS: Mapping[str, float | None]
    """The reward of every outcome, written down apart from the task's own table; None for one whose rewards differ."""

    def generated_id(self, number: int) -> str | None:
        """The id that record `number` (from 0) of a generated table must have; None: any."""

    def record_facts(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Facts of one record as texts and numbers, under the same names for every record. Never
        raises: a fact that a broken record does not have is None."""

    def record_expectations(self) -> dict[str, Expectation]:
        """Named expectations over the facts. A fact that is None passes all but a not-null expectation."""

    def split_class(self, record: Mapping[str, Any]) -> str | None:
        """Equal for records that may not lie on both sides of the held-out split, and only for
        those; None for a broken record. Written apart from `Task.split_key`."""

    def oracle(self, shown: str, text: str, reasoning: Reasoning | None, dialect: str) -> tuple[str, float]:
        """Outcome and reward of the reply `text` to the record shown as `shown` (`Task.show`),
        written apart from the reply reader and `Task.score`. Never raises for any text; raises
        UserError for a dialect that it cannot read."""

    # Not every task has these. `episode_oracle(shown, turns, reasoning, dialect, reward_at)`, for a task with
    # `episodes`: outcome and reward of a whole episode from the column `turns` of its row; `EPISODE_REWARDS[reward_at]`
    # are the rewards by outcome. `oracle_of_row(shown, row, reasoning, dialect)` is asked instead of `oracle` where
    # a reward depends on more of a reply than its text: it gets the whole row of the table. `note` is a sentence about
    # the check of the rewards, shown with its result.
