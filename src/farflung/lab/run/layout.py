"""Lay a topology out as a lab: one node per worker, broker and submitter in the home of one of them."""

from __future__ import annotations

import os

import msgspec

from farflung.errors import LabError
from farflung.lab.spec import LabSpec, LinkSettings, Node
from farflung.plans import Topology, WorkerSpec

BROKER, SUBMITTER = "broker", "submitter"


def lay_out(topology: Topology) -> LabSpec:
    """The lab of a topology: its workers, and nodes called `broker` and `submitter`.

    These two are machines of their own in the home of `topology.home`: they share its access line and its
    links to others, but are not behind its NAT.

    Raises
    ------
    LabError
        A worker's id is one of these two names, or a value is beyond the lab's limits.
    """
    reserved = {BROKER, SUBMITTER}.intersection(topology.ids)
    if reserved:
        raise LabError(f"the lab has a node called {reserved.pop()} of its own: give that worker another id")
    home = topology.home.id
    return LabSpec(
        nodes=(
            *(_node(worker, topology.queue_ms) for worker in topology.workers),
            Node(BROKER, shares_line_with=home),
            Node(SUBMITTER, shares_line_with=home),
        ),
        links={
            (topology.workers[a].id, topology.workers[b].id): _link(topology, a, b)
            for a, b in topology.pairs()
        },
        segmentation_offload=topology.segmentation_offload,
    )


def on_this_machine(topology: Topology) -> Topology:
    """The topology of workers that compute for real: all share the cores that this process may use."""
    cores = len(os.sched_getaffinity(0))
    workers = (msgspec.structs.replace(each, machine="the lab's", cores=cores) for each in topology.workers)
    return msgspec.structs.replace(topology, workers=tuple(workers))


def _node(worker: WorkerSpec, queue_ms: float | None) -> Node:
    return Node(worker.id, worker.up_mbps, worker.down_mbps, worker.behind_nat, queue_ms=queue_ms)


def _link(topology: Topology, a: int, b: int) -> LinkSettings:
    """A pair has a rate of its own only if that is slower than the access lines at both ends."""
    link = topology.link(a, b)
    lines = (topology.workers[a].up_mbps, topology.workers[b].down_mbps)
    is_slower = all(line is None or link.bandwidth_mbps < line for line in lines)
    return LinkSettings(
        bandwidth_mbps=link.bandwidth_mbps if is_slower else None,
        latency_ms=link.latency_ms,
        jitter_ms=link.jitter_ms,
        loss=link.loss,
        queue_ms=topology.queue_ms,
    )
