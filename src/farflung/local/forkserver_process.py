"""What a nursery does: it imports, and then only forks and reaps (`nursery.py` is its parent's side).

Nothing here makes a thread, and nothing computes: who is forked of a process with threads may wait for ever
for a lock that one of them held. Where an import makes threads all the same, children import for themselves.
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

from farflung.local.forkserver import MOST_BYTES, Birth, Born, Ended, News

_LINE = 0  # standard input: where its parent asks for births
_FILES = 4  # of each: standard input, output and error, and the line on which its parent is told of it
_THREADS = Path("/proc/self/task")
_CLONE_NEWNET = 0x40000000
_ARGUMENTS_AT = 45  # of /proc/self/stat, from the field behind the name on


def main() -> None:
    """Import what the command line names; then fork until the parent is gone, and be who was forked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever is interrupted at a terminal has the others end
    for module in sys.argv[1:-1]:
        with suppress(Exception):  # whoever is forked fails at the same, and says so where it is read
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # else the first collection of each child would write to, and so copy, all that was shared
    is_alone = len(list(_THREADS.iterdir())) == 1
    birth = Forks().serve()
    if birth is not None:
        become(birth)
        if not is_alone:
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
        runpy.run_module("farflung", run_name="__main__", alter_sys=True)


class Forks:
    """Those who were forked and have not ended, each by the descriptor of its process."""

    def __init__(self) -> None:
        self._line = socket.socket(fileno=os.dup(_LINE))
        self._lines: dict[int, tuple[int, socket.socket]] = {}

    def serve(self) -> Birth | None:
        """Fork and reap; returns in each child what that is to be, and without anything when all is over."""
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
                    birth = msgspec.msgpack.decode(request, type=Birth)
                    if self._fork(files):
                        return birth
        return None

    def _fork(self, files: Sequence[int]) -> bool:
        """Whether this is the child, in which nothing of the nursery is open any more."""
        if len(files) < _FILES:  # this process has too many open: the line that is closed here says so
            for descriptor in files:
                os.close(descriptor)
            return False
        *standard, last = files
        told = socket.socket(fileno=last)
        try:
            process = os.fork()
        except OSError as error:
            os.write(standard[2], f"error: cannot be started: {error.strerror}\n".encode())
            _tell(told, Ended(1))
            told.close()
            process = -1
        if process == 0:
            for line in (self._line, told, *(line for _, line in self._lines.values())):
                line.close()
            for descriptor in self._lines:
                os.close(descriptor)
            for number, descriptor in enumerate(standard):
                os.dup2(descriptor, number)
        elif process > 0:
            handle = os.pidfd_open(process)
            self._lines[handle] = process, told
            _tell(told, Born(process), handle)
        for descriptor in standard:
            os.close(descriptor)
        return process == 0

    def _reap(self, handle: int) -> None:
        process, line = self._lines.pop(handle)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        os.close(handle)
        _tell(line, Ended(code))
        line.close()


def _tell(line: socket.socket, news: News, *descriptors: int) -> None:
    with suppress(OSError):  # nobody listens any more
        socket.send_fds(line, [msgspec.msgpack.encode(news)], descriptors)


def become(birth: Birth) -> None:
    """Be what `python -m farflung ARGUMENTS` would be, started in that folder and environment."""
    if birth.own_session:
        os.setsid()
    if birth.namespace:
        _enter(birth.namespace)
    os.chdir(birth.folder)
    if not sys.flags.safe_path:
        sys.path[0] = birth.folder
    for name, value in birth.environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tempfile.tempdir = None  # as the environment has it
    sys.argv = ["farflung", *birth.arguments]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]
    _show_as(sys.orig_argv)


def _enter(namespace: str) -> None:
    """Have this process, which has one thread, in another network namespace."""
    there = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(there, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    os.close(there)


def _show_as(argv: Sequence[str]) -> None:
    """Have `ps` and `top` show this command in place of the nursery's, over whose arguments it is written.

    The kernel shows what is there up to the first NUL where the last byte is none (proc(5), cmdline).
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
