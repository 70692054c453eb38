"""TUN devices inside network namespaces, and the kernel calls that Python 3.11 has no function for."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from farflung.errors import LabError

DEVICE = Path("/dev/net/tun")
NAMESPACES = Path("/run/netns")
INTERFACE = "wan0"

_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN = 0x0001
_IFF_NO_PI = 0x1000
_IFF_VNET_HDR = 0x4000
_OFFLOADS = 1 | 2 | 4  # checksums, TCP segmentation over IPv4, over IPv6
_CLONE_NEWNET = 0x40000000
_CLOCK_MONOTONIC = 1
_TIMER_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_TIMER_ABSOLUTE = 1

_DROPPED_COLUMN = 12  # of /proc/net/dev: packets that could not be sent

_libc = ctypes.CDLL(None, use_errno=True)


class _TimerSpec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns")]


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Run the block with this thread in a network namespace."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    there = os.open(NAMESPACES / namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(there, _CLONE_NEWNET))
        yield
    finally:
        _check(_libc.setns(before, _CLONE_NEWNET))
        os.close(before)
        os.close(there)


def open_tun(offload: bool) -> int:
    """A descriptor of a new TUN device `wan0` in this thread's namespace; closing it removes the device."""
    try:
        descriptor = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise LabError(f"cannot open {DEVICE}: {error.strerror}") from None
    flags = _IFF_TUN | _IFF_NO_PI | (_IFF_VNET_HDR if offload else 0)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), flags))
        if offload:
            fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _OFFLOADS)
    except OSError as error:
        os.close(descriptor)
        raise LabError(f"cannot make a TUN device: {error.strerror}") from None
    return descriptor


def unread_packets(namespace: str) -> int:
    """Packets that `wan0` of a namespace has dropped so far because they were not read soon enough."""
    with inside(namespace):
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    counts = next((line.split() for line in lines if line.split()[0] == f"{INTERFACE}:"), None)
    return 0 if counts is None else int(counts[_DROPPED_COLUMN])


class Timer:
    """A descriptor that becomes readable at a time of `time.monotonic`; epoll counts in milliseconds."""

    def __init__(self) -> None:
        self.descriptor: int = _check(_libc.timerfd_create(_CLOCK_MONOTONIC, _TIMER_FLAGS))

    def set(self, at: float) -> None:
        """Make it readable at `at`, in seconds; replaces any earlier time."""
        seconds = int(at)
        spec = _TimerSpec(0, 0, seconds, max(1, int((at - seconds) * 1e9)))
        _check(_libc.timerfd_settime(self.descriptor, _TIMER_ABSOLUTE, ctypes.byref(spec), None))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
