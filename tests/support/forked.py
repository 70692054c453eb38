"""Commands forked of a process which has imported what they import, with the face of `subprocess.Popen`.

Hundreds of commands that tests start would each import torch, two to five seconds of a core. What they do
after that is the same (tests/localhost/test_forkserver.py); tests/cli and test_machines start theirs plainly.
"""

from __future__ import annotations

import atexit
import os
import select
import subprocess
import time
from functools import cache
from pathlib import Path

import farflung
from farflung.localhost.fleet import ONE_THREAD
from farflung.localhost.forkserver import WORKER_MODULES, Forked, ForkRequest, ForkServer, is_possible

__all__ = ["ForkedCommand", "forked", "is_possible"]

OURS = Path(farflung.__file__).parent.parent
SERVICES = ("join", "broker", "status", "token")
SERVICE_MODULES = (*WORKER_MODULES, "farflung.broker.service")
SUBMITTER_MODULES = (
    *WORKER_MODULES,
    "farflung.client.run.submitter",
    "farflung.opdag.capture",
    "torch.export._trace",
)


class ForkedCommand:
    """A command and its end."""

    def __init__(self, name: str, process: Forked) -> None:
        while process.process_id is None and not process.is_over:
            process.read_message()
        assert process.process_id is not None, f"{name} was not forked"
        self.pid = process.process_id
        self._name = name
        self._process = process

    @property
    def returncode(self) -> int | None:
        """As `subprocess.Popen.returncode`."""
        return self._process.code

    def poll(self) -> int | None:
        """The code, if it has ended."""
        self._on_readable(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the code; subprocess.TimeoutExpired after so long."""
        self._on_readable(timeout)
        if not self._process.is_over:
            raise subprocess.TimeoutExpired(self._name, timeout or 0.0)
        assert self.returncode is not None, "its fork server is gone"
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        self._process.signal(number)

    def _on_readable(self, seconds: float | None) -> None:
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._process.is_over:
            rest = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._process.fileno()], [], [], rest)[0]:
                return
            self._process.read_message()


def forked(
    arguments: tuple[str, ...],
    environment: dict[str, str],
    folder: Path,
    files: tuple[int, int, int],
    namespace: str,
    sources: Path | None = None,
) -> ForkedCommand:
    """Start `farflung ARGUMENTS` (of `sources`) in a folder, with this whole environment."""
    is_ours = sources in (None, OURS)
    modules = SERVICE_MODULES if is_ours and arguments[0] in SERVICES else SUBMITTER_MODULES
    fork_server, inherited = _fork_server(modules, None if is_ours else sources)
    changes: dict[str, str | None] = {
        key: value for key, value in environment.items() if inherited.get(key) != value
    }
    changes |= {key: None for key in inherited if key not in environment}
    fork_request = ForkRequest(list(arguments), changes, str(folder), own_session=False, namespace=namespace)
    return ForkedCommand(arguments[0], fork_server.fork(fork_request, files))


@cache
def _fork_server(modules: tuple[str, ...], sources: Path | None = None) -> tuple[ForkServer, dict[str, str]]:
    """One for this test process (and another farflung's sources), and the environment that it has."""
    own = dict(ONE_THREAD) if sources is None else {**ONE_THREAD, "PYTHONPATH": str(sources)}
    fork_server = ForkServer(modules, own, own_session=False)
    atexit.register(fork_server.close, 10.0)
    return fork_server, {**os.environ, **own}
