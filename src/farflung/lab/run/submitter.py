"""The submitter of a lab: `farflung train` as a process in its own node, at the user's terminal."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from farflung.transport.timeouts import Timeouts


class LabSubmitter:
    """A `farflung train` that writes to this process's output; with `captured`, its output is stored instead.

    It is in a process session of its own, so signals reach it only through this process.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        # Two equal signals can merge into one, and a third would end it before it reports the result.
        self._signals = iter((signal.SIGINT, signal.SIGTERM))
        self._output: asyncio.Task[bytes] | None = None
        if process.stdout is not None:
            self._output = asyncio.create_task(process.stdout.read())

    @classmethod
    async def start(
        cls, prefix: Sequence[str], arguments: Sequence[str], token: str, captured: bool
    ) -> LabSubmitter:
        """Start `farflung train ARGUMENTS` by the command `prefix`."""
        process = await asyncio.create_subprocess_exec(
            *prefix,
            sys.executable,
            "-m",
            "farflung",
            "train",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE if captured else None,
            env={**os.environ, "FARFLUNG_TOKEN": token},
            start_new_session=True,
        )
        return cls(process)

    async def ended(self) -> int:
        """Wait for the end of the process; returns its exit code, negative if a signal ended it."""
        return await self._process.wait()

    async def output(self) -> bytes:
        """Its standard output, once it has ended; empty unless captured."""
        return b"" if self._output is None else await self._output

    def interrupt(self) -> None:
        """Act as Ctrl-C does: the first call asks for an orderly end, the second ends the run at once."""
        for number in itertools.islice(self._signals, 1):
            self._signal(number)

    def kill(self) -> None:
        """Kill the process."""
        self._signal(signal.SIGKILL)

    async def stop(self) -> None:
        """End the process in any case, and reap it."""
        if self._process.returncode is None:
            self.interrupt()
            self.interrupt()
            with suppress(TimeoutError):
                async with asyncio.timeout(Timeouts().stop_seconds):
                    await self._process.wait()
            self.kill()
        await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)
