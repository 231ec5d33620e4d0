"""The data checks of a task made with `tuneloop.tasks.plain`, which nobody had to write.

They cannot be what checks should be, written apart from what they check: only the author of a task knows its
rewards. So the "oracle" here reads every reply and asks the task's own reward function a second time. That finds
rewards that are not repeatable and tables that were changed, and no error of the reward function; `NOTE` says so
wherever the result is shown. A module `checks` in the task's folder with an `oracle` of its own takes its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tuneloop.checks.contract import Columns
from tuneloop.errors import UserError
from tuneloop.tasks.contract import Outcome, Record
from tuneloop.tasks.plain import PlainTask
from tuneloop.tasks.plain_parts import FAULTS
from tuneloop.tasks.plain_records import NOT_INPUT, answer_of
from tuneloop.tasks.plain_reward import LOWEST
from tuneloop.toolcalls import load_dialect, read_reply
from tuneloop.toolcalls.contract import Reasoning, ToolCall

if TYPE_CHECKING:
    from great_expectations.expectations import Expectation

NOTE = (
    "The rewards were computed a second time by the task's own reward function: that shows that they repeat, not that "
    "they are right. An oracle written apart from it (docs/your-task.md) would be an independent check."
)


class PlainChecks:
    """See `tuneloop.checks.contract.TaskChecks` for what each member means."""

    def __init__(self, task: PlainTask, module: ModuleType | None = None):
        """Members of `module` (the task's own `checks`) come first."""
        self.task = task
        self.note = NOTE
        self.RECORD_COLUMNS: Columns = _columns(task)
        # A number within a range has no one value of its own; what it must be, the oracle says.
        self.REWARDS: Mapping[str, float | None] = dict.fromkeys(FAULTS, LOWEST) | dict.fromkeys(task.scores)
        own = {name: member for name, member in vars(module).items() if name in _MEMBERS} if module else {}
        vars(self).update(own)
        if "oracle" in own:
            self.note, self.oracle_of_row = own.get("note"), None

    def generated_id(self, number: int) -> str | None:
        return None  # records of a file have the ids that they have

    def record_facts(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """`invalid`: what `Task.validate` says against the record. `same_input`: its input, but for case and spaces.
        `messages_problem`; `reward_problem`: what is wrong with rewarding its answer and made-up calls; `beaten_by`: a
        made-up call that earns more than the answer does."""
        facts: dict[str, Any] = dict.fromkeys(("invalid", "messages_problem", "reward_problem", "beaten_by"))
        facts["same_input"] = _plain_text(_input(record))
        try:
            valid = self.task.validate(dict(record), "boards")
        except UserError as error:
            return facts | {"invalid": str(error)}
        try:
            self.task.messages(valid)
        except UserError as error:
            facts["messages_problem"] = str(error)
        try:
            facts["beaten_by"] = self._beaten_by(valid)
        except UserError as error:
            facts["reward_problem"] = str(error)
        return facts

    def _beaten_by(self, record: Record) -> str | None:
        tried: list[tuple[ToolCall, Outcome]] = [
            (call, self.task.score(record, call)) for call in self.task.made_up([record], seed=1)[record["id"]]
        ]
        answer = answer_of(record, self.task.tools)
        if answer is None:
            return None
        earned = self.task.score(record, answer).reward
        return next(
            (f"{call.arguments} earns {o.reward:g}, the answer {earned:g}" for call, o in tried if o.reward > earned),
            None,
        )

    def record_expectations(self) -> dict[str, Expectation]:
        import great_expectations.expectations as gxe

        return {
            "valid": gxe.ExpectColumnValuesToBeNull(column="invalid"),
            "inputs_unique": gxe.ExpectColumnValuesToBeUnique(column="same_input"),
            "messages_can_be_written": gxe.ExpectColumnValuesToBeNull(column="messages_problem"),
            "reward_gives_numbers": gxe.ExpectColumnValuesToBeNull(column="reward_problem"),
            "nothing_earns_more_than_the_answer": gxe.ExpectColumnValuesToBeNull(column="beaten_by"),
        }

    def split_class(self, record: Mapping[str, Any]) -> str | None:
        """The group; of a record without one, its input, so that no text is on both sides under two ids."""
        group = record.get("group")
        return f"group {group}" if isinstance(group, str) else _plain_text(_input(record))

    def oracle(self, shown: str, text: str, reasoning: Reasoning | None, dialect: str) -> tuple[str, float | None]:
        return self.oracle_of_row(shown, {"text": text}, reasoning, dialect)

    def oracle_of_row(
        self, shown: str, row: Mapping[str, Any], reasoning: Reasoning | None, dialect: str
    ) -> tuple[str, float | None]:
        reading = read_reply(row["text"], load_dialect(dialect), self.task.tools, reasoning)
        cut = "length" if row.get("finish_reason") == "length" else "stop"
        try:
            outcome = self.task.score_reply(self.task.parse(shown), reading, row["text"], cut)
        except UserError as error:
            return f"error: {error}", None
        return outcome.name, outcome.reward


_MEMBERS = frozenset(
    {
        "RECORD_COLUMNS",
        "REWARDS",
        "generated_id",
        "record_facts",
        "record_expectations",
        "split_class",
        "oracle",
        "note",
    }
)


def _input(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in NOT_INPUT}


def _plain_text(value: Any) -> str:
    return " ".join(str(value).casefold().split())


def _columns(task: PlainTask) -> Columns:
    """The fields of the file, each with the types that occur in it."""
    found: dict[str, tuple[type, ...]] = {}
    for name in task.fields:
        types = {type(record[name]) for record in task.records.values()}
        # No type but null: the column says nothing, and `frame` wants one.
        found[name] = tuple(sorted(types, key=lambda kind: (kind is type(None), kind.__name__)))
    return found
