"""The part of a topology in which all workers can reach each other."""

from __future__ import annotations

import msgspec

from farflung.plans.topology import Matrix, Topology


def connected_part(topology: Topology) -> tuple[Topology, tuple[str, ...]]:
    """The workers that can all reach each other, and the ids of the workers left out.

    Two workers are disconnected if the bandwidth is 0 in either direction. The worker that is disconnected
    from the most compute, relative to its own, is left out first; if a fleet falls into two halves, the
    stronger half stays. If the topology says where the submitter is, workers that it cannot reach are left
    out before any others, because it could not feed them. Schedulers only see such connected topologies.
    """
    parted = _disconnected(topology)
    out: list[int] = []
    if topology.submitter is not None:
        out = sorted(parted[topology.ids.index(topology.submitter)])
        parted = {a: others.difference(out) for a, others in parted.items() if a not in out}
    while any(parted.values()):
        worst = max(parted, key=lambda a: (_weight(topology, parted[a]) / topology.workers[a].tflops, a))
        out.append(worst)
        for others in parted.values():
            others.discard(worst)
        del parted[worst]
    for back in reversed(out[:]):  # some were disconnected only from workers that are out now, too
        if all(_is_connected(topology, back, other) for other in parted):
            out.remove(back)
            parted[back] = set()
    return subtopology(topology, sorted(parted)), tuple(topology.workers[a].id for a in sorted(out))


def why_left_out(topology: Topology) -> tuple[str, ...]:
    """Messages that name the missing links of the workers that `connected_part` leaves out.

    The last one names two of them that are declared at one site all the same.
    """
    connected, out = connected_part(topology)
    sites = {worker.id: worker.site for worker in topology.workers}
    apart: list[str] = []
    alone: list[str] = []
    messages: list[str] = []
    for id in out:
        missing = _missing(topology, id, connected.ids)
        apart = apart or next(
            ([*pair] for pair in missing if sites[id] and sites[pair[0]] == sites[pair[1]]), []
        )
        if len(missing) == 2 * len(connected.ids):
            alone.append(id)
            continue
        source, target = missing[0]
        more = f" (and {len(missing) - 1} more of its links are missing)" if len(missing) > 1 else ""
        messages.append(f"there is no link from {source} to {target}{more}: {id} is left out")
    if alone:
        messages.insert(0, f"there is no link between the others and {', '.join(alone)}: left out")
    if apart:
        one, other = sorted(apart)
        messages.append(
            f"{one} and {other} are declared at one site, {sites[one]}, and cannot reach each other: give"
            " them sites of their own (`farflung join --site`), or let them reach each other"
        )
    return tuple(messages)


def subtopology(topology: Topology, numbers: list[int]) -> Topology:
    """The topology of these workers in this order; `submitter` is None if it is not among them."""
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
    """Sender and receiver of each missing link between a worker and others."""
    numbers = {id: number for number, id in enumerate(topology.ids)}
    links = [link for other in others for link in ((id, other), (other, id))]
    return [(a, b) for a, b in links if not topology.bandwidth_mbps[numbers[a]][numbers[b]]]


def _is_connected(topology: Topology, a: int, b: int) -> bool:
    return bool(topology.bandwidth_mbps[a][b] and topology.bandwidth_mbps[b][a])


def _numbers(topology: Topology) -> range:
    return range(len(topology.workers))


def _disconnected(topology: Topology) -> dict[int, set[int]]:
    """For each worker, the workers that it cannot reach or that cannot reach it."""
    missing = {
        a: {b for b, mbps in enumerate(topology.bandwidth_mbps[a]) if not mbps} for a in _numbers(topology)
    }
    for a, others in list(missing.items()):
        for b in others:
            missing[b].add(a)
    return {a: others - {a} for a, others in missing.items()}


def _weight(topology: Topology, numbers: set[int]) -> float:
    return sum(topology.workers[a].tflops for a in numbers)


def _cut(values: Matrix, numbers: list[int]) -> Matrix:
    return tuple(tuple(values[a][b] for b in numbers) for a in numbers)
