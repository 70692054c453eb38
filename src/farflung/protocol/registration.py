"""Messages with which a worker registers: its device, its addresses, and what it still holds of a job."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from farflung.plans.ability import Ability, Lacks
from farflung.plans.rates import Rates
from farflung.plans.topology import LEAST_MBPS, MOST_MBPS, MOST_TFLOPS
from farflung.protocol.copies import MOST_HELD, HeldCopy
from farflung.protocol.fields import Addresses, Count, Id, Message, Opset, Text
from farflung.protocol.membership import Within


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The device that a worker offers.

    `memory_bytes` is what its owner lets jobs use, `framework` the framework that it computes with, `lacks`
    the ops of the opset and the element types that it refuses. `tflops` is the rate that it sustains in
    float32 matrix products without TF32, `rates` are its others, as measured by the worker when it started
    and later (`Measured`); 0 and None are unknown. `kernels` is the digest of what its kernels compute
    (`runtime.kernels`): devices with equal ones may repeat each other's steps bit for bit. Empty is unknown.

    Devices with the same `machine` share its `cores`, of which a task keeps `threads` busy; empty: they share
    none, or it is unknown.
    """

    kind: Id
    name: Text
    cores: Count
    memory_bytes: Count
    framework: Text
    opset: Opset
    tflops: Annotated[float, Meta(ge=0, le=MOST_TFLOPS)] = 0.0
    lacks: Lacks = ()
    kernels: Annotated[str, Meta(max_length=64)] = ""
    rates: Rates | None = None
    machine: Annotated[str, Meta(max_length=64)] = ""
    threads: Count = 1

    @property
    def least_tflops(self) -> float:
        """The slowest rate at which its products may compute."""
        slow = None if self.rates is None else self.rates.bfloat16_tflops
        return self.tflops if slow is None else min(self.tflops, slow)

    @property
    def ability(self) -> Ability:
        """The ops and element types that the device can run."""
        return Ability(self.opset.version, self.lacks, self.framework, self.kind, self.kernels)


class HomeLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker's access line as its owner declares it; None: to be measured.

    Without `probes` the worker takes no part in surveys, which send bytes only to measure links.
    """

    up_mbps: Annotated[float, Meta(ge=LEAST_MBPS, le=MOST_MBPS)] | None = None
    down_mbps: Annotated[float, Meta(ge=LEAST_MBPS, le=MOST_MBPS)] | None = None
    probes: bool = True


Seal = Annotated[bytes, Meta(max_length=64)]


class Standing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker that registers again still holds of an attempt.

    `unit` is the unit that it runs, or runs next: it has applied all units before. A worker whose `phase` is
    loaded waits for `Begin`. A broken one cannot go on, and says why again (`Broken`).
    """

    job: Id
    attempt: Count
    unit: Count
    phase: Literal["loading", "loaded", "running", "collecting", "broken"]


MOST_HOMES = 100
"""The most submitters of which one worker is a home worker."""


class Register(Message, frozen=True):
    """First message of a worker: peers can dial it at `addresses` (HOST:PORT); `boot` is new per process.

    `relay_mbps` is the rate at which it relays links of others; 0 if it does not. `line` is its access line.
    `standing` is the attempt that it holds from an earlier session, if any. `generation` and `seal` are those
    of the newest broker that admitted this process: a broker of an earlier generation has been replaced.

    `held` are the copies on its disk, which may take `disk_bytes` (0: it holds none). The broker answers with
    what to keep of each job (`Retain`).

    A worker that has begun to leave (`Leaving`) goes on with that, in what is left of its time. Its owner
    says that it is the home worker of the submitters `home_of` (`plans.wishes.KeepHome`).
    """

    device: Device
    site: Text
    addresses: Addresses
    boot: Id
    relay_mbps: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    line: HomeLine = HomeLine()
    standing: Standing | None = None
    generation: Count = 0
    held: Annotated[list[HeldCopy], Meta(max_length=MOST_HELD)] = msgspec.field(default_factory=list)
    disk_bytes: Count = 0
    seal: Seal = b""
    leaving_seconds: Within | None = None
    home_of: Annotated[list[Id], Meta(max_length=MOST_HOMES)] = msgspec.field(default_factory=list)


class Registered(Message, frozen=True):
    """The broker admits the worker: to the backup pool, or to the attempt that it holds.

    `generation` is the epoch of the broker's store, which each start raises; 0 if the broker is older. `seal`
    shows to other brokers of the same authority that it is not made up. Links with the members that are
    `removed` must not be accepted.
    """

    worker: Id
    generation: Count = 0
    seal: Seal = b""
    removed: list[Id] = msgspec.field(default_factory=list)


class Moved(Message, frozen=True):
    """The addresses of a registered worker have changed."""

    addresses: Addresses


class Measured(Message, frozen=True):
    """A registered worker has measured its device again, while it was idle; the fields are as in `Device`."""

    tflops: Annotated[float, Meta(ge=0, le=MOST_TFLOPS)]
    rates: Rates | None = None


class PeerMoved(Message, frozen=True):
    """To the neighbours of `worker` in a job: its addresses have changed."""

    worker: Id
    addresses: Addresses
