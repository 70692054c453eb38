"""The norm of all gradients of a step, and the scale that clips it: equal bit for bit at any cut.

Each parameter's sum of squares comes from the segment that owns it. Floating-point sums depend on order, so
they are added by the parameters' value ids, which all segments have from the one graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

NORM_OFFSET = 1e-6  # as in torch.nn.utils.clip_grad_norm_


def gradient_norm(squares: Iterable[Mapping[int, float]]) -> float:
    """The norm, from each segment's sums of squares by the parameters' value ids."""
    together = {value: square for each in squares for value, square in each.items()}
    return math.sqrt(added_in_order(together[value] for value in sorted(together)))


def clip_scale(clip: float | None, norm: float) -> float:
    """The factor of all gradients that bounds their norm to `clip`; 1.0 without a bound."""
    return 1.0 if clip is None else min(1.0, clip / (norm + NORM_OFFSET))


def added_in_order(numbers: Iterable[float]) -> float:
    """The sum, added one by one."""
    # Not `sum`: it compensates from Python 3.12 on, so the same run would differ between Pythons.
    total = 0.0
    for number in numbers:
        total += number
    return total
