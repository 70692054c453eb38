"""What every role may ask of the broker: what goes on, and a new certificate."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from farflung.plans import LinkCodec
from farflung.protocol.fields import Message, Text
from farflung.protocol.reachability import LinkReport
from farflung.protocol.worker import LinkTraffic
from farflung.text import count_of

AWAY = ("lost", "left")


class Ask(Message, frozen=True):
    """What is going on? Answered by `Status`; any role may ask."""


class WorkerStatus(msgspec.Struct, frozen=True):
    """One worker as `farflung status` shows it; `state` is idle, loading, running, lost or left.

    `framework` is what it computes with, and its version; `opset` is the version that it knows, `lacks` the
    ops of it that its backend refuses.
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

    @property
    def is_away(self) -> bool:
        """Whether it has joined and is not connected now."""
        return self.state in AWAY


class JobStatus(msgspec.Struct, frozen=True):
    """One job as `farflung status` shows it; an emulated one has no loss.

    `links` say what workers sent each other since the job began or the broker was started, `codecs` how links
    are written that are not dense.
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


class LinkView(msgspec.Struct, frozen=True):
    """How `holder` reaches one peer of a job, as it last reported."""

    holder: str
    job: str
    report: LinkReport


class Status(Message, frozen=True):
    """Everything `farflung status` prints. `relay_mbps` is what the broker itself carries for peers."""

    version: str
    uptime_seconds: float
    workers: list[WorkerStatus]
    jobs: list[JobStatus]
    backup_pool: list[str]
    timeouts: dict[str, float]
    links: list[LinkView]
    relay_mbps: float

    def workers_counted(self) -> str:
        """How many workers are connected, and how many have joined but are away: "2 workers, 1 away"."""
        away = sum(worker.is_away for worker in self.workers)
        here = count_of(len(self.workers) - away, "worker")
        return f"{here}, {away} away" if away else here


class Renew(Message, frozen=True):
    """A certificate request (PEM) for the key, id and role of the connection it comes over."""

    request: Annotated[bytes, Meta(max_length=4096)]


class Renewed(Message, frozen=True):
    """The certificate (PEM) that was asked for."""

    certificate: Annotated[bytes, Meta(max_length=4096)]


class Denied(Message, frozen=True):
    """The broker refuses what was asked, with one line for the user.

    With `for_now` a worker does well to ask once more when a link that died would be suspect: its id is in
    use, but maybe by a process that died a moment ago.
    """

    reason: Text
    for_now: bool = False
