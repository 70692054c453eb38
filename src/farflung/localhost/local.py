"""`local`: a fleet on this machine, for a Python program or `farflung train --local`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from farflung.client.api.execution import Host
from farflung.client.api.fleet import QUIET, Fleet
from farflung.client.api.frontend import Frontend
from farflung.client.api.wording import in_python_words
from farflung.client.beginning.source import JobSource
from farflung.client.beginning.standing import tell_of_left_job
from farflung.client.options.asked import Asked
from farflung.client.options.target import Target, parse_target
from farflung.client.output.run_record import RunOptions
from farflung.client.run.broker_client import ask_status
from farflung.localhost.devices import devices_for
from farflung.localhost.fleet import LocalFleet
from farflung.plans import CodecWishes
from farflung.text import count_of

if TYPE_CHECKING:
    from farflung.protocol.messages import Status
    from farflung.transport.security.identity import Identity


JOINING_SECONDS, POLL_SECONDS = 60.0, 0.05


def local(workers: int, *, device: str | None = None, backends: Sequence[str] | None = None) -> Fleet:
    """A broker and workers on this machine, for as long as the fleet is open.

    Their processes start when the fleet is first needed, with logs in `logs` of the run that needs it. They
    end with `close`, with the `with` block, or with the program, even if it is killed.

    Parameters
    ----------
    workers
        How many; a run trains on all of them, each with one compute thread.
    device
        What they compute on: "auto" (the default: a GPU each, if there are enough, else the CPU), "cpu",
        "cuda" or "mps".
    backends
        Their frameworks in turn, of "torch" and "jax"; by default each uses what is installed.

    Raises
    ------
    JobError
        `workers` is out of range, or this machine lacks a device or a framework.
    """
    options = RunOptions(
        local=workers, device=device, backends=None if backends is None else ",".join(backends)
    )
    with in_python_words():
        return LocalWorkers(parse_target(options, None, CodecWishes()), options)


class LocalWorkers(Fleet):
    """Local workers as `target` and `options` say; see `local`. Their page is at `web` (HOST:PORT), if given.

    Raises
    ------
    JobError
        This machine lacks the device that was asked for.
    """

    def __init__(self, target: Target, options: RunOptions, web: str = "") -> None:
        if target.device == "cuda":
            devices_for(target.device, target.local)  # says now, not after a capture, if there are too few
        super().__init__()
        self._target = target
        self._options = options
        self._web = web
        self._processes: LocalFleet | None = None
        self._has_joined = False
        self._starting = asyncio.Lock()

    def __repr__(self) -> str:
        state = ", closed" if self._runs.is_closed else "" if self._processes else ", not started"
        return f"<Fleet of {count_of(self._target.local, 'worker')} on this machine{state}>"

    def _with_own(self, options: RunOptions) -> RunOptions:
        own = self._options
        return msgspec.structs.replace(options, local=own.local, device=own.device, backends=own.backends)

    def _placed(self, asked: Asked, source: JobSource, frontend: Frontend) -> Asked:
        resume = asked.request.resume
        if asked.earlier is not None and resume is not None:
            tell_of_left_job(asked.earlier, source, resume, frontend.note)
        return asked

    @asynccontextmanager
    async def _hosting(self, logs: Path, frontend: Frontend) -> AsyncIterator[Host]:
        processes = await self._started(logs, frontend)
        yield Host(processes.identity, processes.watch)

    async def _own_identity(self) -> Identity:
        return (await self._started(None, QUIET)).identity

    async def _status(self) -> Status:
        """As `Fleet.status`; workers that have just been started are waited for until they have joined."""
        processes = await self._started(None, QUIET)
        until = asyncio.get_running_loop().time() + JOINING_SECONDS
        while True:
            status = await ask_status(processes.identity)
            self._has_joined |= len(status.workers) >= self._target.local
            is_late = asyncio.get_running_loop().time() > until
            if self._has_joined or processes.is_broken or is_late:
                return status
            await asyncio.sleep(POLL_SECONDS)

    async def _ended(self) -> None:
        if self._processes is not None:
            await self._processes.__aexit__(None, None, None)

    async def _started(self, logs: Path | None, frontend: Frontend) -> LocalFleet:
        async with self._starting:
            if self._processes is not None and self._processes.is_broken:
                frontend.note("a process of this fleet has ended: starting all of them anew")
                await self._ended()
                self._processes, self._has_joined = None, False
            if self._processes is None:
                self._processes = await self._start(logs, frontend)
            return self._processes

    async def _start(self, logs: Path | None, frontend: Frontend) -> LocalFleet:
        target = self._target
        devices = await asyncio.to_thread(devices_for, target.device, target.local)
        fleet = LocalFleet(target.local, logs, backends=target.frameworks, devices=devices, web=self._web)
        shares = "; ".join(f"{name} on {', '.join(ids)}" for name, ids in fleet.computing().items())
        start = f"starting a broker and {count_of(target.local, 'worker')} on this machine"
        frontend.note(f"{start}: {shares}" if shares else start)
        await fleet.__aenter__()
        if self._web:
            frontend.note(f"watch them at http://{self._web}/")
        return fleet
