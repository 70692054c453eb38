"""Changes that a user can make to a fleet, as topologies. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from farflung.plans import Topology, WorkerSpec, subtopology
from farflung.plans.topology import MOST_CORES, MOST_GIGABYTES, MOST_MBPS, MOST_TFLOPS, Matrix

Direction = Literal["up", "down"]

LINES_MBPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 25_000, 100_000)
"""Rates of access lines that one can order."""

NEIGHBOUR_MBPS, NEIGHBOUR_MS = 1000.0, 0.5
"""The link between a worker and its new twin, if the site has no other worker to compare with."""

_AT_LIMIT = 0.9  # a link this close to the rate of its access line is limited by that line


def next_line_mbps(mbps: float) -> float | None:
    """The slowest rate that one can order and is at least twice `mbps`; None if there is none."""
    return next((float(rate) for rate in LINES_MBPS if rate >= 2 * mbps), None)


def line_mbps(topology: Topology, number: int, direction: Direction) -> float | None:
    """Rate of a worker's access line: as declared, else its fastest link over it; None if it has none."""
    if (declared := _declared(topology, number, direction)) is not None:
        return declared
    links = (_link(number, other, direction) for other in _over_line(topology, number, direction))
    return max((topology.bandwidth_mbps[a][b] for a, b in links), default=None)


def own_line_mbps(topology: Topology, number: int, direction: Direction) -> float | None:
    """As `line_mbps`, but None where nothing says that others of the site do not use the line, too."""
    is_alone = len(_elsewhere(topology, number)) == len(topology.workers) - 1
    is_declared = _declared(topology, number, direction) is not None
    return line_mbps(topology, number, direction) if is_declared or is_alone else None


def with_line(topology: Topology, number: int, up_mbps: float | None, down_mbps: float | None) -> Topology:
    """The topology with another access line at a worker, faster or slower.

    Its links to other sites, or to all others if all are at one site and no line is declared, are no faster
    than the new line. Those that were as fast as the old one become as fast as the new one; what something
    else limits stays.
    """
    rates = [list(row) for row in topology.bandwidth_mbps]
    new: list[tuple[float | None, Direction]] = [(up_mbps, "up"), (down_mbps, "down")]
    for rate, direction in new:
        limit = line_mbps(topology, number, direction)
        if rate is None or not limit:
            continue
        for other in _over_line(topology, number, direction):
            a, b = _link(number, other, direction)
            if rates[a][b] and (rates[a][b] >= _AT_LIMIT * limit or rates[a][b] > rate):
                rates[a][b] = rate
    worker = topology.workers[number]
    changed = msgspec.structs.replace(
        worker,
        up_mbps=worker.up_mbps if worker.up_mbps is None else up_mbps or worker.up_mbps,
        down_mbps=worker.down_mbps if worker.down_mbps is None else down_mbps or worker.down_mbps,
    )
    return msgspec.structs.replace(
        topology, workers=_with_worker(topology, number, changed), bandwidth_mbps=_matrix(rates)
    )


def with_path(topology: Topology, site: str, other: str, factor: float) -> Topology:
    """The topology with `factor` times the bandwidth between two sites, or inside one, in both directions."""
    sites = [worker.site for worker in topology.workers]
    rates = [
        [
            min(rate * factor, MOST_MBPS) if {sites[a], sites[b]} == {site, other} else rate
            for b, rate in enumerate(row)
        ]
        for a, row in enumerate(topology.bandwidth_mbps)
    ]
    return msgspec.structs.replace(topology, bandwidth_mbps=_matrix(rates))


def with_cores(topology: Topology, numbers: Sequence[int], factor: int) -> Topology:
    """The topology with `factor` times the cores for these workers, who share a machine."""
    workers = list(topology.workers)
    for number in numbers:
        cores = min((workers[number].cores or 1) * factor, MOST_CORES)
        workers[number] = msgspec.structs.replace(workers[number], cores=cores)
    return msgspec.structs.replace(topology, workers=tuple(workers))


