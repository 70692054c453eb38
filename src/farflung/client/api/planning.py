"""`farflung.plan` and `farflung.simulate`: forecast a job, or a plan, on a fleet that need not exist."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from farflung.client.api.job import Job
from farflung.client.capture.prepared import (
    Microbatches,
    Model,
    model_of,
    number_of,
    with_gentle_auto,
)
from farflung.client.options.planning import parse_replicas
from farflung.client.output.progress import ProgressCallback, Search, no_progress
from farflung.errors import PlanError, TopologyError
from farflung.opdag.graph import Precision
from farflung.planner.advice.forecast import EffectRow, Expected, Forecast, expected, forecast
from farflung.planner.advice.what_if import Effect
from farflung.planner.advice.what_if import what_if as effects_of
from farflung.planner.assignment import Options, Schedule, Scheduler
from farflung.planner.codecs.wishes import (
    require_known,
    scheduler_for,
)
from farflung.planner.compatibility import require_able, unable
from farflung.planner.notes import check_notes, length_notes
from farflung.planner.replicas import require_possible as require_replicas
from farflung.planner.replicas import scheduler_for_replicas
from farflung.planner.run import find_schedule, plan_notes, predict
from farflung.plans import (
    CodecWishes,
    Plan,
    Recompute,
    Topology,
    arithmetic_of,
    folded,
    read_plan,
    read_topology,
    subtopology,
)
from farflung.plans.testbeds.catalogue import find_topology
from farflung.plans.wishes import ALL_DENSE, AUTO, DATA_SHEET_EFFICIENCY
from farflung.simulator import Conditions, Simulation
from farflung.simulator import simulate as simulated
from farflung.text import count_of

MOST_SEED = 2**32 - 1
WHAT_IF_SECONDS = 30.0
"""CPU seconds after which no further what-if change is tried."""

ANYWHERE = (
    "this forecast lets any worker read inputs and targets: with Job(keep_home=) home workers run more of the"
    " model, and a step may take longer"
)
"""The note on a job that keeps data at home: a topology does not say who is home."""


def plan(
    job: Job,
    topology: Topology | Path | str,
    *,
    scheduler: str = AUTO,
    workers: int | None = None,
    microbatches: Microbatches = None,
    efficiency: float = DATA_SHEET_EFFICIENCY,
    recompute: Recompute = AUTO,
    replicas: int | str = 1,
    codecs: CodecWishes = ALL_DENSE,
    profile: Path | None = None,
    budget: int = Options.budget,
    seconds: float | None = None,
    seed: int = 0,
    what_if: bool = True,
    tell: ProgressCallback = no_progress,
    show: Callable[[Forecast], None] | None = None,
) -> Forecast:
    """Plan a job's model on a fleet and forecast its step time. Nothing is trained; weights are not needed.

    Parameters
    ----------
    job
        Its model may be on the meta device.
    topology
        The fleet, a testbed's name, or the path of a topology file. Workers that cannot reach the others, or
        that lack an op of the model, are left out.
    scheduler
        One of `farflung.planner.registry.SCHEDULERS`.
    workers
        Number of workers to use; None leaves out workers that would make the step slower.
    microbatches
        Overrides the job's own: a number that divides its batch, or "auto" for the best of several.
    efficiency
        The part of its TFLOP/s that a device reaches.
    recompute
        Whether segments recompute activations instead of storing them: "auto" (where memory requires it),
        "always" or "never".
    replicas
        How many copies of the model train on parts of each batch; "auto" chooses how many.
    codecs
        Codec pairs of links; a link that is not listed uses the job's own.
    profile
        A file from `farflung capture --profile`. Operators are then weighted by their time on the profiled
        device, so `tflops` means what a device sustains on this model.
    budget, seconds, seed
        Limits of the search: how many plans to evaluate, how many CPU seconds to spend, and its random seed.
    what_if
        Whether to plan again with one change at a time, to find what would help most.
    tell
        Called with a few words on each stage.
    show
        Called with the forecast before it is planned again, which may take half a minute of CPU time.

    Raises
    ------
    CaptureError, JobError, ProfileError
        The model cannot be captured, or the profile is of another model.
    TopologyError
        There is no such testbed or file, or the file is not a topology.
    PlanError
        No plan exists (the message says what is missing), or `workers`, `budget` or `seed` is out of range.
    """
    fleet, conditions = for_job(job, _topology(topology)), _conditions(efficiency, None)
    job, gentler = with_gentle_auto(job)
    codecs = codecs.otherwise(job.codec, job.max_loss_gap, job.sum_codec).of_job(job.is_steady)
    require_known(codecs, fleet.ids, codecs.codebook)
    copies = parse_replicas(str(replicas))
    search = scheduler_for(codecs, scheduler_for_replicas(scheduler, copies), conditions)
    number_of(job, microbatches)
    require_possible(fleet, workers, budget, seed)
    if copies > 1:
        there = len(fleet.workers)
        require_replicas(copies, workers or there // copies * copies or there, number_of(job, microbatches))
    tell("capturing the model")
    model = model_of(job, microbatches, profile)
    fleet, out = _able(fleet, model, workers or 0)
    watch = Search(tell, f"looking for a plan on {count_of(len(fleet.workers), 'worker')} ({scheduler})")
    options = Options(
        workers=workers,
        efficiency=efficiency,
        recompute=recompute != "never",
        most_replicas=copies or len(fleet.workers),
        inner_steps=job.training().inner_steps,
        equal_cuts=job.clip_by == "segment",
        budget=budget,
        seconds=seconds,
        seed=seed,
        alternatives=model.alternatives,
        watch=watch,
        stage=watch.stage,
    )
    schedule = find_schedule(search, fleet, model.workload, options, recompute)
    predicted = predict(schedule.plan, fleet, codecs, job.steps, conditions)
    schedule, simulation = replace(schedule, plan=predicted.plan), predicted.simulation
    found = forecast(schedule, fleet, simulation, model.holds, out)
    frameworks = {worker.id: worker.framework for worker in fleet.workers}
    beside = plan_notes(schedule.plan, codecs, job.steps, model.draws, frameworks)
    beside += check_notes(schedule.plan, simulation, job.verify)
    home = [*length_notes(job.lengths), *([ANYWHERE] if job.keep_home else [])]
    if copies == 0 and found.replicas == 1 and _tries_replicas(scheduler, model, options):
        home.append("replicas: one pipeline is fastest of what was tried")
    notes = [*found.notes, *predicted.notes, *beside, *gentler, *home]
    found = msgspec.structs.replace(found, notes=notes, no_bound=_no_bound(found, codecs, copies))
    if show is not None:
        show(found)
    if not what_if:
        return found
    effects = _effects(predicted.connected, schedule, simulation, search, options, tell)
    rows = [EffectRow(one.words, one.step_seconds, one.change) for one in effects]
    return msgspec.structs.replace(found, what_if=rows)


def for_job(job: Job, topology: Topology) -> Topology:
    """The topology with the rates of the job's precision and mode."""
    return topology.computing(arithmetic_of(job.precision, job.deterministic))


