"""A topology as data: workers with their devices, and latency and bandwidth of each link between them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import msgspec

from farflung.plans.ability import MOST_LACKS, OP_NAME, Ability
from farflung.plans.rates import Arithmetic, Rates

Row = tuple[float, ...]
Matrix = tuple[Row, ...]

MOST_WORKERS = 2048
MOST_TFLOPS = 1e6
MOST_GIGABYTES = 1e6
MOST_OPSET = 10_000
MOST_MILLISECONDS = 60_000.0
MOST_CORES = 100_000
LEAST_MBPS, MOST_MBPS = 1e-3, 1e6

WORKER_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")  # what a worker's certificate can name
_OP = re.compile(OP_NAME)


class WorkerSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One worker: its id, its site, its device, and the access line of its home.

    `up_mbps` and `down_mbps` are the rates that all of its links share; None means no shared limit. A worker
    `behind_nat` cannot be dialled. Workers with the same `machine` share its `cores`: at most that many
    compute at a time. `opset` is the opset version that the worker supports (0: every op), `lacks` lists ops
    of it that its backend does not support, and `framework` is the backend's name and version. `tflops` is
    the rate of its float32 products, `rates` say more, such as those of TF32 and bfloat16.
    """

    id: str
    site: str
    tflops: float
    memory_gb: float
    up_mbps: float | None = None
    down_mbps: float | None = None
    behind_nat: bool = False
    machine: str | None = None
    cores: int | None = None
    opset: int = 0
    lacks: tuple[str, ...] = ()
    framework: str = ""
    rates: Rates | None = None

    def __post_init__(self) -> None:
        if not WORKER_ID.fullmatch(self.id):
            raise ValueError(
                f"{self.id[:60]!r} cannot be a worker's id: use 1 to 40 lowercase letters, digits and '-', "
                "with no '-' at either end"
            )
        if len(self.site) > 128 or not self.site.isprintable():
            raise ValueError(f"worker {self.id}: site must be at most 128 printable characters")
        whose = f"of worker {self.id}"
        _check(f"tflops {whose}", self.tflops, 0, MOST_TFLOPS, above=True)
        _check(f"memory_gb {whose}", self.memory_gb, 0, MOST_GIGABYTES, above=True)
        for name, rate in (("up_mbps", self.up_mbps), ("down_mbps", self.down_mbps)):
            if rate is not None:
                _check(f"{name} {whose}", rate, LEAST_MBPS, MOST_MBPS)
        if (self.machine is None) != (self.cores is None):
            raise ValueError(f"worker {self.id}: machine and cores must be given together")
        if self.machine is not None and not (0 < len(self.machine) <= 128 and self.machine.isprintable()):
            raise ValueError(f"worker {self.id}: machine must be 1 to 128 printable characters")
        if self.cores is not None:
            _check(f"cores {whose}", self.cores, 1, MOST_CORES)
        if len(self.framework) > 128 or not self.framework.isprintable():
            raise ValueError(f"worker {self.id}: framework must be at most 128 printable characters")
        _check(f"opset {whose}", self.opset, 0, MOST_OPSET)
        if len(self.lacks) > MOST_LACKS or not all(map(_OP.fullmatch, self.lacks)):
            raise ValueError(f"lacks {whose} must be at most {MOST_LACKS} ops, such as aten.relu.default")

    def computing(self, arithmetic: Arithmetic) -> WorkerSpec:
        """The worker as a job sees it whose products compute so: with that rate as its `tflops`.

        A rate that is not known is that of float32. Nothing else is known of its rates afterwards.
        """
        if self.rates is None:
            return self
        tflops = min(self.rates.tflops(arithmetic) or self.tflops, MOST_TFLOPS)
        return msgspec.structs.replace(self, tflops=tflops, rates=None)

    @property
    def ability(self) -> Ability | None:
        """The ops that the worker supports; None if it supports all."""
        if not self.opset and not self.lacks:
            return None
        return Ability(self.opset or MOST_OPSET, self.lacks, self.framework)


class Scale(msgspec.Struct, frozen=True):
    """The scale of an emulation's rates: they are `factor` times the rates of the network named by `of`."""

    factor: float
    of: str

    def __post_init__(self) -> None:
        _check("factor of scale", self.factor, 0, 1e6, above=True)


class Link(msgspec.Struct, frozen=True):
    """The link from one worker to another; latency and jitter are one way, loss is a share of packets."""

    bandwidth_mbps: float
    latency_ms: float
    jitter_ms: float = 0.0
    loss: float = 0.0


