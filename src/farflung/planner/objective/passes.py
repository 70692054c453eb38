"""Of a segment's work, how much a microbatch waits for on its way there and back.

Gradients of what was received are computed first and sent at once, if the simulator (as the runtime) splits
backward passes; those of parameters then hold nobody up.
"""

from __future__ import annotations

from farflung.simulator import Conditions
from farflung.workload import BACKWARD_FACTOR

_WHOLE = 1 + BACKWARD_FACTOR
_WEIGHTS = BACKWARD_FACTOR - 1  # gradients of parameters: about as much as a forward pass

FORWARD = 1 / _WHOLE
"""The part of a segment's work that is its forward pass."""


def on_the_way(split_backward: bool = Conditions().split_backward) -> float:
    """The part of a segment's work that is on a microbatch's round trip: until gradients leave."""
    return (_WHOLE - _WEIGHTS) / _WHOLE if split_backward else 1.0
