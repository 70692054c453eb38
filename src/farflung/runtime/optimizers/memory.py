"""The memory that a job's optimizer takes, for both planner and worker."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from farflung.runtime.optimizers.declared import Adafactor, Muon, Optimizer, recipe_of
from farflung.runtime.optimizers.slots import slot_bytes
from farflung.workload.footprint import UPDATED_AT_ONCE
from farflung.workload.update_memory import UpdateMemory, UpdateMemoryOf


def memory_of_updates(optimizer: Optimizer, copies: int = 0) -> UpdateMemoryOf:
    """What workers keep beside each trained parameter and its gradient, and what its update makes meanwhile.

    With `copies` whole copies of parameter and slots. Copies of buffers are not counted: a buffer that
    training changes is small beside the parameters.
    """

    def of(name: str, shape: Sequence[int], itemsize: int) -> UpdateMemory:
        size = itemsize * prod(shape)
        kept = sum(slot_bytes(optimizer, name, shape, size).values())
        return UpdateMemory(kept + copies * (size + kept), _working(optimizer, name, shape, itemsize))

    return of


def _working(optimizer: Optimizer, name: str, shape: Sequence[int], itemsize: int) -> int:
    """AdamW, SGD and Lion work piece by piece.

    Adafactor makes an estimate as large as the parameter (of a vector also its squares); Muon a copy of its
    momentum, two in bfloat16, and two products of the shorter side with itself.
    """
    size = itemsize * prod(shape)
    rule = recipe_of(optimizer, name, shape).declared
    if isinstance(rule, Muon):
        return size + 4 * prod(shape) + 4 * min(shape) ** 2
    if isinstance(rule, Adafactor):
        return size if len(shape) > 1 else 2 * size
    return 2 * min(size, UPDATED_AT_ONCE)
