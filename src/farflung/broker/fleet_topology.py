"""What a person is told of the fleet's topology. Pure."""

from __future__ import annotations

from farflung.broker.measured import topology_of
from farflung.broker.measurements import Measurements
from farflung.broker.records import State
from farflung.broker.survey import Survey
from farflung.plans.topology import MOST_WORKERS
from farflung.protocol.probing import FleetTopology, MeasuredLink


def fleet_topology(
    state: State, measurements: Measurements, survey: Survey | None, surveys: int, now: float
) -> FleetTopology:
    """The topology of all workers that are connected, working or not, and where its numbers come from."""
    present = {name: worker for name, worker in state.workers.items() if worker.connected}
    under_way = "" if survey is None else survey.words()
    if not 1 <= len(present) <= MOST_WORKERS:
        return FleetTopology(None, [], [], surveys, under_way)
    measured = topology_of(present.values(), measurements)
    links = [
        MeasuredLink(
            way.sender,
            way.receiver,
            max(0.0, now - way.at),
            way.source,
            way.path,
            way.is_settled,
            way.problem,
            way.state,
        )
        for pair, way in sorted(measurements.pairs.items())
        if {*pair} <= present.keys()
    ]
    return FleetTopology(measured.topology, list(measured.assumed), links, surveys, under_way)
