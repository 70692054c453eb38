"""What the doctor finds."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """One check: `found` in words, `details` a line each and, where it is not `ok`, what `helps`."""

    check: str
    ok: bool
    found: str
    helps: str = ""
    details: list[str] = []
