"""How many examples a long law gets."""

from __future__ import annotations

from hypothesis import settings

USUAL = 100
"""What hypothesis draws where neither a profile nor a test says how many."""


def examples(count: int) -> int:
    """`count`, or the share of it that the profile which tests/conftest.py chose draws of the usual."""
    return max(2, count * settings.default.max_examples // USUAL)
