"""`auto`: the best of all other schedulers' plans, improved by moves; see docs/explanation/planner.md."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from farflung.errors import PlanError
from farflung.planner.assignment import Assignment, Options, Schedule, Scheduler, plan_of
from farflung.planner.bounds import lower_bound_seconds
from farflung.planner.checks import Fleet, advice, usable_fleet
from farflung.planner.cutting.balanced import balanced_cut
from farflung.planner.cutting.ties import positions_within_ties
from farflung.planner.schedulers.auto.polish import Budget, Judge, RatedPlan, widened
from farflung.planner.schedulers.auto.rounds import Known, searched, shortest
from farflung.planner.schedulers.baselines import equal_compute, equal_count, nearly_equal_count
from farflung.planner.schedulers.evolutionary import evolutionary
from farflung.planner.schedulers.exact import exact
from farflung.planner.schedulers.opfence import opfence, opfence_plus
from farflung.plans import FEEDER, Topology
from farflung.simulator import Conditions
from farflung.workload import Workload

MOST_RIVALLED = 200  # workers; with more, each other scheduler would take longer than the whole search
MOST_ALONE = 32
ALIKE = 1.05  # if workers share cores, plans that are slower by this factor count as equal
PROVEN = 1.001  # times the lower bound: a search can gain at most a thousandth
TINY_WORKERS, TINY_POSITIONS = 5, 64
"""The largest case for which `exact` runs too; it takes less than a CPU second."""

RIVALS: tuple[Scheduler, ...] = (equal_count, equal_compute, evolutionary, opfence, opfence_plus)
AGAIN: tuple[Scheduler, ...] = (nearly_equal_count, *RIVALS[1:])
"""The other schedulers to run if there is an incumbent."""


def auto(topology: Topology, workload: Workload, options: Options) -> Schedule:
    """The best plan that was found.

    Its simulated step is never slower than that of the incumbent or of any other scheduler's plan. If workers
    share cores, it may be up to `ALIKE` times as slow, for fewer bytes or less work of one worker.

    The other schedulers are equal-count (approximate if there is an incumbent), equal-compute, evolutionary,
    both of `opfence`, for small cases the exact one, the plan without measurements, and one worker alone.
    With `options.home`, which only this scheduler obeys, none of the others runs.
    `options.budget` counts plans as `polish.Budget` does, without the other schedulers' own work. They do not
    run for more than `MOST_RIVALLED` workers. If one of their plans is proven best, there is no search.
    The search has rounds, each of which begins with what the earlier ones found (`auto.rounds`). So more
    budget (of `FIRST_ROUND` and more) adds rounds, and its answer is never worse, unless workers share cores.

    Raises
    ------
    PlanError
        See `usable_fleet`; or no cut fits the workers.
    """
    fleet = usable_fleet(topology, workload, options)
    budget = Budget(options.budget, options.seconds, options.watch)
    conditions = Conditions(efficiency=options.efficiency)
    judge = Judge(fleet.topology, conditions, budget, options.home, options.coding)
    workloads = (workload, *options.alternatives)
    bound = _bound(fleet, workloads, options)
    shares_cores = bool(fleet.topology.machines())
    enough = 0.0 if shares_cores else PROVEN * bound
    known, refusal = _known_of_all(fleet, workloads, options, judge, enough)
    best = [
        _choose(rated_plans, options.incumbent, shares_cores)
        for rated_plans in searched(fleet, options, judge, known, enough)
    ]
    if not best:
        if options.home is not None:
            raise options.home.refusal(fleet.topology, workload)
        raise refusal or PlanError(
            "no cut of the model fits these workers: "
            + advice(workload, float(fleet.devices.memory_bytes.sum()))
        )
    found = best[-1]
    if budget.capped and options.window is None:
        found = widened(found, judge)
    return Schedule(
        scheduler="auto",
        workload=found.workload,
        assignment=found.assignment,
        plan=plan_of(found.workload, found.assignment),
        step_seconds=found.seconds,
        lower_bound_seconds=min(found.seconds, bound),
        evaluated=round(budget.evaluated),
        capped=budget.capped,
        notes=fleet.notes,
        others=tuple((one.workload, one.assignment) for one in best[:-1]) if options.coding else (),
    )


def _known_of_all(
    fleet: Fleet, workloads: Sequence[Workload], options: Options, judge: Judge, enough: float
) -> tuple[list[Known], PlanError | None]:
    """What is known before the search, and a refusal if another scheduler has no plan for a workload.

    No more is looked at once a step takes at most `enough` seconds.
    """
    known = [Known(one, []) for one in workloads]
    refusal: PlanError | None = None
    for one in known:
        try:
            one.plans.extend(_known(fleet, one.workload, options, judge))
        except PlanError as error:
            refusal = error
        if shortest(known) <= enough:
            break
    return known, refusal


def _choose(rated_plans: Sequence[RatedPlan], incumbent: Assignment | None, shares_cores: bool) -> RatedPlan:
    """The fastest plan or, if workers share cores, the cheapest of those that are nearly as fast.

    Among plans no slower than the incumbent, that is the plan that sends the fewest bytes, and then the one
    with the least work of one worker. The CPU time to send bytes is not simulated; it matters on shared
    cores. Shared cores also hide how work is divided while all are busy, which they are not at both ends of a
    step.
    """
    best = min(rated_plans, key=lambda rated: rated.seconds)
    if not shares_cores:
        return best
    old = min((rated.seconds for rated in rated_plans if rated.assignment == incumbent), default=math.inf)
    alike = [rated for rated in rated_plans if rated.seconds <= min(ALIKE * best.seconds, old)]
    return min(alike, key=lambda rated: (*_load(rated), rated.seconds))


def _load(rated: RatedPlan) -> tuple[int, int]:
    """Bytes that workers send each other for a microbatch, and the most operations of one worker."""
    plan = plan_of(rated.workload, rated.assignment)
    sent = sum(
        edge.bytes
        for edge in plan.edges
        if edge.source != FEEDER and plan.worker_of(edge.source) != plan.worker_of(edge.target)
    )
    return sent, max(
        sum(plan.placements[segment].flops for segment in plan.segments_of(worker))
        for worker in plan.workers()
    )


def _bound(fleet: Fleet, workloads: Sequence[Workload], options: Options) -> float:
    if options.coding is not None:
        return 0.0  # nothing is proven of coded steps
    if options.proven is not None:
        return options.proven
    return min(
        lower_bound_seconds(fleet.topology, one, options.efficiency, options.most_replicas, options.recompute)
        for one in workloads
    )


def _alone(fleet: Fleet, workload: Workload, options: Options, judge: Judge) -> Assignment | None:
    """The whole model on one worker: the best of the `MOST_ALONE` fastest with enough memory."""
    if fleet.count not in (None, 1):
        return None
    fastest = sorted(fleet.topology.workers, key=lambda worker: (-worker.tflops, worker.id))
    window = options.window or min(workload.microbatches, 2)
    able = [
        one
        for worker in fastest
        if judge.fits(workload, one := Assignment((), ((worker.id,),), workload.microbatches, window))
    ]
    return min(able[:MOST_ALONE], key=lambda one: judge.lower_bound(workload, one), default=None)


def _even_shares(fleet: Fleet, workload: Workload, options: Options) -> Assignment | None:
    """The plan without measurements, on the workers in their order."""
    count = fleet.count or len(fleet.devices)
    if count > MOST_RIVALLED:
        return None
    try:
        cut = balanced_cut(workload, count)
    except PlanError:
        return None
    return Assignment(
        cuts=cut.cuts,
        workers=tuple((fleet.devices.ids[number],) for number in cut.devices),
        microbatches=workload.microbatches,
        window=options.window or min(workload.microbatches, 2 * len(cut.devices)),
    )


def _known(fleet: Fleet, workload: Workload, options: Options, judge: Judge) -> Iterator[RatedPlan]:
    """The incumbent and the other schedulers' plans; raises the last refusal if there is none."""
    alone = replace(options, alternatives=(), incumbent=None, proven=None)
    refusal: PlanError | None = None
    some = False
    incumbent = options.incumbent
    if incumbent is not None and _is_valid(fleet, workload, incumbent, judge):
        some = True
        yield RatedPlan(judge.simulate_plan(workload, incumbent), workload, incumbent)
    for simple in (_even_shares(fleet, workload, options), _alone(fleet, workload, options, judge)):
        if simple is not None and _is_valid(fleet, workload, simple, judge):
            some = True
            yield RatedPlan(judge.simulate_plan(workload, simple), workload, simple)
    rivals = () if options.home else _rivals(fleet, workload, RIVALS if incumbent is None else AGAIN)
    requests = [(rival, replace(alone, most_replicas=1)) for rival in rivals]
    if options.most_replicas > 1 and evolutionary in rivals:  # the others make no replicas
        requests.append((evolutionary, alone))
    for rival, allowed in requests:
        try:
            schedule = rival(fleet.topology, workload, allowed)
        except PlanError as error:
            refusal = error
            continue
        some = True
        seconds = schedule.step_seconds
        if options.coding is not None:
            seconds = judge.simulate_plan(workload, schedule.assignment)
        yield RatedPlan(seconds, workload, schedule.assignment)
    if not some and refusal is not None:
        raise refusal


def _rivals(fleet: Fleet, workload: Workload, all_of_them: tuple[Scheduler, ...]) -> tuple[Scheduler, ...]:
    if len(fleet.devices) > MOST_RIVALLED:
        return ()
    tiny = len(fleet.devices) <= TINY_WORKERS and positions_within_ties(workload).sum() <= TINY_POSITIONS
    return (*all_of_them, exact) if tiny else all_of_them


def _is_valid(fleet: Fleet, workload: Workload, assignment: Assignment, judge: Judge) -> bool:
    """Whether a given assignment is valid for this workload and these workers, and fits."""
    cuts = assignment.cuts
    return (
        assignment.used() <= set(fleet.topology.ids)
        and len(cuts) == len(assignment.workers) - 1
        and all(0 < cut < len(workload) and workload.legal[cut] for cut in cuts)
        and list(cuts) == sorted(set(cuts))
        and assignment.microbatches == workload.microbatches
        and judge.fits(workload, assignment)
    )
