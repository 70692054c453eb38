"""Messages that every role may exchange with the broker: status and certificate renewal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Annotated

import msgspec
from msgspec import Meta

from farflung.plans import LinkCodec
from farflung.plans.rates import Rates
from farflung.protocol.fields import Message, Text
from farflung.protocol.reachability import LinkReport
from farflung.protocol.traffic import LinkTraffic
from farflung.protocol.veil import veil
from farflung.text import and_more, count_of

JOINING, READY, STANDBY, TRAINING = "joining", "ready", "standby", "training"
DRAINING, SUSPECT, LEFT = "draining", "suspect", "left"
STATES = (TRAINING, STANDBY, READY, JOINING, DRAINING, SUSPECT, LEFT)
"""States of a worker, in the order in which workers are counted."""

OVER = ("done", "failed", "cancelled")
"""States of a job that has ended."""

NAMED = 3
"""How many workers the state of a job names."""


class Ask(Message, frozen=True):
    """Ask for the broker's status. Answered by `Status`; any role may ask."""


class WorkerStatus(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """One worker as `farflung status` shows it.

    Its `state` is joining while its links are measured, then ready, standby if it holds copies of a job's
    state, training if it has a share of a job, draining if it is to leave, suspect if three heartbeats are
    missing or it is expected back, or left. `reason` says more, such as what one that drains waits for, or
    why one has left, `gone_seconds` ago; it `is_lost` if it left unasked, and left not `in_order` if it had a
    share or a copy that others needed. It is `connected` if it has a session.

    `framework` is the framework that it computes with, and its version; `opset` is the newest opset version
    that it knows, `lacks` the ops and element types that its backend refuses, `kernels` the digest of what
    its kernels compute (`Device.kernels`). `tflops` and `rates` are as in `Device`, measured
    `measured_seconds` ago, when the newest of the best was found; -1: not known when. Jobs may use
    `memory_bytes` of it. It has been connected for `there_seconds`.
    """

    worker: str
    state: str
    device: str
    site: str
    address: str
    last_seen_seconds: float
    job: str
    relay_mbps: float
    framework: str = ""
    opset: int = 0
    lacks: list[str] = []
    kernels: str = ""
    reason: str = ""
    connected: bool = True
    is_lost: bool = False
    gone_seconds: float = 0.0
    tflops: float = 0.0
    rates: Rates | None = None
    in_order: bool = True
    measured_seconds: float = -1.0
    memory_bytes: int = 0
    there_seconds: float = 0.0

    @property
    def is_away(self) -> bool:
        """Whether the worker has joined but is not connected now."""
        return not self.connected


class SegmentStatus(msgspec.Struct, frozen=True):
    """One segment of a job's plan: its workers, its share of the model's FLOPs, and what it holds.

    `parameter_bytes` are those of the parameters that it owns, `nodes` counts its nodes of the graph.
    """

    segment: int
    workers: list[str]
    share: float
    parameter_bytes: int
    nodes: int


class JobStatus(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """One job as `farflung status` shows it; an emulated one has no loss.

    `links` is the traffic between workers since the job began or the broker was started, `codecs` the codecs
    of links that are not dense. `protection` says what the loss of a worker costs, if the job has a plan,
    and `planning` what came of the last look for a better one. A job that is `held` waits for its submitter;
    one that `waits_for` workers cannot go on, or begin, without them. Once some steps of an attempt are
    measured, `step_seconds` is what one takes, `computing` for how long of it each worker computes, and
    `bottleneck` what it waits for most, in words. The newest validation, after `validated_step` steps, had
    the loss `validation_loss`; None before the first. `segments` are those of the plan that it trains by.
    """

    job: str
    name: str
    state: str
    reason: str
    step: int
    steps: int
    loss: float | None
    samples_per_second: float | None
    workers: list[str]
    emulated: bool = False
    links: list[LinkTraffic] = []
    codecs: list[LinkCodec] = []
    protection: str = ""
    planning: str = ""
    held: bool = False
    waits_for: list[str] = []
    step_seconds: float | None = None
    computing: dict[str, float] = {}
    bottleneck: str = ""
    validated_step: int | None = None
    validation_loss: float | None = None
    segments: list[SegmentStatus] = []

    @property
    def condition(self) -> str:
        """The state for people: a job that is held or waits for workers says so instead of how far it is."""
        if self.state in OVER:
            return self.state
        if self.held:
            return "held"
        return f"waiting for {and_more(self.waits_for, NAMED)}" if self.waits_for else self.state


def _veiled(job: JobStatus, hide: Callable[[str], str]) -> JobStatus:
    words = {name: hide(getattr(job, name)) for name in ("reason", "protection", "planning", "bottleneck")}
    return msgspec.structs.replace(job, waits_for=[hide(name) for name in job.waits_for], **words)


class LinkView(msgspec.Struct, frozen=True):
    """How `holder` reaches one peer of a job, as it last reported.

    The broker has measured the link at `possible_mbps`, with nothing else on it; None: it has not.
    """

    holder: str
    job: str
    report: LinkReport
    possible_mbps: float | None = None


class Status(Message, frozen=True):
    """Everything that `farflung status` prints. `relay_mbps` is the rate at which the broker relays links."""

    version: str
    uptime_seconds: float
    workers: list[WorkerStatus]
    jobs: list[JobStatus]
    backup_pool: list[str]
    timeouts: dict[str, float]
    links: list[LinkView]
    relay_mbps: float

    def limited_to(self, jobs: Collection[str]) -> Status:
        """What a viewer of these jobs, by name or id, sees: them, their workers and the links of these.

        What is said of them names no other worker and no other job.
        """
        seen = [job for job in self.jobs if job.name in jobs or job.job in jobs]
        ids = {job.job for job in seen}
        hide = self.veil_for(jobs)
        return msgspec.structs.replace(
            self,
            jobs=[_veiled(job, hide) for job in seen],
            workers=[worker for worker in self.workers if worker.job in ids],
            links=[view for view in self.links if view.job in ids],
            backup_pool=[],
        )

    def veil_for(self, jobs: Collection[str]) -> Callable[[str], str]:
        """What takes the names of all others out of words, for a viewer of these jobs."""
        seen = [job for job in self.jobs if job.name in jobs or job.job in jobs]
        ids = {job.job for job in seen}
        shown = {name for job in seen for name in job.workers}
        shown |= {worker.worker for worker in self.workers if worker.job in ids}
        others = {worker.worker for worker in self.workers} - shown
        others |= {name for job in self.jobs for name in (*job.workers, *job.waits_for)} - shown
        return veil(others, {job.job for job in self.jobs} - ids)

    def workers_counted(self) -> str:
        """The number of workers in each state: "3 workers: 2 training, 1 standby; 1 left"."""
        states = Counter(worker.state for worker in self.workers)
        gone = states.pop(LEFT, 0)
        counts = [f"{states[state]} {state}" for state in STATES if states[state]]
        there = count_of(states.total(), "worker") + (f": {', '.join(counts)}" if counts else "")
        return f"{there}; {gone} left" if gone else there


class Renew(Message, frozen=True):
    """Ask for a new certificate; `request` (PEM) must be for the connection's own key, id and role."""

    request: Annotated[bytes, Meta(max_length=4096)]


class Renewed(Message, frozen=True, omit_defaults=True):
    """The new certificate (PEM, and those that it must be shown with).

    `authorities` (PEM) are all that the holder is to trust; empty: those that it knows.
    """

    certificate: Annotated[bytes, Meta(max_length=4096)]
    authorities: Annotated[bytes, Meta(max_length=4096)] = b""


class Denied(Message, frozen=True):
    """The broker refuses a request, with one line for the user.

    `for_now` means that a worker's id is in use, but maybe by a process that died a moment ago: it can try
    again after the time in which a dead connection becomes suspect.
    """

    reason: Text
    for_now: bool = False
