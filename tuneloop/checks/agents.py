"""The reward tables of episodes that an agent led (`rollout.agent`): what can be held against the oracle, and what not.

A row's text is that of the last reply, and the oracle judges it as it judges any reply; a failed episode stands there
as an empty one. What the agent itself said that an episode earned no oracle can compute again: such rows are checked
for form alone, and the verdict's note says how many there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tuneloop.agents.faults import FAULTS
from tuneloop.checks.replies import Rows
from tuneloop.checks.verdict import Table

COLUMNS: Mapping[str, tuple[type, ...]] = {"turns": (list,), "rewarded_by": (str,), "fault": (str, type(None))}
"""What a row has besides the columns of a single reply."""

AN_AGENTS_OWN_BUSINESS = ("one_prompt", "same_prompts", "cut_only_at_the_limit")
"""Expectations that do not hold where an agent writes the prompts and may ask for shorter replies."""


def of_agents(tables: Sequence[Table]) -> list[Table]:
    """The tables with the expectations that make sense for episodes of agents."""
    import great_expectations.expectations as gxe

    found = []
    for table in tables:
        kept = {name: e for name, e in table.expectations.items() if name not in AN_AGENTS_OWN_BUSINESS}
        if "rewarded_by" in table.frame:
            kept["rewarded_by_known"] = gxe.ExpectColumnValuesToBeInSet(
                column="rewarded_by", value_set=["task", "agent"]
            )
            kept["fault_known"] = gxe.ExpectColumnValuesToBeInSet(column="fault", value_set=list(FAULTS))
        found.append(replace(table, expectations=kept))
    return found


def note_of(tables: Mapping[str, Rows]) -> str:
    """In one sentence, what was not held against the oracle, and what failed."""
    parts = []
    for name, rows in tables.items():
        own = sum(row.get("rewarded_by") == "agent" for row in rows)
        failed = sum(row.get("fault") is not None for row in rows)
        parts.append(f"{name}: {own} of {len(rows)} rewarded by the agent itself, {failed} failed")
    return f"rewards that the agent itself gave are checked for form only ({'; '.join(parts)})"
