"""`connect`: the workers of a broker that runs somewhere else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from farflung.client.api.execution import Host
from farflung.client.api.fleet import QUIET, Fleet, as_path, as_text
from farflung.client.api.frontend import Frontend
from farflung.client.api.loop_thread import LoopThread
from farflung.client.api.wording import in_python_words
from farflung.client.beginning.joining import obtain_identity
from farflung.client.beginning.source import JobSource
from farflung.client.beginning.standing import find_standing
from farflung.client.beginning.worker_check import ask_workers
from farflung.client.options.asked import Asked, ask_at_place
from farflung.client.output.run_record import RunOptions
from farflung.client.run.broker_client import ask_status
from farflung.transport.security.identity_folder import folder_of

if TYPE_CHECKING:
    from farflung.protocol.messages import Status
    from farflung.transport.security.identity import Identity


class BrokerFleet(Fleet):
    """The workers of a broker that runs somewhere else."""

    _holds_jobs = True

    def __init__(self, identity: Identity, folder: Path | None) -> None:
        super().__init__()
        self._identity = identity
        self._submitter = identity.id
        self._folder = folder

    def __repr__(self) -> str:
        return f"<Fleet of the broker at {self._identity.broker}{', closed' if self._runs.is_closed else ''}>"

    def _with_own(self, options: RunOptions) -> RunOptions:
        return msgspec.structs.replace(options, broker=self._identity.broker, folder=as_text(self._folder))

    def _placed(self, asked: Asked, source: JobSource, frontend: Frontend) -> Asked:
        wait = asked.request.wait
        status = self._loop.call(ask_workers(self._identity, asked.target, wait, frontend.note))
        if asked.earlier is not None:
            standing = find_standing(asked.earlier, status, self._identity.broker, frontend.note)
            asked = ask_at_place(asked, standing)
        connected = sum(not worker.is_away for worker in status.workers)
        return replace(asked, target=replace(asked.target, connected=connected))

    @asynccontextmanager
    async def _hosting(self, logs: Path, frontend: Frontend) -> AsyncIterator[Host]:
        yield Host(self._identity)

    async def _own_identity(self) -> Identity:
        return self._identity

    async def _status(self) -> Status:
        return await ask_status(self._identity)


def connect(
    broker: str | None = None,
    *,
    token: str | None = None,
    folder: Path | str | None = None,
    frontend: Frontend = QUIET,
) -> Fleet:
    """Connect to a broker, to train on its workers.

    Parameters
    ----------
    broker
        HOST:PORT, or several with commas between; None for the one that this user joined before.
    token
        A submitter's token from `farflung token create --role submitter`; needed only the first time.
    folder
        Folder of the identity that the token is exchanged for; by default `~/.farflung/submitter`.
    frontend
        Where notes go; by default to the logger `farflung`.

    Raises
    ------
    IdentityError
        There is neither identity nor token, or the token was refused.
    ConnectionFailed
        The broker cannot be reached.
    """
    return BrokerFleet(submitter_at(broker, token, folder, frontend), as_path(folder))


def submitter_at(
    broker: str | None, token: str | None, folder: Path | str | None, frontend: Frontend
) -> Identity:
    """The identity of a submitter at a broker that answers; the parameters are those of `connect`."""
    kept = folder_of("submitter", as_path(folder))
    loop = LoopThread("farflung-connect")
    try:
        with in_python_words(frontend is QUIET):
            identity = loop.call(obtain_identity(kept, "submitter", broker, token, None, frontend.note))
            frontend.note(f"asking the broker at {identity.broker} for its workers")
            loop.call(ask_status(identity))
    finally:
        loop.close()
    return identity
