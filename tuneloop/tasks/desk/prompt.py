"""What the policy is shown: the tools, the rules, and a ticket under its policy."""

from __future__ import annotations

from typing import Any

from tuneloop.tasks.contract import Message

REASONS: dict[str, tuple[str, ...]] = {
    "issue_refund": ("damaged", "wrong_item", "missing"),
    "ask_for_receipt": (),
    "escalate": ("safety", "over_limit"),
    "close_ticket": ("solved", "too_late"),
}
"""By tool: its reason codes; none: it takes no reason."""


def _tool(name: str) -> dict[str, Any]:
    properties: dict[str, Any] = {"order": {"type": "integer", "minimum": 100, "maximum": 999}}
    if name == "issue_refund":
        properties["amount"] = {"type": "integer", "minimum": 1}
    if REASONS[name]:
        properties["reason"] = {"type": "string", "enum": list(REASONS[name])}
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [_tool(name) for name in REASONS]

SYSTEM = (
    "You answer each ticket with exactly one call. The first rule that fits decides: "
    "all well, close as solved; somebody hurt, escalate for safety; past the weeks, close as too_late; "
    "no receipt, ask for it; over the limit, escalate as over_limit; else refund what was paid, with the reason."
)


def messages(policy: str, ticket: str) -> list[Message]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"{policy}\n{ticket}"}]
