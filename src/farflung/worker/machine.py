"""Which processes share this machine's cores: workers that name the same machine compute one after the other.

A fleet learns no more than whether two of its workers share one.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")
NETWORK = Path("/proc/self/ns/net")
LENGTH = 16


def machine_of(kind: str) -> str:
    """A name for the cores that a device of this kind computes on; empty if unknown, or if it has its own.

    Nodes of a lab and containers with networks of their own count as machines of their own.
    """
    if kind != "cpu":
        return ""
    with suppress(OSError):
        known = f"{BOOT.read_text().strip()} {NETWORK.readlink()}"
        return hashlib.sha256(known.encode()).hexdigest()[:LENGTH]
    return ""


def usable_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
