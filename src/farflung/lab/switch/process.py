"""The process of a lab: it owns the namespaces and runs the switch between them.

`python -m farflung.lab.switch.process` takes a `Start` on standard input, answers with a `Started` on
standard output, and runs until a signal, a request or the end of its parent. Then it removes all.
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
from farflung.lab.switch.namespaces import Leaving
from farflung.lab.switch.stats import Meter
from farflung.lab.switch.switch import Switch, take_priority


class Start(msgspec.Struct, frozen=True):
    """The arguments of a switch: the lab's name, its spec, and the process that it must not outlive."""

    name: str
    spec: LabSpec
    parent: int


class Started(msgspec.Struct, frozen=True):
    """What a switch answers: an empty `error` once the lab is up."""

    error: str = ""


def _heed_signals() -> int:
    """A descriptor that can be read once a signal asked for the end, which so interrupts nothing."""
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


def _tell(started: Started) -> None:
    with suppress(BrokenPipeError):  # the parent is gone, which is detected elsewhere
        os.write(sys.stdout.fileno(), msgspec.json.encode(started) + b"\n")


class _Farewell:
    """The end of a lab: it can be asked nothing any more, and what runs in it is to end."""

    def __init__(self, lab: str, rooms: list[str]) -> None:
        self._lab, self._rooms = lab, rooms
        self._leaving: Leaving | None = None

    def are_gone(self) -> bool:
        """Whether no process is left in the lab; the first call begins to end them."""
        if self._leaving is None:
            registry.socket_path(self._lab).unlink(missing_ok=True)
            self._leaving = Leaving(self._rooms)
        return self._leaving.are_gone()


def _serve(start: Start, parent: int, asked_to_end: int) -> None:
    """Bring a lab up, run it until a descriptor says that it is enough, and take it down whatever happens."""
    rooms = namespaces.all_of(start.name, start.spec.nodes)
    registry.claim(start.name, rooms)
    try:
        namespaces.create(rooms)
        devices = _open_devices(start)
        fabric, meter = Fabric(start.spec), Meter(*take_priority())
        attendant = ControlHandler(start.name, fabric, meter)
        with select.epoll() as epoll:
            # Held until this function ends: that its connections close tells clients that all is removed.
            server = ControlServer(registry.socket_path(start.name), epoll, attendant.answer)
            _tell(Started())
            switch = Switch(devices, fabric, attendant, meter)
            switch.run(epoll, server, (parent, asked_to_end), _Farewell(start.name, rooms).are_gone)
    finally:
        registry.socket_path(start.name).unlink(missing_ok=True)
        namespaces.remove(rooms)
        registry.release(start.name)


def main() -> int:
    """What the process does; its exit code."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a descriptor a node
    told = sys.stdin.buffer.read()
    asked_to_end = _heed_signals()  # nothing was made before
    try:
        start = msgspec.msgpack.decode(told, type=Start)
        parent = os.pidfd_open(start.parent)
    except (msgspec.DecodeError, ProcessLookupError):  # the parent is gone
        return 1
    try:
        _serve(start, parent, asked_to_end)
    except LabError as error:
        _tell(Started(str(error)))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
