"""Build the codec context of a plan from its topology and the simulation's conditions."""

from __future__ import annotations

from collections.abc import Sequence

from farflung.planner.codecs.codec_context import (
    NOWHERE,
    CodecContext,
    Hop,
    Line,
    Link,
    Machine,
    Pipeline,
    Stage,
)
from farflung.plans import FEEDER, Plan, Topology
from farflung.simulator import Conditions
from farflung.simulator.costs import LinkCosts, Transfer, pipelines_of

_Numbers = dict[tuple[int, int], int]


def codec_context(plan: Plan, topology: Topology, conditions: Conditions) -> CodecContext:
    """The codec context of a plan.

    Raises
    ------
    PlanError
        See `simulator.simulate`.
    """
    costs, ids = LinkCosts(plan, topology, conditions), topology.ids
    numbers: _Numbers = {}
    pipelines = []
    for one in pipelines_of(plan, topology, conditions):
        stages = tuple(
            Stage(ids[worker], each) for worker, each in zip(one.workers, one.seconds, strict=True)
        )
        if one.microbatches:
            hops = tuple(_hop(each, one.workers, numbers) for each in one.transfers if each.source != FEEDER)
            pipelines.append(Pipeline(stages, hops, one.microbatches, one.window))
    machines = tuple(
        Machine(tuple(ids[number] for number in members), topology.workers[members[0]].cores or 1)
        for members in topology.machines().values()
    )
    return CodecContext(
        links=tuple(Link(ids[a], ids[b], costs.rate(a, b), costs.seconds_away(a, b)) for a, b in numbers),
        lines=_lines(list(numbers), costs, ids),
        pipelines=tuple(pipelines),
        machines=machines,
        codec_speed=conditions.codec_speed,
    )


def _hop(transfer: Transfer, workers: Sequence[int], numbers: _Numbers) -> Hop:
    a, b = workers[transfer.source], workers[transfer.target]
    forward = backward = NOWHERE
    if a != b:
        forward = numbers.setdefault((a, b), len(numbers))
        backward = numbers.setdefault((b, a), len(numbers))
    activations, gradients = transfer.activations, transfer.gradients
    exact = transfer.forward_bytes - activations.bytes
    returned = transfer.backward_bytes - gradients.bytes
    return Hop(transfer.source, transfer.target, forward, backward, activations, gradients, exact, returned)


def _lines(pairs: Sequence[tuple[int, int]], costs: LinkCosts, ids: Sequence[str]) -> tuple[Line, ...]:
    found = []
    for worker in dict.fromkeys(number for pair in pairs for number in pair):
        out = tuple(at for at, (a, _) in enumerate(pairs) if a == worker)
        into = tuple(at for at, (_, b) in enumerate(pairs) if b == worker)
        up, down = costs.up(worker), costs.down(worker)
        if up is not None and out:
            found.append(Line(f"the access line out of {ids[worker]}", up, out))
        if down is not None and into:
            found.append(Line(f"the access line into {ids[worker]}", down, into))
    return tuple(found)
