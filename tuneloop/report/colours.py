"""Colours that stay apart for colour-blind readers, on paper and on a dark screen.

Lines and bars: four hues of Okabe & Ito, *Color Universal Design* (2008), each with a lighter
twin for dark pages. Outcomes: ColorBrewer's Oranges for replies that no measure counts, Greys and
Blues for those that one does, so that bad and good differ in hue and neighbours in lightness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

LIGHT_AND_DARK: Mapping[str, tuple[str, str]] = {
    "ink": ("#1b1f24", "#e6e9ee"),
    "muted": ("#5b6470", "#a3acb8"),
    "grid": ("#d9dee5", "#39414c"),
    "before": ("#b35309", "#f0a35e"),
    "after": ("#0068a3", "#62b6ec"),
    "third": ("#00795a", "#4cc9a4"),
    "soft": ("#8fbbdb", "#335f80"),
}
"""Colour by role, on a light and on a dark page. Figures are drawn in the light ones."""

INK, MUTED, GRID, BEFORE, AFTER, THIRD, SOFT = (light for light, _ in LIGHT_AND_DARK.values())

_BAD = ("#7f2704", "#a63603", "#d94801", "#f16913", "#fd8d3c", "#fdae6b", "#fdd0a2")
_GOOD = ("#bdbdbd", "#6baed6", "#08519c")


def outcome_colours(outcomes: Sequence[str], measures: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """A colour for every outcome (worst first, as a task lists them)."""
    counted = frozenset().union(*measures.values())
    bad = [outcome for outcome in outcomes if outcome not in counted]
    good = [outcome for outcome in outcomes if outcome in counted]
    return dict(zip(bad, _spaced(_BAD, len(bad)))) | dict(zip(good, _spaced(_GOOD, len(good))))


def text_on(colour: str) -> str:
    """Black or white, whichever has more contrast on `colour` (`#rrggbb`; WCAG 2.2 relative luminance)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > 0.179 else "#ffffff"


def _spaced(ramp: Sequence[str], count: int) -> list[str]:
    """`count` colours of a ramp from end to end; the last alone, if it is one; repeated if too few."""
    if count <= 1:
        return [ramp[-1]] * count
    return [ramp[round(i * (len(ramp) - 1) / (count - 1))] for i in range(count)]
