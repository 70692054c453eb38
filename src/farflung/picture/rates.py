"""Bandwidths as colours and widths that can be told apart, also by those who see no red or green."""

from __future__ import annotations

import bisect
from typing import NamedTuple


class Class(NamedTuple):
    """Rates below `below_mbps`, and not of an earlier class."""

    below_mbps: float
    words: str
    colour: str
    width: float


CLASSES = (
    Class(5, "below 5", "#a3123a", 1.6),
    Class(20, "5 to 20", "#e8702a", 2.4),
    Class(100, "20 to 100", "#d1a800", 3.4),
    Class(500, "100 to 500", "#3f9e63", 4.6),
    Class(float("inf"), "500 and more", "#1565a8", 6.0),
)
NO_WAY = Class(0, "no way", "#9a9a9a", 1.2)


def class_of(mbps: float) -> Class:
    """The class of a rate in Mbit/s; 0 is no way at all."""
    if mbps <= 0:
        return NO_WAY
    return CLASSES[bisect.bisect_right([one.below_mbps for one in CLASSES], mbps)]


def rate_words(mbps: float) -> str:
    """A rate as one says it: 7.9, 52, 1200."""
    return f"{mbps:.1f}".removesuffix(".0") if mbps < 10 else f"{mbps:.0f}"


def latency_words(ms: float) -> str:
    """A latency as one says it: 0.2 ms, 50 ms."""
    return f"{ms:.1f} ms".replace(".0 ", " ") if ms < 10 else f"{ms:.0f} ms"
