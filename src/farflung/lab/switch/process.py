"""The process of a lab: it owns the namespaces and runs the switch between them.

`python -m farflung.lab.switch.process` reads a `Start` from standard input, answers with a `Started` on
standard output, and runs until a signal, a request or the end of its parent. Then it removes everything.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
from contextlib import suppress

import msgspec

from farflung.errors import LabError
from farflung.lab import registry
from farflung.lab.spec import LabSpec
from farflung.lab.switch import namespaces, tun
from farflung.lab.switch.control_server import ControlHandler, ControlServer
from farflung.lab.switch.fabric import Fabric
from farflung.lab.switch.namespaces import ProcessReaper
from farflung.lab.switch.stats import Meter
from farflung.lab.switch.switch import Switch, take_priority


class Start(msgspec.Struct, frozen=True):
    """The arguments of a switch: the lab's name, its spec, and the process that it must not outlive."""

    name: str
    spec: LabSpec
    parent: int


class Started(msgspec.Struct, frozen=True):
    """A switch's answer: an empty `error` once the lab is up."""

    error: str = ""


def _open_signal_pipe() -> int:
    """A descriptor that becomes readable after SIGINT or SIGTERM; the signals interrupt nothing."""
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)
    return read_end


def _open_devices(start: Start) -> list[int]:
    devices = []
    for port, node in enumerate(start.spec.nodes):
        with tun.inside(namespaces.device_of(start.name, node)):
            devices.append(tun.open_tun(start.spec.segmentation_offload))
        namespaces.configure(start.name, node, port + 1, start.spec.mtu)
    return devices


def _reply(started: Started) -> None:
    with suppress(BrokenPipeError):  # the parent is gone, which is detected elsewhere
        os.write(sys.stdout.fileno(), msgspec.json.encode(started) + b"\n")


class _Shutdown:
    """The end of a lab: closes its socket to new clients, and ends the processes in it."""

    def __init__(self, lab: str, namespaces_of_lab: list[str]) -> None:
        self._lab, self._namespaces = lab, namespaces_of_lab
        self._reaper: ProcessReaper | None = None

    def are_gone(self) -> bool:
        """Whether no process is left in the lab; the first call starts to end them."""
        if self._reaper is None:
            registry.socket_path(self._lab).unlink(missing_ok=True)
            self._reaper = ProcessReaper(self._namespaces)
        return self._reaper.are_gone()


def _serve(start: Start, parent: int, signal_pipe: int) -> None:
    """Bring a lab up, run it until one of the descriptors is readable, and take it down in any case."""
    namespaces_of_lab = namespaces.all_of(start.name, start.spec.nodes)
    registry.claim(start.name, namespaces_of_lab)
    try:
        namespaces.create(namespaces_of_lab)
        devices = _open_devices(start)
        fabric, meter = Fabric(start.spec), Meter(*take_priority())
        handler = ControlHandler(start.name, fabric, meter)
        with select.epoll() as epoll:
            # Its connections close when this function ends: so clients know that everything is removed.
            server = ControlServer(registry.socket_path(start.name), epoll, handler.answer)
            _reply(Started())
            switch = Switch(devices, fabric, handler, meter)
            switch.run(
                epoll, server, (parent, signal_pipe), _Shutdown(start.name, namespaces_of_lab).are_gone
            )
    finally:
        registry.socket_path(start.name).unlink(missing_ok=True)
        namespaces.remove(namespaces_of_lab)
        registry.release(start.name)


def main() -> int:
    """Run the switch's process; returns its exit code."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # one descriptor per node
    request = sys.stdin.buffer.read()
    signal_pipe = _open_signal_pipe()  # before anything is created
    try:
        start = msgspec.msgpack.decode(request, type=Start)
        parent = os.pidfd_open(start.parent)
    except (msgspec.DecodeError, ProcessLookupError):  # the parent is gone
        return 1
    try:
        _serve(start, parent, signal_pipe)
    except LabError as error:
        _reply(Started(str(error)))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
