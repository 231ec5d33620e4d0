"""Cutting a policy's reasoning out of its reply."""

from __future__ import annotations

import re

from tuneloop.toolcalls.contract import Reasoning

CUT = "\udfff"
"""Stands where reasoning was cut out of the middle of a reply. A lone surrogate is no valid text,
so no call that spans the cut can be read as a whole one."""


def without_reasoning(text: str, reasoning: Reasoning | None) -> str | None:
    """What the reply says outside its reasoning, or None if a reasoning never closes.

    Every stretch from an opening marker to the next closing one is cut, wherever it stands; an
    opening marker inside reasoning means nothing. A closing marker outside reasoning ends one that
    began unmarked at the start of the reply: all before it is cut, as servers do that split a
    reply there. So text that may have been reasoning never counts as the answer.
    """
    if reasoning is None:
        return text
    # The longer marker first, in case one begins with the other.
    markers = sorted({reasoning.open, reasoning.close}, key=len, reverse=True)
    kept: list[str] = []
    start, inside = 0, reasoning.opened_by_prompt
    for match in re.finditer("|".join(map(re.escape, markers)), text):
        if match[0] == reasoning.open and not inside:
            kept.append(text[start : match.start()])
            inside = True
        elif match[0] == reasoning.close:
            if not inside:
                kept.clear()
            start, inside = match.end(), False
    if inside:
        return None
    kept.append(text[start:])
    return CUT.join(piece for piece in kept if piece.strip())
