"""How the report shows the desk: its words, and a ticket above the call that it got."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from tuneloop.tasks.contract import Record
from tuneloop.tasks.desk.rules import due
from tuneloop.tasks.desk.tickets import read

WORDS = {
    "record": "ticket",
    "records": "tickets",
    "cluster": "wording",
    "clusters": "wordings",
    "stratum": "rule that decides",
}


def picture(record: Record, row: Mapping[str, Any]) -> str:
    """Policy, ticket, the call that the reply `row` made, in the colours of its outcome (the CSS properties `--outcome`
    and `--on-outcome` of the element around it), and the call that is due where it is another."""
    facts = read(record["policy"], record["ticket"])
    lines = [f"<i>{escape(record['policy'])}</i>", escape(record["ticket"]), _made(row)]
    if facts is not None and row["outcome"] != "right":
        call = due(facts)
        lines.append(f"due: <code>{escape(call_line(call.name, call.arguments))}</code>")
    style = "margin:.3rem 0;font-size:.85rem;line-height:1.35;text-align:left;overflow-wrap:anywhere"
    return "".join(f'<p style="{style}">{line}</p>' for line in lines)


def call_line(name: str, arguments: Mapping[str, Any]) -> str:
    """A call on one line: `issue_refund 482, 45, damaged`."""
    return f"{name} {', '.join(map(str, arguments.values()))}"


def _made(row: Mapping[str, Any]) -> str:
    try:
        call = json.loads(row["call"])
        text = call_line(call["name"], call["arguments"])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        text = "no valid call"
    style = "background:var(--outcome,#888);color:var(--on-outcome,#000);padding:.1rem .3rem"
    return f'<code style="{style}">{escape(text)}</code>'
