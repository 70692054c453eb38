"""What this process's device sustains, measured."""

from __future__ import annotations

import statistics
import time

import torch

SIZE = 1024
SECONDS = 0.25


@torch.no_grad()
def measure_tflops() -> float:
    """TFLOP/s of float32 matrix products with all of this process's threads, in about a quarter second.

    The median of many products, so that one which was interrupted does not count. A device for which one
    product takes longer than that does two.
    """
    left, right, out = (torch.ones(SIZE, SIZE) for _ in range(3))
    torch.mm(left, right, out=out)  # the first one makes threads and buffers
    took: list[float] = []
    deadline = time.perf_counter() + SECONDS
    while not took or time.perf_counter() < deadline:
        started = time.perf_counter()
        torch.mm(left, right, out=out)
        took.append(time.perf_counter() - started)
    return 2 * SIZE**3 / statistics.median(took) / 1e12
