"""What a lowering may take on the way: nothing out of proportion to what it reads."""

from __future__ import annotations

import math

import jax

MOST_TIMES = 64
ALWAYS_ELEMENTS = 2**20


def require_room(elements: int, *beside: jax.Array) -> None:
    """Refuse an intermediate array of so many elements where what stands `beside` it is small.

    Raises
    ------
    ValueError
        It has more than `ALWAYS_ELEMENTS`, and more than `MOST_TIMES` as many as the others together.
    """
    most = max(ALWAYS_ELEMENTS, MOST_TIMES * sum(math.prod(array.shape) for array in beside))
    if elements > most:
        raise ValueError(f"it would take {elements} elements on the way, at most {most} are given")