def _tries_replicas(scheduler: str, model: Model, options: Options) -> bool:
    """Whether a search that may choose the number of replicas looks at more than one."""
    most = min(options.most_replicas, model.workload.microbatches, options.workers or options.most_replicas)
    copies = scheduler == AUTO and options.workers is None
    return most > 1 and (copies or options.may_cut_unlike)


def _no_bound(found: Forecast, codecs: CodecWishes, replicas: int) -> str:
    """Why a forecast has no lower bound; empty if it has one."""
    if found.lower_bound_seconds is not None:
        return ""
    if codecs.codebook:
        return "bounds hold for dense links, with codecs none is computed"
    if replicas > 1:
        return "with a given number of replicas none is computed"
    return f"{found.scheduler} does not compute one"


def _able(fleet: Topology, model: Model, asked: int) -> tuple[Topology, dict[str, str]]:
    """The workers that can run the model's ops, and for each other worker the ops that it lacks."""
    out = unable(model.needs, fleet.abilities())
    require_able(len(fleet.workers), asked, out)
    return subtopology(fleet, [number for number, id in enumerate(fleet.ids) if id not in out]), out


def _effects(
    joined: Topology,
    schedule: Schedule,
    simulation: Simulation,
    search: Scheduler,
    options: Options,
    tell: ProgressCallback,
) -> list[Effect]:
    tried = itertools.count(1)
    return effects_of(
        joined,
        schedule,
        simulation.loads,
        search,
        options,
        seconds=WHAT_IF_SECONDS,
        tell=lambda words: tell(f"what if, change {next(tried)}: {words}"),
    )


