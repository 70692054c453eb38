"""Plans with a given number of replicas, by any scheduler.

It plans one pipeline, and others copy its cut; or each group of workers gets a cut of its own
(`planner.unequal_cuts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from farflung.errors import PlanError
from farflung.planner.answer import answer
from farflung.planner.assignment import Assignment, Options, Schedule, Scheduler
from farflung.planner.checks import Fleet, usable_fleet
from farflung.planner.registry import scheduler as scheduler_called
from farflung.planner.schedulers.auto.polish import Budget, Judge
from farflung.planner.schedulers.auto.search import replicated
from farflung.planner.unequal_cuts import with_unequal_cuts
from farflung.plans import Plan, Topology
from farflung.plans.ability import Ability
from farflung.plans.wishes import AUTO
from farflung.runtime.training import Training
from farflung.simulator import Conditions
from farflung.text import count_of
from farflung.workload import Workload


def scheduler_for_replicas(name: str, replicas: int) -> Scheduler:
    """The scheduler of this name for so many replicas; 0 leaves their number to `Options.most_replicas`.

    Replicas have equal cuts, or each has its own if a step is shorter then.
    """
    found = scheduler_called(name)
    if replicas == 1:
        return found
    equal = with_replicas(found, replicas, name) if replicas else found
    return with_unequal_cuts(equal, found, replicas, name)


def with_replicas(scheduler: Scheduler, replicas: int, name: str = AUTO) -> Scheduler:
    """A scheduler, called `name`, whose plans have exactly so many replicas.

    It tries pipelines of one worker, two, and so on, as far as the workers last, and takes the fastest by
    simulation. `Options.workers` is the number of workers of all replicas together, of which some stay idle
    if they cannot be shared out evenly. If there are fewer workers or microbatches, there are fewer replicas.
    """

    def search(topology: Topology, workload: Workload, options: Options) -> Schedule:
        fleet = usable_fleet(topology, workload, replace(options, most_replicas=replicas))
        count = possible(replicas, options.workers or len(fleet.devices), workload.microbatches)
        if count == 1:
            return scheduler(topology, workload, options)
        judge = Judge(
            fleet.topology, Conditions(efficiency=options.efficiency), Budget(options.budget), options.home
        )
        found = [
            one for one in _tried(scheduler, fleet, workload, options, count) if judge.fits(workload, one)
        ]
        if not found:
            raise PlanError(
                f"no plan with {count_of(count, 'replica')} of the model fits the memory of these workers:"
                " ask for fewer (--replicas), or let workers offer more (`farflung join --memory`)"
            )
        best = min(found, key=lambda one: judge.simulate_plan(workload, one))
        return answer(name, fleet, workload, best, options)

    return search


def evenly_replicated(plan: Plan, workers: Sequence[str], replicas: int) -> Plan:
    """The plan of one pipeline with copies of it on the next of `workers`, and even shares."""
    if replicas == 1:
        return plan
    names = plan.workers()
    others = [name for name in workers if name not in names]
    seats = [
        {name: others[(copy - 1) * len(names) + at] if copy else name for at, name in enumerate(names)}
        for copy in range(replicas)
    ]
    placements = [
        msgspec.structs.replace(p, workers=[seat[p.worker] for seat in seats]) for p in plan.placements
    ]
    each, more = divmod(plan.microbatches, replicas)
    shares = [each + (number < more) for number in range(replicas)]
    return msgspec.structs.replace(plan, placements=placements, shares=shares)


def _tried(
    scheduler: Scheduler, fleet: Fleet, workload: Workload, options: Options, replicas: int
) -> Iterator[Assignment]:
    """The plans of each depth that the workers allow, each with as many replicas as asked for."""
    deepest = (options.workers or len(fleet.devices)) // replicas
    depths = [deepest] if options.workers else range(1, deepest + 1)
    for depth in depths:
        part = replace(
            options,
            workers=depth,
            most_replicas=1,
            budget=max(1, options.budget // len(depths)),
            seconds=None if options.seconds is None else options.seconds / len(depths),
            alternatives=(),
            incumbent=None,
        )
        try:
            one = scheduler(fleet.topology, workload, part).assignment
        except PlanError:
            continue  # too few cuts for this depth, or too little memory
        yield from (
            copy
            for copy in replicated(workload, fleet.devices, one, replicas, options)
            if len(copy.shares) == replicas
        )


def possible(replicas: int, workers: int, microbatches: int) -> int:
    """How many of the replicas that are asked for there can be."""
    return max(1, min(replicas, workers, microbatches))


def shared_out(workers: int, training: Training) -> list[int]:
    """The numbers of replicas among which so many workers can be shared out evenly, the fewest first."""
    most = min(workers, training.microbatches)
    return [replicas for replicas in range(1, most + 1) if workers % replicas == 0]


def require_possible(replicas: int, workers: int, microbatches: int) -> None:
    """Check that there can be so many replicas; 0 leaves their number open.

    Raises
    ------
    PlanError
        There are fewer workers or microbatches, or the workers cannot be shared out evenly.
    """
    if replicas > workers or (replicas and workers % replicas):
        cure = f": ask for at most {workers}" if replicas > workers else ""
        raise PlanError(f"{count_of(workers, 'worker')} cannot be shared out among {replicas} replicas{cure}")
    if replicas > microbatches:
        who = count_of(microbatches, "microbatch", "microbatches")
        raise PlanError(
            f"{replicas} replicas share a batch by microbatches, and the job has {who}: set"
            f" Job(microbatches={replicas}) or more"
        )


def fewer_replicas(found: int, asked: int, workers: int) -> str:
    """Tell the user that there are fewer replicas than asked for, on so many workers that compute alike."""
    group = count_of(workers, "worker")
    return (
        f"{count_of(found, 'replica')}, not {asked}: replicas need workers that compute the same bits"
        f" (kernels in farflung status --json), and the largest group of these has {group}"
    )


def alike_workers(workers: Sequence[str], abilities: Mapping[str, Ability]) -> list[str]:
    """The most of these workers that compute the same bits, as all replicas must.

    Each updates its own parameters, so others would drift apart. Workers of which nothing is known count as
    alike.
    """
    by_kernels: dict[tuple[str, str], list[str]] = {}
    for worker in workers:
        ability = abilities.get(worker)
        by_kernels.setdefault(
            ("", "") if ability is None else (ability.framework, ability.kernels), []
        ).append(worker)
    return max(by_kernels.values(), key=len, default=[])
