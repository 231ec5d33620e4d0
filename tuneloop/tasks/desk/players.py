"""Players that need no model: reference lines for the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product

from tuneloop.tasks.desk.prompt import REASONS
from tuneloop.tasks.desk.reward import call_outcome
from tuneloop.tasks.desk.rules import due
from tuneloop.tasks.desk.tickets import Facts
from tuneloop.tasks.reference import expected
from tuneloop.toolcalls.contract import ToolCall

Choices = Callable[[Facts], list[ToolCall]]
"""The calls among which a player chooses with equal chances."""


def calls_of(tool: str, facts: Facts) -> list[ToolCall]:
    """Every valid call of `tool` about the ticket's order, with an amount that ticket or policy names."""
    amounts = [{"amount": facts.paid}, {"amount": facts.limit}] if tool == "issue_refund" else [{}]
    reasons = [{"reason": reason} for reason in REASONS[tool]] or [{}]
    return [ToolCall(tool, {"order": facts.order} | a | r) for a, r in product(amounts, reasons)]


def any_tool(facts: Facts) -> list[ToolCall]:
    """A tool with equal chances, then its arguments."""
    choices = [calls_of(tool, facts) for tool in REASONS]
    most = math.lcm(*map(len, choices))
    return [call for calls in choices for call in calls * (most // len(calls))]


def by_keywords(facts: Facts) -> list[ToolCall]:
    """Reads the words of the ticket but none of its numbers: closes, escalates or asks where a word says so, and
    refunds the rest."""
    order = {"order": facts.order}
    if facts.problem == "solved":
        return [ToolCall("close_ticket", order | {"reason": "solved"})]
    if facts.problem == "hurt":
        return [ToolCall("escalate", order | {"reason": "safety"})]
    if not facts.receipt:
        return [ToolCall("ask_for_receipt", order)]
    return [ToolCall("issue_refund", order | {"amount": facts.paid, "reason": facts.problem})]


def reference_players(tickets: Sequence[Facts], measures: Mapping[str, frozenset[str]]) -> dict[str, dict[str, float]]:
    """Exact expected reward and measure shares of every reference player, averaged over `tickets`. The commonest
    call is that of the tool that these tickets are due most often."""
    wanted = [due(facts).name for facts in tickets]
    commonest = max(REASONS, key=wanted.count)
    players: dict[str, Choices] = {
        "any tool": any_tool,
        f"always {commonest}": lambda facts: calls_of(commonest, facts),
        "words, not numbers": by_keywords,
        "best possible": lambda facts: [due(facts)],
    }
    return {
        player: expected([[call_outcome(facts, call) for call in choices(facts)] for facts in tickets], measures)
        for player, choices in players.items()
    }
