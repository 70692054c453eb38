"""Decisions and observations about workers: who is there, who leaves, and which job moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from farflung.broker.core.decision import Decision
from farflung.plans.rates import Rates
from farflung.protocol.registration import Device, HomeLine

if TYPE_CHECKING:
    from farflung.broker.core.fleet.replanning import Replanning


class WorkerAdmitted(Decision, frozen=True):
    """The worker is connected: in the backup pool or, if it `returns`, in the job that it was assigned to."""

    worker: str
    device: Device
    site: str
    addresses: list[str]
    boot: str
    relay_mbps: float = 0.0
    line: HomeLine = HomeLine()
    claims: list[str] = []
    seen: str = ""
    disk_bytes: int = 0
    returns: bool = False
    home_of: list[str] = []


class WorkerMoved(Decision, frozen=True):
    """The worker's addresses have changed."""

    worker: str
    addresses: list[str]
    claims: list[str] = []
    seen: str = ""


class WorkerMeasured(Decision, frozen=True):
    """The rates of the worker's device, which it has measured again."""

    worker: str
    tflops: float
    rates: Rates | None = None


class WorkerLost(Decision, frozen=True):
    """The worker's control session ended. The worker stays known under its id."""

    worker: str
    reason: str


class WorkerAway(Decision, frozen=True):
    """The worker's control session ended, but it is expected to return to the job that it is assigned to."""

    worker: str
    reason: str


class WorkerLeaving(Decision, frozen=True):
    """The worker is to leave: others take its share, or it leaves with it at `deadline` (seconds since 1970).

    Until then it takes no other job.
    """

    worker: str
    reason: str
    deadline: float


class WorkerReleased(Decision, frozen=True):
    """The worker's process may end. The worker stays known under its id.

    It leaves not `in_order` if it has a share or a copy that others need; older logs do not say so.
    """

    worker: str
    reason: str
    in_order: bool = True


class JobMoves(Decision, frozen=True):
    """The job leaves its plan for a better one right after the unit of its newest version."""

    job: str
    attempt: int
    reason: str


class WorkerVerified(msgspec.Struct, frozen=True):
    """Observed: the worker's key answered at `addresses`."""

    worker: str
    addresses: list[str]


class ReplanningChanged(msgspec.Struct, frozen=True):
    """Observed: what came of considering another plan for the job."""

    job: str
    replanning: Replanning
