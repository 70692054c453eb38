"""Seconds of work on a device, by the host's clock: launches and the wait for the end are part of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

LEAST_RUNS, SECONDS = 5, 0.3


def wait_for(device: torch.device) -> None:
    """Return when the device has done all of its work."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """The median of runs of about a third of a second together, after two that do not count.

    The host queues each run and waits for its end.
    """
    for _ in range(2):
        work()
    wait_for(device)
    found: list[float] = []
    deadline = time.perf_counter() + SECONDS
    while len(found) < LEAST_RUNS or time.perf_counter() < deadline:
        began = time.perf_counter()
        work()
        wait_for(device)
        found.append(time.perf_counter() - began)
    return statistics.median(found)
