"""The part of a topology in which everybody can reach everybody."""

from __future__ import annotations

import msgspec

from farflung.plan.topology import Matrix, Topology


def joined_part(topology: Topology) -> tuple[Topology, tuple[str, ...]]:
    """The workers who all reach one another, and the ids of those who are left out for that.

    A bandwidth of 0 in either direction parts two workers. Whoever is parted from the most compute for what
    it has itself goes first, so of a fleet in two halves the stronger one stays. Planners are given no other
    topology than such a part.
    """
    parted = _parted(topology)
    out: list[int] = []
    while any(parted.values()):
        worst = max(parted, key=lambda a: (_weight(topology, parted[a]) / topology.workers[a].tflops, a))
        out.append(worst)
        for others in parted.values():
            others.discard(worst)
        del parted[worst]
    return only(topology, sorted(parted)), tuple(topology.workers[a].id for a in sorted(out))


def only(topology: Topology, numbers: list[int]) -> Topology:
    """The topology of the workers with these numbers, in this order; a submitter left out is forgotten."""
    if numbers == list(_numbers(topology)):
        return topology
    workers = tuple(topology.workers[a] for a in numbers)
    submitter = topology.submitter if topology.submitter in [worker.id for worker in workers] else None
    return msgspec.structs.replace(
        topology,
        workers=workers,
        latency_ms=_cut(topology.latency_ms, numbers),
        bandwidth_mbps=_cut(topology.bandwidth_mbps, numbers),
        jitter_ms=_cut(topology.jitter_ms, numbers)
        if isinstance(topology.jitter_ms, tuple)
        else topology.jitter_ms,
        loss=_cut(topology.loss, numbers) if isinstance(topology.loss, tuple) else topology.loss,
        submitter=submitter,
    )


def _numbers(topology: Topology) -> range:
    return range(len(topology.workers))


def _parted(topology: Topology) -> dict[int, set[int]]:
    """For each worker those whom it cannot reach, or who cannot reach it."""
    found = {
        a: {b for b, mbps in enumerate(topology.bandwidth_mbps[a]) if not mbps} for a in _numbers(topology)
    }
    for a, others in list(found.items()):
        for b in others:
            found[b].add(a)
    return {a: others - {a} for a, others in found.items()}


def _weight(topology: Topology, numbers: set[int]) -> float:
    return sum(topology.workers[a].tflops for a in numbers)


def _cut(values: Matrix, numbers: list[int]) -> Matrix:
    return tuple(tuple(values[a][b] for b in numbers) for a in numbers)