class Topology(msgspec.Struct, frozen=True, omit_defaults=True):
    """Workers and the links between them; a value that breaks a rule raises ValueError.

    Parameters
    ----------
    workers
        In the order in which a plan uses them by default; ids differ.
    latency_ms, bandwidth_mbps
        One row for each sender, one entry for each receiver. Latency is one way. A bandwidth of 0 means that
        there is no link (see `plans.connected_part`). The diagonal is not used.
    name, title, source, note
        For readers: a short name, a title of one line, where the values come from, other remarks.
    jitter_ms, loss
        One number for every pair, or a matrix. Loss is the share of packets, below 1.
    queue_ms
        How long a packet may wait for a link before it is dropped; by default the emulation chooses.
    submitter
        The worker whose home has the broker and the submitter; by default the first.
    segmentation_offload
        Whether an emulation moves 64 KB at a time instead of single packets: needed above 500 Mbit/s.
    scale
        The factor by which the rates were scaled, and why.
    """

    workers: tuple[WorkerSpec, ...]
    latency_ms: Matrix
    bandwidth_mbps: Matrix
    name: str = ""
    title: str = ""
    source: str = ""
    note: str = ""
    jitter_ms: float | Matrix = 0.0
    loss: float | Matrix = 0.0
    queue_ms: float | None = None
    submitter: str | None = None
    segmentation_offload: bool = False
    scale: Scale | None = None

    def __post_init__(self) -> None:
        self._check_workers()
        self._check_links("latency_ms", self.latency_ms, 0, MOST_MILLISECONDS)
        self._check_links("bandwidth_mbps", self.bandwidth_mbps, LEAST_MBPS, MOST_MBPS, or_zero=True)
        self._check_links("jitter_ms", self.jitter_ms, 0, MOST_MILLISECONDS)
        self._check_links("loss", self.loss, 0, 0.99)
        if self.queue_ms is not None:
            _check("queue_ms", self.queue_ms, 0, MOST_MILLISECONDS, above=True)
        if self.submitter is not None and self.submitter not in self.ids:
            raise ValueError(f"submitter names {self.submitter[:60]!r}, which is not a worker's id")

    @property
    def ids(self) -> list[str]:
        """The workers' ids, in order."""
        return [worker.id for worker in self.workers]

    def abilities(self) -> dict[str, Ability]:
        """The ops that workers support, by worker id; workers that support all ops have no entry."""
        return {worker.id: ability for worker in self.workers if (ability := worker.ability) is not None}

    @property
    def home(self) -> WorkerSpec:
        """The worker whose home has the broker and the submitter."""
        return self.workers[self.ids.index(self.submitter) if self.submitter else 0]

    def machines(self) -> dict[str, list[int]]:
        """The numbers of the workers on each machine."""
        numbers: dict[str, list[int]] = {}
        for number, worker in enumerate(self.workers):
            if worker.machine is not None:
                numbers.setdefault(worker.machine, []).append(number)
        return numbers

    def link(self, source: int, target: int) -> Link:
        """The link from worker number `source` to worker number `target`."""
        return Link(
            bandwidth_mbps=self.bandwidth_mbps[source][target],
            latency_ms=self.latency_ms[source][target],
            jitter_ms=_entry(self.jitter_ms, source, target),
            loss=_entry(self.loss, source, target),
        )

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Every ordered pair of different workers' numbers."""
        count = len(self.workers)
        return ((a, b) for a in range(count) for b in range(count) if a != b)

    def computing(self, arithmetic: Arithmetic) -> Topology:
        """The topology for jobs whose products compute so; see `WorkerSpec.computing`."""
        workers = tuple(worker.computing(arithmetic) for worker in self.workers)
        return msgspec.structs.replace(self, workers=workers)

    def slower(self, divisor: float, of: str) -> Topology:
        """This topology with every rate divided by `divisor`.

        `of` names the network that is scaled, unless this topology is scaled already. Raises ValueError if a
        rate leaves its bounds.
        """
        _check("the divisor of all rates", divisor, 0, 1e6, above=True)
        before = self.scale or Scale(1.0, of)
        return msgspec.structs.replace(
            self,
            workers=tuple(_slower(worker, divisor) for worker in self.workers),
            bandwidth_mbps=tuple(tuple(rate / divisor for rate in row) for row in self.bandwidth_mbps),
            scale=Scale(before.factor / divisor, before.of),
        )

    def _check_workers(self) -> None:
        if not 1 <= len(self.workers) <= MOST_WORKERS:
            raise ValueError(f"workers must be 1 to {MOST_WORKERS}, found {len(self.workers)}")
        seen: set[str] = set()
        for id in self.ids:
            if id in seen:
                raise ValueError(f"two workers are called {id!r}: ids must differ")
            seen.add(id)
        for machine, workers in self.machines().items():
            if len({self.workers[number].cores for number in workers}) > 1:
                raise ValueError(f"the workers of machine {machine!r} must state the same number of cores")

    def _check_links(
        self, name: str, values: float | Matrix, least: float, most: float, or_zero: bool = False
    ) -> None:
        if not isinstance(values, tuple):
            _check(name, values, least, most)
            return
        count = len(self.workers)
        if len(values) != count or any(len(row) != count for row in values):
            rows = len(values)
            wrong = next(
                (f", row {i} of {len(row)}" for i, row in enumerate(values) if len(row) != count), ""
            )
            raise ValueError(f"{name} must be {count} rows of {count}, one per worker: found {rows}{wrong}")
        for a, row in enumerate(values):
            wrong_at = [b for b, value in enumerate(row) if not least <= value <= most and b != a]
            for b in wrong_at:
                if row[b] or not or_zero:
                    _check(
                        f"{name} from {self.ids[a]} to {self.ids[b]}", row[b], least, most, or_zero=or_zero
                    )


def _entry(values: float | Matrix, source: int, target: int) -> float:
    return values[source][target] if isinstance(values, tuple) else values


def _slower(worker: WorkerSpec, divisor: float) -> WorkerSpec:
    up = None if worker.up_mbps is None else worker.up_mbps / divisor
    down = None if worker.down_mbps is None else worker.down_mbps / divisor
    return msgspec.structs.replace(worker, up_mbps=up, down_mbps=down)


def _check(
    what: str, value: float, least: float, most: float, above: bool = False, or_zero: bool = False
) -> None:
    if not (math.isfinite(value) and least <= value <= most) or (above and value == least):
        range = f"above {least:g} and at most {most:g}" if above else f"{least:g} to {most:g}"
        range += ", or 0 if there is no link" if or_zero else ""
        raise ValueError(f"{what} must be {range}, found {value:g}")
