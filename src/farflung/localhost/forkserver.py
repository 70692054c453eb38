"""A fork server: a process that imports a framework once and forks workers from then on.

`import torch` takes two core-seconds and 200 MB in each process; forked workers start at once and share that
memory. The fork server computes nothing, so it has one thread and can be forked safely.

The standard library's (`multiprocessing.forkserver`) is no replacement: it passes a child's work as a pickle,
which farflung uses nowhere, it serves one process with one set of streams, and its children belong to no
network namespace and no log file of their own.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from select import POLLIN, poll

import msgspec

FRAMEWORKS = ("torch",)
"""Frameworks that allow a fork after their import; importing XLA starts threads."""
WORKER_MODULES = (
    "farflung.runtime.torch_backend.backend",
    "farflung.worker.service",
    "farflung.cli.main",
)
"""The modules that a worker imports."""
MOST_BYTES = 1 << 17
ROOM_FOR_NAMES = " " * 1024
"""A filler argument, whose place a child overwrites with the command that `ps` shows for it."""


class ForkRequest(msgspec.Struct, frozen=True):
    """A request to fork `farflung ARGUMENTS` in a folder, with changes to its environment.

    With `own_session` the child calls `setsid`. `namespace` is the file of the network namespace to run in;
    empty for that of the fork server.
    """

    arguments: list[str]
    environment: dict[str, str | None]
    folder: str
    own_session: bool = True
    namespace: str = ""


class Started(msgspec.Struct, frozen=True, tag="Born"):
    """The child runs; the message carries a file descriptor of its process."""

    process_id: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The child has ended, with an exit code as in `subprocess`: negative for the signal that killed it."""

    code: int


ServerMessage = Started | Ended


def is_possible() -> bool:
    """Whether this machine supports fork servers; only on Linux do frameworks survive a fork."""
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):  # an old or emulated system
        return False
    return True


class ForkServer:
    """The fork server, from its parent's side. Once that closes it or dies, it ends after its last child."""

    def __init__(
        self, modules: Sequence[str], environment: Mapping[str, str], own_session: bool = True
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, "-m", "farflung.localhost.forkserver_process", *modules, ROOM_FOR_NAMES]
        with theirs:
            self._process = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={**os.environ, **environment},
                start_new_session=own_session,
            )
        self._line = ours

    def fork(self, fork_request: ForkRequest, files: tuple[int, int, int]) -> Forked:
        """Request another child with these files as standard input, output and error; does not wait for it.

        Raises OSError if the fork server is gone, or the request is larger than it reads at once.
        """
        request = msgspec.msgpack.encode(fork_request)
        if len(request) > MOST_BYTES:
            raise OSError(
                errno.EMSGSIZE, f"a fork request has {len(request)} bytes, the limit is {MOST_BYTES}"
            )
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                socket.send_fds(self._line, [request], [*files, theirs.fileno()])
            except OSError:
                ours.close()
                raise
        return Forked(ours)

    def kill(self) -> None:
        """Kill the fork server; its children live on."""
        self._process.kill()

    def close(self, grace_seconds: float) -> None:
        """Let the fork server end after its last child and reap it; kill it after `grace_seconds`."""
        self._line.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_seconds)
        self.kill()
        self._process.wait()


@dataclass
class Forked:
    """A forked child: its process id once it runs, its exit code once it has ended.

    `is_over` without a code means that its exit code is unknown: the fork server was killed, or no file
    descriptor was left for the process. To wait, poll `fileno` and then call `read_message`.
    """

    _line: socket.socket
    process_id: int | None = None
    code: int | None = None
    is_over: bool = False
    _handle: int = -1  # of the process, once it runs and as long as it is not over
    _asked: int = 0  # the last signal

    def fileno(self) -> int:
        """A file descriptor that is readable when `read_message` has something to read."""
        return self._line.fileno() if self._line.fileno() >= 0 else self._handle

    def read_message(self) -> None:
        """Read the next message of the fork server, or the end of the process; blocks until there is one."""
        if self._line.fileno() < 0:  # without the fork server, the process's own descriptor shows its end
            waiting = poll()
            waiting.register(self._handle, POLLIN)
            waiting.poll()
            self._end(None)
            return
        data, descriptors, _, _ = socket.recv_fds(self._line, MOST_BYTES, 1)
        news = msgspec.msgpack.decode(data, type=ServerMessage) if data else None
        if isinstance(news, Started) and descriptors:
            self.process_id, self._handle = news.process_id, descriptors[0]
            if self._asked:
                self.signal(self._asked)
        elif isinstance(news, Ended) or self._handle < 0:
            self._end(news.code if isinstance(news, Ended) else None)
        else:
            self._line.close()

    def signal(self, number: int) -> None:
        """Send a signal to the process; if it is not forked yet, it gets the signal when it is."""
        self._asked = number
        if self._handle >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def _end(self, code: int | None) -> None:
        self.code, self.is_over = code, True
        self._line.close()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
