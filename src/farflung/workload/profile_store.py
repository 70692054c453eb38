"""Store measured times on disk, so that each kind of node is measured once per device.

There is one file for each device, framework version, opset and number of threads, because times depend on
them.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from farflung.files import write_atomically
from farflung.workload.profile import DeviceProfile, OpTime, UpdateTime

MOST_TIMES = 20_000
"""Limit on the times in a file, some two hundred models; a full file starts again."""
MOST_BYTES = 16 * 2**20
_METHOD = b"2"
"""Version of the measuring method; raise it to ignore older times."""


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The properties of a device that times depend on."""

    name: Annotated[str, Meta(max_length=200)]
    framework: Annotated[str, Meta(max_length=200)]
    opset: Annotated[str, Meta(max_length=200)]
    threads: Annotated[int, Meta(ge=1, le=100_000)]


@dataclass(frozen=True)
class Known:
    """Times by signature."""

    nodes: Mapping[str, OpTime] = field(default_factory=dict)
    updates: Mapping[str, UpdateTime] = field(default_factory=dict)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    device: Device
    nodes: Annotated[list[OpTime], Meta(max_length=MOST_TIMES)]
    updates: Annotated[list[UpdateTime], Meta(max_length=MOST_TIMES)]


def cache_folder() -> Path:
    """Where this user's programs keep what they can make again: `cache` in FARFLUNG_HOME if that is set."""
    if home := os.environ.get("FARFLUNG_HOME"):
        return Path(home).expanduser() / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "farflung"


def device_name() -> str:
    """The processor's name with its number of cores, and the machine's."""
    model = platform.processor() or platform.machine()
    with suppress(OSError), Path("/proc/cpuinfo").open() as lines:
        model = next(
            (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model
        )
    return f"{model}, {os.cpu_count()} cores, {platform.node()}"[:200]


def recall(device: Device, folder: Path) -> Known:
    """The stored times of a device; empty if there is no readable file."""
    with suppress(OSError, msgspec.DecodeError, ValueError, RecursionError):
        with _path(device, folder).open("rb") as file:
            kept = msgspec.json.decode(file.read(MOST_BYTES + 1), type=_File)
        if kept.device == device:
            return Known({t.signature: t for t in kept.nodes}, {t.signature: t for t in kept.updates})
    return Known()


def remember(device: Device, profile: DeviceProfile, folder: Path) -> None:
    """Add a profile's times to the stored ones of its device; does nothing if the folder is not writable."""
    before = recall(device, folder)
    nodes = {**before.nodes, **{time.signature: time for time in profile.times}}
    updates = {**before.updates, **{time.signature: time for time in profile.updates}}
    if max(len(nodes), len(updates)) > MOST_TIMES:
        nodes = {time.signature: time for time in profile.times[:MOST_TIMES]}
        updates = {time.signature: time for time in profile.updates[:MOST_TIMES]}
    data = msgspec.json.encode(_File(device, list(nodes.values()), list(updates.values())))
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(_path(device, folder), data)


def _path(device: Device, folder: Path) -> Path:
    key = hashlib.sha256(_METHOD + msgspec.json.encode(device)).hexdigest()[:16]
    return folder / f"times-{key}.json"
