"""The fork server's own process: it imports, and then only forks and reaps (see `forkserver.py`).

Nothing here starts a thread or computes: the child of a process with threads may wait forever for a lock that
one of them held. If an import starts threads nevertheless, children import for themselves.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from farflung.localhost.forkserver import MOST_BYTES, Ended, ForkRequest, ServerMessage, Started

_LINE = 0  # standard input, on which the parent requests forks
_FILES = 4  # per child: standard input, output and error, and the socket on which the parent follows it
_THREADS = Path("/proc/self/task")
_CLONE_NEWNET = 0x40000000
_ARGUMENTS_AT = 45  # index in /proc/self/stat, counted from the field after the name


def main() -> None:
    """Import the modules that the command line names, then fork until the parent is gone.

    In each child, run the command that was requested.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C at a terminal, the parent ends the others
    for module in sys.argv[1:-1]:
        with suppress(Exception):  # children fail at the same import, and report it in their logs
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # otherwise each child's first collection would write to, and so copy, all shared memory
    is_alone = len(list(_THREADS.iterdir())) == 1
    fork_request = Forks().serve()
    if fork_request is not None:
        become(fork_request)
        if not is_alone:
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
        runpy.run_module("farflung", run_name="__main__", alter_sys=True)


class Forks:
    """The children that have not ended, by the descriptors of their processes."""

    def __init__(self) -> None:
        self._line = socket.socket(fileno=os.dup(_LINE))
        self._lines: dict[int, tuple[int, socket.socket]] = {}

    def serve(self) -> ForkRequest | None:
        """Fork and reap; returns its request in each child, None in the server when all are gone."""
        is_asked = True
        while is_asked or self._lines:
            waiting = select.poll()
            for descriptor in (*([self._line.fileno()] if is_asked else []), *self._lines):
                waiting.register(descriptor, select.POLLIN)
            for descriptor, _ in waiting.poll():
                if descriptor != self._line.fileno():
                    self._reap(descriptor)
                    continue
                request, files, _, _ = socket.recv_fds(self._line, MOST_BYTES, _FILES)
                is_asked = bool(request)
                if is_asked:
                    fork_request = msgspec.msgpack.decode(request, type=ForkRequest)
                    if self._fork(files):
                        return fork_request
        return None

    def _fork(self, files: Sequence[int]) -> bool:
        """Fork; returns true in the child, in which all files of the fork server are closed."""
        if len(files) < _FILES:  # too many files are open here; closing the socket tells the parent
            for descriptor in files:
                os.close(descriptor)
            return False
        *standard, last = files
        notify = socket.socket(fileno=last)
        try:
            process = os.fork()
        except OSError as error:
            os.write(standard[2], f"error: cannot be started: {error.strerror}\n".encode())
            _tell(notify, Ended(1))
            notify.close()
            process = -1
        if process == 0:
            for line in (self._line, notify, *(line for _, line in self._lines.values())):
                line.close()
            for descriptor in self._lines:
                os.close(descriptor)
            for number, descriptor in enumerate(standard):
                os.dup2(descriptor, number)
        elif process > 0:
            handle = os.pidfd_open(process)
            self._lines[handle] = process, notify
            _tell(notify, Started(process), handle)
        for descriptor in standard:
            os.close(descriptor)
        return process == 0

    def _reap(self, handle: int) -> None:
        process, line = self._lines.pop(handle)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        os.close(handle)
        _tell(line, Ended(code))
        line.close()


def _tell(line: socket.socket, news: ServerMessage, *descriptors: int) -> None:
    with suppress(OSError):  # the parent is gone
        socket.send_fds(line, [msgspec.msgpack.encode(news)], descriptors)


def become(fork_request: ForkRequest) -> None:
    """Run `farflung ARGUMENTS` in this process as if it had been started in that folder and environment."""
    if fork_request.own_session:
        os.setsid()
    if fork_request.namespace:
        _enter(fork_request.namespace)
    os.chdir(fork_request.folder)
    if not sys.flags.safe_path:
        sys.path[0] = fork_request.folder
    for name, value in fork_request.environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tempfile.tempdir = None  # so that it is read from the environment again
    sys.argv = ["farflung", *fork_request.arguments]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]
    _show_as(sys.orig_argv)


def _enter(namespace: str) -> None:
    """Move this process, which has one thread, to another network namespace."""
    there = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(there, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    os.close(there)


def _show_as(argv: Sequence[str]) -> None:
    """Make `ps` and `top` show this command by overwriting the fork server's arguments.

    The kernel shows them up to the first NUL if the last byte is not NUL (proc(5), cmdline).
    """
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = (int(field) for field in fields[_ARGUMENTS_AT : _ARGUMENTS_AT + 2])
        room = end - start
        if start and room > 2:
            title = " ".join(argv).encode()[: room - 2]
            ctypes.memmove(start, title.ljust(room - 1, b"\0") + b".", room)


if __name__ == "__main__":
    main()
