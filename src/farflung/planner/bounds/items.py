"""What a row of operators needs of the workers that hold it: work, and memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farflung.planner.bounds.gates import Block
from farflung.workload import Workload

Floats = NDArray[np.float64]

ALMOST = 1 - 1e-9
PRICES = np.geomspace(1 / 8, 8, 13)


@dataclass(frozen=True)
class Items:
    """Operators of a row of blocks: work, and bytes taken once and for each microbatch in flight."""

    work: Floats
    fixed: Floats
    tape: Floats

    @staticmethod
    def of(workload: Workload, blocks: tuple[Block, ...], recompute: bool) -> Items:
        row = slice(blocks[0].start + 1, blocks[-1].stop + 1)
        fixed = workload.fixed_bytes
        tape = np.zeros_like(fixed) if recompute else workload.tape_bytes
        return Items(np.diff(workload.work)[row], fixed[row], tape[row])

    def fit(self, room: Floats, memory: Floats, window: float) -> bool:
        """Whether workers with `room` for work and with `memory` could take all of it, were it divisible.

        For any price of a byte: what an operator costs at least, by its work or by its bytes, must be had for
        what the workers can pay at most. (The dual of the assignment; prices that are not tried only loosen.)
        """
        need = self.fixed + window * self.tape
        prices = self.work.sum() / max(float(need.sum()), 1e-9) * PRICES
        cost = np.minimum(self.work[None, :], prices[:, None] * need[None, :]).sum(axis=1)
        paid = np.minimum(room[None, :], prices[:, None] * memory[None, :]).sum(axis=1)
        return bool(room.sum() >= self.work.sum() * ALMOST and np.all(paid >= cost * ALMOST))
