"""Statuses of fleets that tests make up."""

from __future__ import annotations

from collections.abc import Callable

from farflung.broker.acting import Action, ActionRefused
from farflung.broker.job_log import LogLine
from farflung.broker.planning.what_if_messages import FleetWorker, Foreseen, SimulatedStep, WhatIf
from farflung.broker.timelines import NoTimeline
from farflung.broker.view import FleetView
from farflung.protocol.messages import Status
from farflung.protocol.timeline import RowSpan, StepTimeline
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


SPANS = [RowSpan("home", "forward", 0, 0.0, 0.5), RowSpan("home -> lab", "activation", 0, 0.5, 0.75)]


def view(says: Callable[[], Status]) -> FleetView:
    """What a broker lets a page see whose status is this: job-1 has a step, a log and a plan."""

    async def step(job: str) -> StepTimeline:
        if job != "job-1":
            raise NoTimeline(f"there is no job {job}: `farflung status` lists them")
        return StepTimeline(job, 4, 1.0, SPANS, {"home": {"computing": 0.5, "waiting for lab": 0.5}})

    async def what_if(asked: WhatIf) -> Foreseen:
        seconds = 2.0 if asked.microbatches else 1.0
        made = SimulatedStep(seconds, "the device of home, busy 50%", [], [], 2, SPANS)
        return Foreseen([FleetWorker("home", "site", True, 1.0, 8.0, None)], made, made)

    async def act(token: str, action: Action) -> str:
        if token != "right":
            raise ActionRefused("this token is not known here")
        return f"{type(action).__name__} is done"

    return FleetView(says, step, what_if, lambda job: [LogLine(1.0, f"{job} began")], act)
