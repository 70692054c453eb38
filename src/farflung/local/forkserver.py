"""A process that has imported a framework, of which others are forked: they start at once and share memory.

`import torch` takes two seconds of a core and 200 MB of each process that does it. A nursery does it once; it
computes nothing, so it has one thread, and whoever is forked of it begins as if it had imported all that.
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
"""Those that may be forked once they are imported; XLA has threads from then on."""
WORKER_MODULES = (
    "farflung.runtime.torch_backend.backend",
    "farflung.worker.service",
    "farflung.cli.main",
)
"""What a worker imports."""
MOST_BYTES = 1 << 17
ROOM_FOR_NAMES = " " * 1024
"""An argument that says nothing: there goes the name under which `ps` shows a child."""


class Birth(msgspec.Struct, frozen=True):
    """Who is to be forked: `farflung ARGUMENTS` in a folder, with what is other in its environment.

    With `own_session` it leads one, else it is in that of its nursery. `namespace` is the file of a network
    namespace in which it runs; empty for where the nursery is.
    """

    arguments: list[str]
    environment: dict[str, str | None]
    folder: str
    own_session: bool = True
    namespace: str = ""


class Born(msgspec.Struct, frozen=True, tag=True):
    """It runs; a descriptor of its process comes along."""

    process_id: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """It has ended, with a code as `subprocess` gives it: below 0 the signal that killed it."""

    code: int


News = Born | Ended


def is_possible() -> bool:
    """Whether this machine can have nurseries: elsewhere than on Linux a framework may not survive a fork."""
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):  # an old system, or one that is imitated
        return False
    return True


class ForkServer:
    """The process, as its parent sees it. When that is gone, or closes it, it ends with its last child."""

    def __init__(
        self, modules: Sequence[str], environment: Mapping[str, str], own_session: bool = True
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, "-m", "farflung.local.forkserver_process", *modules, ROOM_FOR_NAMES]
        with theirs:
            self._process = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={**os.environ, **environment},
                start_new_session=own_session,
            )
        self._line = ours

    def fork(self, birth: Birth, files: tuple[int, int, int]) -> Forked:
        """Have it fork one more, with these as standard input, output and error; does not wait for it.

        Raises OSError where the nursery is gone, or this is more than it reads at once.
        """
        request = msgspec.msgpack.encode(birth)
        if len(request) > MOST_BYTES:
            raise OSError(errno.EMSGSIZE, f"a birth takes {len(request)} bytes, at most {MOST_BYTES} may be")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                socket.send_fds(self._line, [request], [*files, theirs.fileno()])
            except OSError:
                ours.close()
                raise
        return Forked(ours)

    def kill(self) -> None:
        """End it at once; those who were forked live on."""
        self._process.kill()

    def close(self, grace_seconds: float) -> None:
        """Let it end, as it does when its last child has, and reap it; after so long it is killed."""
        self._line.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_seconds)
        self.kill()
        self._process.wait()


@dataclass
class Forked:
    """Who was forked, as far as the nursery has told: its id once it runs, its code once it has ended.

    `is_over` without a code is somebody of whom nothing more is known: the nursery was killed, or no
    descriptor was left for its process, here or there. Whoever waits polls `fileno`, and then calls `hear`.
    """

    _line: socket.socket
    process_id: int | None = None
    code: int | None = None
    is_over: bool = False
    _handle: int = -1  # of the process, once it runs and as long as it is not over
    _asked: int = 0  # the last signal

    def fileno(self) -> int:
        """What is readable when there is something to hear."""
        return self._line.fileno() if self._line.fileno() >= 0 else self._handle

    def hear(self) -> None:
        """Take in what the nursery tells, or that the process ended; waits for it."""
        if self._line.fileno() < 0:  # without a nursery the process itself tells that it ended
            waiting = poll()
            waiting.register(self._handle, POLLIN)
            waiting.poll()
            self._end(None)
            return
        data, descriptors, _, _ = socket.recv_fds(self._line, MOST_BYTES, 1)
        news = msgspec.msgpack.decode(data, type=News) if data else None
        if isinstance(news, Born) and descriptors:
            self.process_id, self._handle = news.process_id, descriptors[0]
            if self._asked:
                self.signal(self._asked)
        elif isinstance(news, Ended) or self._handle < 0:
            self._end(news.code if isinstance(news, Ended) else None)
        else:
            self._line.close()

    def signal(self, number: int) -> None:
        """Send it a signal, if it runs; who is still to be born gets it then."""
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