def simulate(
    plan: Plan | Path | str,
    topology: Topology | Path | str,
    *,
    efficiency: float = DATA_SHEET_EFFICIENCY,
    bandwidth_scale: float = 1.0,
    window: int | None = None,
    precision: Precision = "float32",
    deterministic: bool = False,
) -> Expected:
    """Simulate one step of a plan on a topology: how long it takes, and how busy devices and links are.

    Parameters
    ----------
    plan
        A plan, or the path of a `plan.json` or of a run folder that contains one.
    topology
        A topology, a testbed's name, or the path of a topology file, that has all workers of the plan.
    efficiency
        The part of its TFLOP/s that a device reaches.
    bandwidth_scale
        Factor for every rate of the topology.
    window
        The window, if it differs from the plan's.
    precision, deterministic
        Those of the job, where the topology says how fast devices are in each.

    Raises
    ------
    PlanError
        The file is not a plan, or the topology lacks a worker or a link that the plan uses.
    TopologyError
        There is no such testbed or file, the file is not a topology, or a scaled rate is out of bounds.
    """
    given = folded(plan if isinstance(plan, Plan) else read_plan(Path(plan)))
    where = scaled(_topology(topology), bandwidth_scale).computing(arithmetic_of(precision, deterministic))
    return expected(given, where, simulated(given, where, _conditions(efficiency, window)))


def scaled(topology: Topology, bandwidth_scale: float) -> Topology:
    """The topology with every rate multiplied; raises TopologyError if one is then out of bounds."""
    if bandwidth_scale == 1:
        return topology
    try:
        return topology.slower(1 / bandwidth_scale, "all bandwidths")
    except (ValueError, ZeroDivisionError):
        bounds = "rates must stay between 0.001 and 1e6 Mbit/s"
        raise TopologyError(f"bandwidths cannot be scaled by {bandwidth_scale:g}: {bounds}") from None


def _topology(topology: Topology | Path | str) -> Topology:
    if isinstance(topology, Topology):
        return topology
    return find_topology(topology) if isinstance(topology, str) else read_topology(topology)


def require_possible(fleet: Topology, workers: int | None, budget: int, seed: int) -> None:
    """Check what can be checked before a model is captured; raises PlanError."""
    if workers is not None and workers < 1:
        raise PlanError(f"a plan uses at least 1 worker, found workers {workers}")
    if workers is not None and workers > (there := len(fleet.workers)):
        raise PlanError(f"the topology has {count_of(there, 'worker')}, {workers} were asked for")
    if budget < 1:
        raise PlanError(f"the budget must be at least 1 plan to look at, found {budget}")
    if not 0 <= seed <= MOST_SEED:
        raise PlanError(f"the seed must be 0 to {MOST_SEED}, found {seed}")


def _conditions(efficiency: float, window: int | None) -> Conditions:
    try:
        return Conditions(efficiency=efficiency, window=window)
    except ValueError as error:
        raise PlanError(str(error)) from None
