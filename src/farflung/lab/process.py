"""The process of a lab: it owns the namespaces and runs the switch between them.

`python -m farflung.lab.process` takes a `Start` on standard input, answers with a `Started` on standard
output, and runs until a signal, a request or the end of its parent tells it to stop. Then it removes all.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
from types import FrameType

import msgspec

from farflung.errors import LabError
from farflung.lab import namespaces, registry, tun
from farflung.lab.attendant import Attendant
from farflung.lab.control_server import ControlServer
from farflung.lab.fabric import Fabric
from farflung.lab.spec import LabSpec
from farflung.lab.stats import Meter
from farflung.lab.switch import Switch, take_priority


class Start(msgspec.Struct, frozen=True):
    """What a switch is told: the lab's name, what it is, and which process it must not outlive."""

    name: str
    spec: LabSpec
    parent: int


class Started(msgspec.Struct, frozen=True):
    """What a switch answers: an empty `error` once the lab is up."""

    error: str = ""


class _Stopped(BaseException):
    """A signal asked the switch to end."""


def _stop(number: int, frame: FrameType | None) -> None:
    _ignore_signals()
    raise _Stopped


def _ignore_signals() -> None:
    """What is to be removed is removed in peace."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _open_devices(start: Start) -> list[int]:
    devices = []
    for port, node in enumerate(start.spec.nodes):
        with tun.inside(namespaces.device_of(start.name, node)):
            devices.append(tun.open_tun(start.spec.segmentation_offload))
        namespaces.configure(start.name, node, port + 1, start.spec.mtu)
    return devices


def _tell(started: Started) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(started) + b"\n")
    sys.stdout.buffer.flush()


def _serve(start: Start) -> None:
    """Bring a lab up, run it, and take it down whatever happens."""
    rooms = namespaces.all_of(start.name, start.spec.nodes)
    parent = os.pidfd_open(start.parent)
    registry.claim(start.name, rooms)
    try:
        namespaces.create(rooms)
        devices = _open_devices(start)
        fabric, meter = Fabric(start.spec), Meter(*take_priority())
        attendant = Attendant(start.name, fabric, meter)
        with select.epoll() as epoll:
            # Held until this function ends: that its connections close tells clients that all is removed.
            server = ControlServer(registry.socket_path(start.name), epoll, attendant.answer)
            _tell(Started())
            Switch(devices, fabric, attendant, meter).run(epoll, server, parent)
    finally:
        _ignore_signals()
        namespaces.remove(rooms)
        registry.release(start.name)


def main() -> int:
    """What the process does; its exit code."""
    signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGTERM, _stop)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a descriptor a node
    try:
        _serve(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Start))
    except LabError as error:
        _tell(Started(str(error)))
        return error.exit_code
    except _Stopped:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
