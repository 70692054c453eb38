"""Times as options say them (30s, 10m, 2h, 1d), and how long a run waits: `--patience`."""

from __future__ import annotations

import re

from farflung.errors import JobError
from farflung.protocol.submitter import PATIENCE_SECONDS

MOST_SECONDS = 365 * 24 * 3600.0

_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_duration(given: str) -> float | None:
    """Seconds of a time such as 30s, 10m, 2h or 1d, from 1 s to a year; None if it is no such time."""
    found = _TIME.fullmatch(given)
    if found is None:
        return None
    seconds = float(found[1]) * _SECONDS[found[2]]
    return seconds if 1 <= seconds <= MOST_SECONDS else None


def parse_patience(given: str | None) -> int:
    """Seconds of `--patience`; raises JobError if it is no time."""
    if given is None:
        return PATIENCE_SECONDS
    seconds = parse_duration(given)
    if seconds is None:
        raise JobError(
            f"--patience takes a time from 1s to 365d such as 30m, 12h or 1d, found {given[:40]!r}"
        )
    return round(seconds)
