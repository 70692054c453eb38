"""The base of facts that are stored."""

from __future__ import annotations

import msgspec


class Decision(msgspec.Struct, frozen=True, tag=True):
    """A fact that is stored. `at` is in seconds since 1970, by the broker's clock."""

    at: float
