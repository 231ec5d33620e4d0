"""Finding the one call between markers such as `<tool_call>` and `</tool_call>`."""

from __future__ import annotations

from tuneloop.toolcalls.contract import Fault


def between(text: str, opening: str, closing: str) -> str | Fault:
    """What stands between the only pair of markers in `text`.

    The markers are reserved: each opening one counts as a call, in prose, in a call's own text or
    left open, and a closing one without partner is a broken call.
    """
    openings = text.count(opening)
    if openings == 0:
        return Fault("no_call", f"no {opening}")
    if openings > 1:
        return Fault("several_calls", f"{openings} times {opening}")
    before, _, after = text.partition(opening)
    body, closed, rest = after.partition(closing)
    if not closed:
        return Fault("no_call", f"{opening} without {closing}")
    if closing in before or closing in rest:
        return Fault("bad_arguments", f"{closing} without {opening}")
    return body
