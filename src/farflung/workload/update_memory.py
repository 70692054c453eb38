"""What an optimizer keeps of each trained parameter and needs to update it, without knowing any optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from farflung.workload.footprint import UPDATED_AT_ONCE


class UpdateMemory(NamedTuple):
    """Bytes that are kept beside a parameter and its gradient, and that its update needs meanwhile."""

    kept: int
    working: int


UpdateMemoryOf = Callable[[str, Sequence[int], int], UpdateMemory]
"""Of a parameter's name, shape and bytes of an element."""


def two_moments(name: str, shape: Sequence[int], itemsize: int) -> UpdateMemory:
    """Two numbers for each trained one, as AdamW keeps, updated in pieces."""
    size = itemsize * prod(shape)
    return UpdateMemory(2 * size, 2 * min(size, UPDATED_AT_ONCE))
