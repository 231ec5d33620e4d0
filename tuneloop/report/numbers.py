"""How the report writes its numbers: one form for each kind of quantity."""

from __future__ import annotations

import re

from tuneloop.evaluation.statistics import Interval


def signed(value: float) -> str:
    """Rewards and differences: `+0.621`; a value that rounds to zero has no minus sign."""
    return f"{value + 0.0 if abs(value) >= 0.0005 else 0.0:+.3f}"


def quantity(name: str, value: float) -> str:
    """Rewards with a sign, shares without."""
    return signed(value) if name == "reward" else f"{value:.3f}"


def single_reward(value: float) -> str:
    """The reward of one reply, as short as it is: `+0.8`, `−1`, `0`."""
    return typeset(f"{value:+g}") if value else "0"


def with_interval(name: str, interval: Interval, difference: bool = False) -> str:
    """`+0.621 [+0.570, +0.660]`; differences always carry a sign."""
    kind = "reward" if difference else name
    value, low, high = (quantity(kind, x) for x in (interval.value, interval.low, interval.high))
    return f"{value} [{low}, {high}]"


def p_value(p: float) -> str:
    """Two digits, and no more precision below 0.0001 than anyone uses."""
    return "< 0.0001" if p < 0.0001 else f"{p:.2g}"


def percent(share: float) -> str:
    """`12.3 %`; never `0.0 %` or `100.0 %` for a share that is not exactly that."""
    if 0 < share < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    return f"{100 * share:.1f} %"


def tokens(length: float | None) -> str:
    """A mean length; `none` where there is no reply to average."""
    return "none" if length is None else f"{length:.1f}"


def duration(seconds: float) -> str:
    """`42.1 s`, `12 min 5 s`, `3 h 4 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def typeset(text: str) -> str:
    """Hyphens before digits become minus signs, for text shown in a proportional font."""
    return re.sub(r"(?<![\w-])-(?=\d)", "−", text)
