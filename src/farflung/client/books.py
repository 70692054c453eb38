"""The books of one run: what happens goes into the run folder, and to whoever watches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from farflung.client.job import Job
from farflung.client.observer import Observer
from farflung.client.records import Summary
from farflung.client.run_folder import RunFolder
from farflung.client.tally import Tally
from farflung.client.telling import goes_on
from farflung.errors import RunFailed
from farflung.protocol.messages import Accepted, CodecsChosen, Collecting, Planned, UnitDone
from farflung.protocol.worker import LinkTraffic


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `state` is done, failed or cancelled, `reason` one line, empty when done."""

    state: str
    reason: str


class Books:
    """Writes a run's files on a thread, one after the other; each method may raise `RunFailed` (disk)."""

    def __init__(self, job: Job, folder: RunFolder, observer: Observer, emulated: bool = False) -> None:
        self.folder = folder
        self.observer = observer
        self.tally = Tally(job, time.monotonic(), emulated)
        self._emulated = emulated
        self._job_id = ""
        self._state = ""
        self._warned = False

    async def submitted(self, name: str, broker: str) -> None:
        """The job is with the broker."""
        await self._record("submitted", name=name, broker=broker)

    async def accepted(self, message: Accepted) -> None:
        """The broker says where the job stands."""
        self._job_id = message.job
        self.observer.waiting(message.state)
        if not goes_on(message.state, self._state):
            self._state = message.state
            await self._record("waiting", job=message.job, state=message.state)

    async def planned(self, message: Planned) -> None:
        """There is a plan; loading begins."""
        workers = message.plan.workers()
        self.tally.planned(time.monotonic(), len(workers), message.prediction)
        self.observer.planned(message)
        await asyncio.to_thread(self.folder.write_plan, message.plan)
        await self._record(
            "planned",
            attempt=message.attempt,
            workers=workers,
            prediction=message.prediction,
            unable=message.unable,
            notes=message.notes,
        )

    async def running(self, sent_bytes: int) -> None:
        """Loading is over; `sent_bytes` have left over data links."""
        self.tally.running(time.monotonic(), sent_bytes)
        self.observer.running()
        self._begin()
        await self._record("running", loading_seconds=self.tally.loading_seconds)

    async def unit_done(self, message: UnitDone, sent_bytes: int) -> None:
        """A unit was decided; `sent_bytes` have left over data links since the start."""
        unit = self.tally.current
        row = self.tally.finished(message, time.monotonic(), sent_bytes)
        await self._warn(message.links)
        is_looped = unit is not None and self.tally.is_looped(unit)
        if row is not None:
            self.observer.stepped(row)
        elif not is_looped:
            self.observer.validated(self.tally.steps, self.tally.validation_loss)
        self._begin()
        if row is not None:
            await asyncio.to_thread(self.folder.add_step, row)
        elif is_looped:
            loss = self.tally.validation_loss_with_codecs
            await self._record("validated with codecs", step=self.tally.steps, loss=loss)
        else:
            await self._record("validated", step=self.tally.steps, loss=self.tally.validation_loss)

    async def codecs_chosen(self, message: CodecsChosen) -> None:
        """Links are written otherwise from some unit on."""
        self.observer.codecs_chosen(message)
        await self._record("codecs", step=message.step, changes=message.changes, words=message.words)

    async def collecting(self, message: Collecting) -> None:
        """The weights are on their way home."""
        await self._record("collecting", step=message.step, state=message.state, reason=message.reason)

    def close(self, outcome: Outcome) -> Summary:
        """Write the last event and the summary, as far as the disk lets them."""
        summary = self.tally.summary(outcome.state, outcome.reason, self._job_id, time.monotonic())
        with suppress(RunFailed):  # a full disk is then the outcome's reason already
            self.folder.add_event(time.time(), "ended", state=outcome.state, reason=outcome.reason)
            self.folder.write_summary(summary)
        return summary

    def kept(self) -> str:
        """What the user still has of a run that failed, for the end of a sentence."""
        if not self.tally.steps:
            return ""
        step = self.tally.weights_step
        weights = "" if step is None else f" and the weights of step {step}"
        steps = "1 step" if self.tally.steps == 1 else f"{self.tally.steps} steps"
        told = f"; the metrics of {steps}{weights} are in {self.folder.path}"
        if step is not None or self._emulated:
            return told
        return f"{told}, but the weights were with the workers and are lost: the run must start anew"

    async def _warn(self, links: Sequence[LinkTraffic]) -> None:
        """Say once that a codec met what it cannot write: the run goes on, with those tensors as they are."""
        unfit = [link for link in links if link.not_finite]
        if unfit and not self._warned:
            self._warned = True
            pairs = [f"{link.source} -> {link.target}" for link in unfit]
            self.observer.warned(
                f"values on {pairs[0]} are not finite (or beyond 1e16): no codec writes them, so they travel"
                " as they are; the model may be diverging"
            )
            await self._record("not finite", step=self.tally.steps, links=pairs)

    def _begin(self) -> None:
        if self.tally.current is not None:
            self.observer.working(self.tally.current, 0)

    async def _record(self, event: str, **facts: object) -> None:
        await asyncio.to_thread(self.folder.add_event, time.time(), event, **facts)