def with_twin(topology: Topology, number: int) -> Topology:
    """The topology with another worker like this one at its site, with its own access line and cores.

    The link between the two is as good as the best at the site, or 1 Gbit/s with 0.5 ms.
    """
    twin = msgspec.structs.replace(
        topology.workers[number], id=_free_id(topology, number), machine=None, cores=None
    )
    near = [a for a in range(len(topology.workers)) if a != number and a not in _elsewhere(topology, number)]
    rate = max((topology.bandwidth_mbps[number][a] for a in near), default=0.0) or NEIGHBOUR_MBPS
    latency = min((topology.latency_ms[number][a] for a in near), default=NEIGHBOUR_MS)
    values: dict[str, Matrix] = {
        "bandwidth_mbps": _grown(topology.bandwidth_mbps, number, rate),
        "latency_ms": _grown(topology.latency_ms, number, latency),
    }
    for name, given in (("jitter_ms", topology.jitter_ms), ("loss", topology.loss)):
        if isinstance(given, tuple):
            values[name] = _grown(given, number, 0.0)
    return msgspec.structs.replace(topology, workers=(*topology.workers, twin), **values)


def without(topology: Topology, number: int) -> Topology:
    """The topology without this worker, which must not be the submitter's home."""
    return subtopology(topology, [a for a in range(len(topology.workers)) if a != number])


def with_device(topology: Topology, number: int, factor: float) -> Topology:
    """The topology with a device `factor` times as fast at a worker."""
    worker = topology.workers[number]
    faster = msgspec.structs.replace(worker, tflops=min(worker.tflops * factor, MOST_TFLOPS))
    return msgspec.structs.replace(topology, workers=_with_worker(topology, number, faster))


def with_memory(topology: Topology, number: int, factor: float) -> Topology:
    """The topology with `factor` times the memory at a worker."""
    worker = topology.workers[number]
    larger = msgspec.structs.replace(worker, memory_gb=min(worker.memory_gb * factor, MOST_GIGABYTES))
    return msgspec.structs.replace(topology, workers=_with_worker(topology, number, larger))


def _declared(topology: Topology, number: int, direction: Direction) -> float | None:
    worker = topology.workers[number]
    return worker.up_mbps if direction == "up" else worker.down_mbps


def _elsewhere(topology: Topology, number: int) -> list[int]:
    """Numbers of the workers at other sites."""
    site = topology.workers[number].site
    return [a for a, worker in enumerate(topology.workers) if worker.site != site]


def _over_line(topology: Topology, number: int, direction: Direction) -> list[int]:
    """Numbers of the workers that a worker reaches over its access line.

    Those are at other sites. If all are at one site, they are all others, unless a line is declared.
    """
    elsewhere = _elsewhere(topology, number)
    if elsewhere or _declared(topology, number, direction) is not None:
        return elsewhere
    return [a for a in range(len(topology.workers)) if a != number]


def _link(number: int, other: int, direction: Direction) -> tuple[int, int]:
    """Sender and receiver of a link between a worker and another one."""
    return (number, other) if direction == "up" else (other, number)


def _with_worker(topology: Topology, number: int, worker: WorkerSpec) -> tuple[WorkerSpec, ...]:
    return (*topology.workers[:number], worker, *topology.workers[number + 1 :])


def _matrix(rows: Sequence[Sequence[float]]) -> Matrix:
    return tuple(tuple(row) for row in rows)


def _grown(values: Matrix, number: int, between: float) -> Matrix:
    """`values` with a last row and column like those of `number`, and `between` for the two of them."""
    rows = [[*row, row[number]] for row in values]
    rows.append([*values[number], 0.0])
    rows[number][-1] = rows[-1][number] = between
    return _matrix(rows)


def _free_id(topology: Topology, number: int) -> str:
    used, stem = set(topology.ids), topology.workers[number].id[:34].rstrip("-")
    return next(id for id in (f"{stem}-new{n or ''}" for n in range(len(used) + 1)) if id not in used)
