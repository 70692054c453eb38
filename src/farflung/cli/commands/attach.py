"""`farflung attach`: watch a job until it ends, from any machine that has joined its broker."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from farflung.cli.commands.status import any_identity
from farflung.cli.process.identity import BrokerOption, FolderOption, TokenText
from farflung.cli.render.output import JsonOption, note, print_json, print_text
from farflung.errors import ConnectionFailed, JobError
from farflung.protocol.membership import is_removal
from farflung.protocol.viewer import OVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from farflung.protocol.messages import Status
    from farflung.protocol.viewer import JobStatus
    from farflung.transport.security.identity import Identity

POLL_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 10.0
PATIENCE_SECONDS = 86_400.0
FAILED, INTERRUPTED = 1, 130


def attach(
    job: Annotated[str, typer.Argument(metavar="JOB-ID", help="Id of the job, see `farflung status`.")],
    broker: BrokerOption = None,
    token: TokenText = None,
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Watch a job until it ends; Ctrl-C ends the watching only."""

    async def watch() -> JobStatus:
        identity = await any_identity(broker, token, folder)
        with _Shown(as_json) as show:
            async for found in _changes(identity, job):
                show(found)
        return found

    try:
        last = asyncio.run(watch())
    except KeyboardInterrupt:
        note(f"not watching any more; {job} goes on")
        raise typer.Exit(INTERRUPTED) from None
    if last.state != "done":
        raise typer.Exit(FAILED)


async def _changes(identity: Identity, job: str) -> AsyncIterator[JobStatus]:
    """The job each time that something about it changes, until it is over.

    Raises
    ------
    JobError
        The broker has no such job.
    ConnectionFailed
        The broker cannot be reached at first, or not for a day, or it has removed this member.
    """
    from farflung.client.run.broker_client import ask_status

    last: JobStatus | None = None
    pause, away_since = POLL_SECONDS, 0.0
    while True:
        try:
            found = _job_called(job, await ask_status(identity), identity.broker)
        except ConnectionFailed as error:
            is_late = away_since and time.monotonic() - away_since > PATIENCE_SECONDS
            if last is None or is_removal(str(error)) or is_late:
                raise
            if not away_since:
                away_since = time.monotonic()
                note(f"{error}; trying again until it answers")
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        else:
            pause, away_since = POLL_SECONDS, 0.0
            if found != last:
                last = found
                yield found
            if found.state in OVER:
                return
        await asyncio.sleep(pause)


def _job_called(job: str, status: Status, broker: str) -> JobStatus:
    found = next((one for one in status.jobs if one.job == job), None)
    if found is None:
        known = f"its newest is {status.jobs[-1].job}" if status.jobs else "it has none"
        raise JobError(
            f"the broker at {broker} has no job {job[:60]!r}: {known} (`farflung status` lists them)"
        )
    return found


class _Shown:
    """How the job is shown: a document or a line for each change, or one moving line on a terminal."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._stack = ExitStack()
        self._tell: Callable[[str], None] | None = None
        self._state = ""
        self._line = ""

    def __enter__(self) -> Callable[[JobStatus], None]:
        from farflung.cli.render.progress import moving_line

        if not self._as_json and sys.stderr.isatty() and sys.stdout.isatty():
            self._tell = self._stack.enter_context(moving_line())
        return self._show

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _show(self, job: JobStatus) -> None:
        from farflung.cli.render.status import job_line

        if self._as_json:
            print_json(msgspec.structs.asdict(job))
            return
        line, state = job_line(job), f"{job.state} {job.reason}"
        if self._tell is not None and job.state not in OVER:
            self._tell(line)
            if state == self._state:
                return
        if line != self._line:
            print_text(line)
        self._line, self._state = line, state
