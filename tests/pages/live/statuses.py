"""Statuses of fleets that tests make up."""

from __future__ import annotations

from farflung.protocol.messages import Status
from farflung.protocol.viewer import JobStatus, WorkerStatus


def job(step: int = 3, loss: float | None = 2.5, id: str = "job-1") -> JobStatus:
    """A job of 10 steps on two workers."""
    return JobStatus(id, "gpt", "running", "", step, 10, loss, 8.0, ["home", "lab"])


def worker(name: str = "home", state: str = "training", age: float = 0.5, reason: str = "") -> WorkerStatus:
    """A worker that was seen some seconds ago."""
    return WorkerStatus(name, state, "a device", "site", "10.0.0.1:7000", age, "job-1", 0.0, reason=reason)


def status(jobs: list[JobStatus], workers: list[WorkerStatus], uptime: float = 1.0) -> Status:
    """What a broker says of them."""
    return Status("0.1.0", uptime, workers, jobs, [], {}, [], 100.0)
