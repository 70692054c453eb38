"""A topology as arrays, for planning algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farflung.plans import Topology
from farflung.simulator import PAYLOAD_SHARE

Floats = NDArray[np.float64]

BYTES_PER_MEGABIT = 1e6 / 8 * PAYLOAD_SHARE
"""Payload bytes for each Mbit of a topology's rates, which include headers."""


@dataclass(frozen=True)
class Devices:
    """Workers in some order, and the links between them; row = from.

    Parameters
    ----------
    ids
        The workers' ids.
    speeds : float64 [n]
        Operations a second.
    memory_bytes : float64 [n]
        The memory limit of each worker.
    bandwidth : float64 [n, n]
        Payload bytes a second of each link, at most those of the access lines at its ends; 0 if there is no
        link, infinite on the diagonal.
    latency : float64 [n, n]
        Seconds, one way; 0 on the diagonal.
    up, down : float64 [n]
        Payload bytes a second of a worker's access line; infinite if its links share none.
    """

    ids: tuple[str, ...]
    speeds: Floats
    memory_bytes: Floats
    bandwidth: Floats
    latency: Floats
    up: Floats
    down: Floats

    def __len__(self) -> int:
        return len(self.ids)

    @staticmethod
    def of(topology: Topology, efficiency: float = 1.0) -> Devices:
        """The workers of `topology` in order, each sustaining the fraction `efficiency` of its TFLOP/s."""
        workers = topology.workers
        up = np.array([np.inf if w.up_mbps is None else w.up_mbps for w in workers]) * BYTES_PER_MEGABIT
        down = np.array([np.inf if w.down_mbps is None else w.down_mbps for w in workers]) * BYTES_PER_MEGABIT
        bandwidth = np.array(topology.bandwidth_mbps, dtype=np.float64) * BYTES_PER_MEGABIT
        bandwidth = np.minimum(bandwidth, np.minimum(up[:, None], down[None, :]))
        latency = np.array(topology.latency_ms, dtype=np.float64) / 1e3
        np.fill_diagonal(bandwidth, np.inf)
        np.fill_diagonal(latency, 0.0)
        return Devices(
            ids=tuple(topology.ids),
            speeds=np.array([w.tflops for w in workers]) * 1e12 * efficiency,
            memory_bytes=np.array([w.memory_gb for w in workers]) * 1e9,
            bandwidth=bandwidth,
            latency=latency,
            up=up,
            down=down,
        )

    def take(self, order: Sequence[int] | NDArray[np.int64]) -> Devices:
        """The workers numbered `order`, in that order."""
        index = np.asarray(order, dtype=np.int64)
        square = np.ix_(index, index)
        return Devices(
            ids=tuple(self.ids[number] for number in index.tolist()),
            speeds=self.speeds[index],
            memory_bytes=self.memory_bytes[index],
            bandwidth=self.bandwidth[square],
            latency=self.latency[square],
            up=self.up[index],
            down=self.down[index],
        )
