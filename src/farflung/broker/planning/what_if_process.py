"""The process that plans a running job again with changes: a question in, `Foreseen` out."""

from __future__ import annotations

import sys

import msgspec

from farflung.broker.planning.messages import Question
from farflung.broker.planning.process import limit_memory, scheduled, topology_of, write_message
from farflung.broker.planning.what_if_messages import (
    MOST_TWINS_IN_ALL,
    FleetWorker,
    Foreseen,
    PlannedSegment,
    SimulatedStep,
    WhatIf,
    WhatIfQuestion,
    WorkerChange,
)
from farflung.errors import FarflungError, PlanError
from farflung.opdag import wire
from farflung.planner.advice import changes
from farflung.planner.assignment import ignore_progress
from farflung.plans import CodecWishes, Plan, Topology, connected_part, folded
from farflung.plans.topology_file import decode_topology
from farflung.protocol.timeline import RowSpan
from farflung.runtime.training import Training
from farflung.simulator import Conditions, simulate

MOST_SPANS = 20_000
"""Of one timeline; what is beyond is not drawn."""
NOTHING = WorkerChange()


def main() -> None:
    """Answer one question."""
    limit_memory()
    asked = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=WhatIfQuestion)
    write_message(foreseen(asked))


def foreseen(asked: WhatIfQuestion) -> Foreseen:
    """The step now and the step with the changes."""
    question, fleet = asked.question, asked.question.topology
    assert question.current is not None and fleet is not None
    used = frozenset(asked.members)
    now = simulated(folded(question.current), topology_of(question, asked.members), question.efficiency)
    try:
        changed = changed_question(question, asked.asked, used)
        graph = wire.load_graph(changed.graph, changed.training.microbatch_size)
        planned, prediction = scheduled(changed, graph, ignore_progress)
        plan = _better(planned.plan, question.current, changed, asked.asked.codec is None)
        then = simulated(plan, topology_of(changed), question.efficiency)
    except (FarflungError, ValueError) as error:
        return Foreseen(_shown(fleet, used), now, None, str(error))
    except MemoryError:
        return Foreseen(_shown(fleet, used), now, None, "this is too large for the broker's machine to plan")
    return Foreseen(_shown(fleet, used), now, then, notes=prediction.notes)


def _better(found: Plan, current: Plan, changed: Question, has_same_codecs: bool) -> Plan:
    """The plan that was found, or the one that runs if that is faster and still possible."""
    is_possible = (
        {*current.workers()} <= {*changed.workers}
        and current.microbatches == changed.training.microbatches
        and has_same_codecs
    )
    if not is_possible:
        return found
    net = connected_part(topology_of(changed))[0]
    conditions = Conditions(efficiency=changed.efficiency)
    return min(found, folded(current), key=lambda plan: simulate(plan, net, conditions).step_seconds)


def changed_question(question: Question, asked: WhatIf, members: frozenset[str]) -> Question:
    """The question with the changes in it.

    Raises
    ------
    PlanError
        A change is about a worker that is not there, or leaves none.
    ValueError
        The topology is none, or microbatches do not divide a step's samples.
    """
    assert question.topology is not None
    fleet, used = question.topology, members
    if asked.topology is not None:
        fleet = decode_topology(asked.topology.encode())
        used = frozenset(fleet.ids)
    fleet, used = _changed_fleet(fleet, used, asked)
    training = _with_microbatches(question.training, asked.microbatches)
    codecs = question.codecs
    if asked.codec is not None:
        codecs = CodecWishes(every=asked.codec)
        training = msgspec.structs.replace(training, codecs=codecs.codebook)
    return msgspec.structs.replace(
        question,
        topology=fleet,
        workers=[worker for worker in fleet.ids if worker in used],
        count=0,
        training=training,
        codecs=codecs,
        abilities={} if asked.topology is not None else question.abilities,
    )


def _changed_fleet(fleet: Topology, used: frozenset[str], asked: WhatIf) -> tuple[Topology, frozenset[str]]:
    """The topology with the changes of its workers, and those that the job may use."""
    if sum(change.twins for change in asked.workers.values()) > MOST_TWINS_IN_ALL:
        raise PlanError(f"at most {MOST_TWINS_IN_ALL} workers can be added: give a topology file for more")
    for worker, change in asked.workers.items():
        if worker not in fleet.ids:
            raise PlanError(f"there is no worker {worker}: there are {', '.join(fleet.ids[:8])}")
        used = used | {worker} if change.used else used - {worker}
        number = fleet.ids.index(worker)
        if change.speed != 1.0:
            fleet = changes.with_device(fleet, number, change.speed)
        if change.up_mbps is not None or change.down_mbps is not None:
            fleet = changes.with_line(fleet, number, change.up_mbps, change.down_mbps)
        for _ in range(change.twins):
            fleet = changes.with_twin(fleet, number)
            used |= {fleet.ids[-1]}
    if not used:
        raise PlanError("no worker is left that the job may use: leave one in")
    return fleet, used


def _with_microbatches(training: Training, count: int | None) -> Training:
    """The same samples a step in so many microbatches."""
    if count is None:
        return training
    samples = training.microbatches * training.microbatch_size
    if samples % count:
        raise ValueError(f"{count} microbatches cannot share {samples} samples a step evenly")
    return msgspec.structs.replace(training, microbatches=count, microbatch_size=samples // count)


def simulated(plan: Plan, fleet: Topology, efficiency: float) -> SimulatedStep:
    """One step of a plan, as the simulator sees it."""
    net = connected_part(fleet)[0]
    found = simulate(plan, net, Conditions(efficiency=efficiency), timeline=True)
    spans = [RowSpan(one.row, one.kind, one.microbatch, one.start, one.end) for one in found.timeline]
    flops = sum(placement.flops for placement in plan.placements) or 1
    return SimulatedStep(
        found.step_seconds,
        found.line(),
        [PlannedSegment(one.segment, one.workers, one.flops / flops) for one in plan.placements],
        [f"{link.source} -> {link.target}: {link.codec}" for link in plan.codecs],
        plan.microbatches,
        spans[:MOST_SPANS],
    )


def _shown(fleet: Topology, used: frozenset[str]) -> list[FleetWorker]:
    return [
        FleetWorker(
            worker.id,
            worker.site,
            worker.id in used,
            worker.tflops,
            changes.line_mbps(fleet, number, "up"),
            changes.line_mbps(fleet, number, "down"),
        )
        for number, worker in enumerate(fleet.workers)
    ]


if __name__ == "__main__":
    main()
