"""This machine as a home worker of its submitter, for the time of its runs: `train --with-local-worker`.

It has an identity of its own, in `home-worker` beside the others of this user, so a worker that `farflung
join` runs here goes on undisturbed. It is a worker of the fleet like any other while it runs, and says at
the broker whose home it is.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from farflung.client.api.connect import BrokerFleet, submitter_at
from farflung.client.api.execution import Host
from farflung.client.api.fleet import Fleet, as_path
from farflung.client.beginning.joining import obtain_identity
from farflung.client.beginning.source import JobSource
from farflung.client.options.asked import Asked
from farflung.client.run.broker_client import ask_status
from farflung.errors import IdentityError, JobError, RunFailed
from farflung.localhost.child_process import ChildProcess, Command
from farflung.plans.wishes import KeepHome
from farflung.transport.security.identity import Identity
from farflung.transport.security.identity_folder import home_folder
from farflung.transport.timeouts import Timeouts

if TYPE_CHECKING:
    from farflung.client.api.frontend import Frontend

TOKEN_VARIABLE = "FARFLUNG_WORKER_TOKEN"
NO_TOKEN = {"FARFLUNG_TOKEN": ""}
"""A submitter's token is of no use to its worker, which has an identity by then."""

POLL_SECONDS = 0.2


def connect_from_home(
    broker: str | None, token: str | None, folder: Path | str | None, frontend: Frontend
) -> Fleet:
    """As `farflung.connect`, for runs that also have this machine as a home worker.

    Raises
    ------
    JobError
        This machine has no identity of a worker at that broker, and no token for one.
    """
    submitter = submitter_at(broker, token, folder, frontend)
    return HomeWorkerFleet(submitter, as_path(folder), frontend)


class HomeWorkerFleet(BrokerFleet):
    """The workers of a broker, and one of this machine while a run needs it."""

    def __init__(self, identity: Identity, folder: Path | None, frontend: Frontend) -> None:
        super().__init__(identity, folder)
        self._home_folder = home_folder() / "home-worker"
        try:
            self._worker = self._loop.call(_worker_identity(identity, self._home_folder, frontend))
        except BaseException:
            self.close()
            raise

    def _placed(self, asked: Asked, source: JobSource, frontend: Frontend) -> Asked:
        asked = super()._placed(asked, source, frontend)
        wishes = asked.target.wishes
        home = KeepHome((), tuple(dict.fromkeys((self._worker.id, *wishes.home.workers))))
        return replace(asked, target=replace(asked.target, wishes=msgspec.structs.replace(wishes, home=home)))

    @asynccontextmanager
    async def _hosting(self, logs: Path, frontend: Frontend) -> AsyncIterator[Host]:
        with tempfile.TemporaryDirectory(prefix="farflung-") as spare:
            command = Command(
                "home-worker", self._arguments(), logs / "home-worker.log", NO_TOKEN, Path(spare)
            )
            await asyncio.to_thread(logs.mkdir, parents=True, exist_ok=True)
            frontend.note(f"starting this machine's home worker {self._worker.id}")
            child = await ChildProcess.start(command)
            try:
                await self._joined(child)
                yield Host(self._identity)
            finally:
                await child.stop(Timeouts().stop_seconds)

    def _arguments(self) -> list[str]:
        own = ["--folder", str(self._home_folder), "--home-of", self._identity.id]
        return ["join", self._worker.broker, *own]

    async def _joined(self, child: ChildProcess) -> None:
        """Wait until the worker has joined; RunFailed if it ends before, with its last words."""
        ended = asyncio.create_task(child.ended())
        try:
            while True:
                status = await ask_status(self._identity)
                if any(one.worker == self._worker.id and not one.is_away for one in status.workers):
                    return
                await asyncio.wait({ended}, timeout=POLL_SECONDS)
                if ended.done():
                    raise RunFailed(f"this machine's {ended.result()}")
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)


async def _worker_identity(submitter: Identity, folder: Path, frontend: Frontend) -> Identity:
    """The identity of this machine's home worker at the submitter's broker."""
    token = os.environ.get(TOKEN_VARIABLE) or None
    if token is None and await asyncio.to_thread(_authority, folder) != submitter.authority():
        raise JobError(
            f"this machine has no identity of a worker at {submitter.broker}: set {TOKEN_VARIABLE} to what"
            " `farflung token create --role worker` prints on the broker's machine"
        )
    return await obtain_identity(folder, "worker", submitter.broker, token, None, frontend.note)


def _authority(folder: Path) -> bytes:
    """The certificate of the authority that a folder's identity trusts; empty if it has none."""
    try:
        return Identity.load(folder, ended_too=True).authority()
    except IdentityError:
        return b""
