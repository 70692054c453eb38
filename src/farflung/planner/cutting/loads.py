"""How busy each microbatch keeps what a cut chain uses, and how long one takes that is alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farflung.planner.cutting.positions import RECOMPUTED, Positions
from farflung.planner.devices import Devices

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Chained:
    """Segments in order: each on one of `devices`, between two positions (their indices)."""

    positions: Positions
    devices: Devices
    chain: NDArray[np.int64]
    marks: NDArray[np.int64]
    recompute: NDArray[np.bool_]

    @staticmethod
    def of(
        positions: Positions,
        devices: Devices,
        chain: Sequence[int],
        marks: Sequence[int],
        recompute: Sequence[bool],
    ) -> Chained:
        """Segment n runs on device `chain[n]`, from position `marks[n]` to `marks[n + 1]`."""
        return Chained(positions, devices, np.array(chain), np.array(marks), np.array(recompute, dtype=bool))

    @property
    def compute(self) -> Floats:
        """Seconds of each segment's forward and backward pass."""
        work = np.diff(self.positions.work[self.marks])
        return np.asarray(np.where(self.recompute, work * RECOMPUTED, work) / self.devices.speeds[self.chain])

    @property
    def busiest_seconds(self) -> float:
        """What the busiest device, link direction or shared line is busy with each microbatch."""
        devices, count = self.devices, len(self.devices)
        seconds = [np.bincount(self.chain, self.compute).max()]
        if len(self.chain) > 1:
            source, target, size = self._transfers()
            pairs, which = np.unique(source * count + target, return_inverse=True)
            seconds.append((np.bincount(which, size) / devices.bandwidth.flat[pairs]).max())
            seconds.append((np.bincount(source, size, count) / devices.up).max())
            seconds.append((np.bincount(target, size, count) / devices.down).max())
        return float(max(seconds))

    @property
    def fill_seconds(self) -> float:
        """What one microbatch takes there and back."""
        source, target, size = self._transfers()
        links = size / self.devices.bandwidth[source, target] + self.devices.latency[source, target]
        return float(self.compute.sum() + links.sum())

    def _transfers(self) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
        """Who sends what to whom each microbatch: values forward, then gradients back."""
        before, after, cuts = self.chain[:-1], self.chain[1:], self.marks[1:-1]
        sizes = [self.positions.forward[cuts], self.positions.backward[cuts]]
        return np.concatenate([before, after]), np.concatenate([after, before]), np.concatenate(sizes)
