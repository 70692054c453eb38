"""What a broker lets the pages of its fleet see. All of it only reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from farflung.broker.job_log import LogLine
from farflung.broker.planning.what_if_messages import Foreseen, WhatIf
from farflung.protocol.messages import Status
from farflung.protocol.timeline import StepTimeline


@dataclass(frozen=True)
class FleetView:
    """The status, a step's timeline, what a step would take if things were different, and a job's log.

    `step` and `what_if` raise FarflungError with a line for the viewer.
    """

    status: Callable[[], Status]
    step: Callable[[str], Awaitable[StepTimeline]]
    what_if: Callable[[WhatIf], Awaitable[Foreseen]]
    log: Callable[[str], list[LogLine]]
