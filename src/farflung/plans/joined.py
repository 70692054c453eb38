"""The part of a topology in which everybody can reach everybody."""

from __future__ import annotations

import msgspec

from farflung.plans.topology import Matrix, Topology


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
    for back in reversed(out[:]):  # whom only others who went themselves had parted from the rest
        if all(_is_joined(topology, back, other) for other in parted):
            out.remove(back)
            parted[back] = set()
    return only(topology, sorted(parted)), tuple(topology.workers[a].id for a in sorted(out))


def why_parted(topology: Topology) -> tuple[str, ...]:
    """For people: which ways are missing of those whom `joined_part` leaves out."""
    joined, out = joined_part(topology)
    alone: list[str] = []
    words: list[str] = []
    for id in out:
        missing = _missing(topology, id, joined.ids)
        if len(missing) == 2 * len(joined.ids):
            alone.append(id)
            continue
        source, target = missing[0]
        more = f" ({len(missing) - 1} more are missing)" if len(missing) > 1 else ""
        words.append(f"no way leads from {source} to {target}{more}: {id} is left out")
    if alone:
        words.insert(0, f"no way leads from the others to {', '.join(alone)}: left out")
    return tuple(words)


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


def _missing(topology: Topology, id: str, others: list[str]) -> list[tuple[str, str]]:
    """Sender and receiver of each way that is missing between a worker and others."""
    numbers = {id: number for number, id in enumerate(topology.ids)}
    ways = [way for other in others for way in ((id, other), (other, id))]
    return [(a, b) for a, b in ways if not topology.bandwidth_mbps[numbers[a]][numbers[b]]]


def _is_joined(topology: Topology, a: int, b: int) -> bool:
    return bool(topology.bandwidth_mbps[a][b] and topology.bandwidth_mbps[b][a])


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
