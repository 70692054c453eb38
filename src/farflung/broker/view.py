"""What a broker lets the pages of its fleet see, and do for those who show a token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from farflung.broker.acting import Action
from farflung.broker.job_log import LogLine
from farflung.broker.planning.what_if_messages import Foreseen, WhatIf
from farflung.protocol.messages import Status
from farflung.protocol.timeline import StepTimeline


@dataclass(frozen=True)
class FleetView:
    """The status, a step's timeline, what a step would take if things were different, and a job's log.

    `act` takes a token and an action, and returns what came of it; all else only reads. What is awaited
    raises FarflungError with a line for the viewer.
    """

    status: Callable[[], Status]
    step: Callable[[str], Awaitable[StepTimeline]]
    what_if: Callable[[WhatIf], Awaitable[Foreseen]]
    log: Callable[[str], list[LogLine]]
    act: Callable[[str, Action], Awaitable[str]]
