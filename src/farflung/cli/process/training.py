"""Train at a broker or on a local fleet, from the first message to the summary, and heed signals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from farflung.cli.process.interrupts import RunStopper, on_hang_up, stop_on_interrupt
from farflung.cli.render.output import note
from farflung.cli.render.run_report import resume_note, stopping_note
from farflung.errors import RunInterrupted
from farflung.text import count_of

if TYPE_CHECKING:
    from farflung.cli.options.target import Target
    from farflung.cli.process.background import Background
    from farflung.cli.process.run_start import RunStart
    from farflung.client.capture.prepared import Prepared
    from farflung.client.output.progress import Observer
    from farflung.client.output.records import Summary
    from farflung.client.output.run_folder import RunFolder
    from farflung.client.run.checkpointing import Checkpointing
    from farflung.localhost.fleet import LocalFleet
    from farflung.transport.security.identity import Identity


@dataclass(frozen=True)
class Training:
    """What is trained, where, and where it is recorded.

    Without an `identity` it runs on a local fleet. `background` is the other side of `--detach`.
    """

    prepared: Prepared
    target: Target
    identity: Identity | None
    run: RunFolder
    observer: Observer
    start: RunStart
    patience_seconds: int
    background: Background | None = None

    def train(self, checkpointing: Checkpointing) -> Summary:
        """Train; if no step was done when the user stopped it, an older run gets its folder name back.

        A run whose place at a job is gone goes on from its newest checkpoint.

        Raises
        ------
        RunInterrupted
            The user ended it at once, without waiting for the weights.
        typer.Exit
            The terminal was closed; the broker holds the job.
        """
        from farflung.client.run.returns import PlaceGone, RunLeft
        from farflung.client.run.submitter import CANCELLED, STOPPED_AT_ONCE
        from farflung.heap import collect_as_usual

        collect_as_usual()  # from here on every step makes tensors
        try:
            summary = asyncio.run(self._train(checkpointing))
        except PlaceGone as gone:
            note(f"{gone}: going on from the newest checkpoint")
            again = self.start.at_checkpoint().begin(self.run, self.prepared, self.target.wishes.codecs)
            return self.train(again)
        except RunLeft as left:
            note(f"{left}: the broker holds the job, and its workers their state")
            note(f"to go on: {self.start.command}")
            raise typer.Exit(left.exit_code) from None
        except (asyncio.CancelledError, KeyboardInterrupt):
            if not self._restore_older_run() and self.run.has_checkpoint():
                note(resume_note(self.start.command))
            raise RunInterrupted(STOPPED_AT_ONCE) from None
        if summary.state == CANCELLED:
            self._restore_older_run()
        return summary

    def _restore_older_run(self) -> bool:
        is_restored = self.run.restore_previous()
        if is_restored:
            where = f"its files are in {self.run.path}"
            note(f"no step was completed: {where}, and the older run has its folder back")
        return is_restored

    async def _train(self, checkpointing: Checkpointing) -> Summary:
        with stop_on_interrupt() as stopper:
            if self.identity is not None:
                return await self._submit(checkpointing, stopper, self.identity)
            async with _start_local_fleet(self.target, self.run.logs) as fleet:
                return await self._submit(checkpointing, stopper, fleet.identity, fleet)

    async def _submit(
        self,
        checkpointing: Checkpointing,
        stopper: RunStopper,
        identity: Identity,
        fleet: LocalFleet | None = None,
    ) -> Summary:
        """Submit the job and follow it to its end. A process of a local `fleet` that ends fails the run."""
        from farflung.client.run.submitter import Submitter

        prepared, target = self.prepared, self.target
        submitter = Submitter(
            prepared,
            identity,
            self.run,
            self.observer,
            target.workers,
            on=target.pool,
            wishes=target.wishes,
            closed=fleet is not None,
            checkpointing=None if prepared.emulated else checkpointing,
            patience_seconds=self.patience_seconds,
            on_accepted=None if self.background is None else self.background.accepted,
        )

        def stop() -> None:
            away = submitter.waits_for_broker
            note(stopping_note(prepared, submitter.recorder.metrics, away))
            submitter.stop("stopped by the user")

        watching = asyncio.create_task(fleet.watch(submitter.fail_soon)) if fleet is not None else None
        is_alone = fleet is None

        def leave() -> None:
            submitter.leave("the terminal was closed")

        try:
            with stopper.during_run(stop), on_hang_up(leave) if is_alone else nullcontext():
                return await submitter.run()
        finally:
            if watching is not None:
                watching.cancel()


@asynccontextmanager
async def _start_local_fleet(target: Target, logs: Path) -> AsyncIterator[LocalFleet]:
    """Run the fleet of a target for this block, and print which worker computes with which framework."""
    from farflung.localhost.devices import devices_for
    from farflung.localhost.fleet import LocalFleet

    devices = await asyncio.to_thread(devices_for, target.device, target.local)
    fleet = LocalFleet(target.local, logs, backends=target.frameworks, devices=devices)
    shares = "; ".join(f"{name} on {', '.join(ids)}" for name, ids in fleet.computing().items())
    start = f"starting a broker and {count_of(target.local, 'worker')} on this machine"
    note(f"{start}: {shares}" if shares else start)
    async with fleet:
        yield fleet
