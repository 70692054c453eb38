"""What a broker lets the pages of its fleet see, and do for those who show a token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace

from farflung.broker.acting import Action
from farflung.broker.job_log import LogLine
from farflung.broker.planning.what_if_messages import Foreseen, WhatIf
from farflung.broker.timelines import NoTimeline
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

    def limited_to(self, jobs: Collection[str]) -> FleetView:
        """What a page of these jobs, by name or id, is made of: them, their workers, and their links."""

        def status() -> Status:
            return self.status().limited_to(jobs)

        def require(job: str) -> None:
            if all(one.job != job for one in status().jobs):
                raise NoTimeline(f"there is no job {job} on this page")

        async def step(job: str) -> StepTimeline:
            require(job)
            return await self.step(job)

        def log(job: str) -> list[LogLine]:
            require(job)
            hide = self.status().veil_for(jobs)
            return [LogLine(line.at, hide(line.words)) for line in self.log(job)]

        async def what_if(asked: WhatIf) -> Foreseen:
            require(asked.job)
            raise NoTimeline("a page of some jobs plans none again, as that would show the rest of the fleet")

        return replace(self, status=status, step=step, what_if=what_if, log=log)
