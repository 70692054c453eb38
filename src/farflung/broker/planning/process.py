"""The planner process: reads a question from standard input and writes the answer to standard output.

A graph of 100,000 nodes takes a while to plan, and a hostile one may use up the memory. Meanwhile the broker
only waits, and its heartbeats continue.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec

from farflung.broker.planning.messages import (
    LENGTH_BYTES,
    Answer,
    Broken,
    Impossible,
    Lacking,
    PlanResult,
    Question,
    Searched,
)
from farflung.broker.planning.programs import programs_of, trained_values
from farflung.broker.planning.what_if_messages import Foreseen
from farflung.errors import FarflungError, PlanError
from farflung.opdag import wire
from farflung.opdag.buckets import lengths_of
from farflung.opdag.graph import Graph
from farflung.planner import PlannedJob, place, plan_job
from farflung.planner.assignment import Options, Schedule, Watch, ignore_progress
from farflung.planner.codecs.tuner import tuning_basis
from farflung.planner.codecs.wishes import (
    alike,
    limits_of,
    phased,
    require_known,
    scheduler_for,
    unplanned,
)
from farflung.planner.compatibility import Needs, unable
from farflung.planner.evaluating import affordable_microbatches, fewer_note
from farflung.planner.home import HomeRule, kept_at_home, require_scheduler
from farflung.planner.notes import (
    check_notes,
    draws,
    home_noise_notes,
    length_notes,
    mode_notes,
    recomputing_notes,
    window_notes,
)
from farflung.planner.replicas import (
    alike_workers,
    evenly_replicated,
    fewer_replicas,
    possible,
    scheduler_for_replicas,
    shared_out,
)
from farflung.planner.run import find_schedule, plan_notes, predict
from farflung.plans import Plan, Prediction, Topology, connected_part, folded, subtopology
from farflung.plans.codec_pair import DENSE
from farflung.plans.topology import MOST_GIGABYTES
from farflung.plans.wishes import AUTO, LINE_LENGTH
from farflung.runtime.optimizers.memory import memory_of_updates
from farflung.runtime.training import Training
from farflung.simulator import Conditions, simulate
from farflung.simulator.simulation import BRIEF_SECONDS, brief_notes
from farflung.text import count_of
from farflung.workload import workload_of

BUDGET = 400
"""Number of plans that a search examines before a job begins."""

PROGRESS_SECONDS = 0.5
"""Minimum time between two progress reports."""

MOST_MEMORY_BYTES = 4 * 1024**3
"""Memory limit of this process; a plan for 1,000 workers took 0.35 GB."""


class _Progress:
    """Reports the progress of a search to the broker (a `planner.assignment.Watch`).

    Steps too brief to be predicted are not reported as the best: none is predicted for the plan either.
    """

    def __init__(self, microbatches: int) -> None:
        self._plans, self._best = 0.0, float("inf")
        self._brief = BRIEF_SECONDS * microbatches
        self._next_report = time.monotonic() + PROGRESS_SECONDS

    def __call__(self, plans: float, step_seconds: float) -> None:
        self._plans += plans
        self._best = min(self._best, step_seconds)
        if time.monotonic() >= self._next_report:
            self._next_report = time.monotonic() + PROGRESS_SECONDS
            is_known = self._brief <= self._best < float("inf")
            write_message(Searched(self._plans, self._best if is_known else None))


def main() -> None:
    """Answer one question."""
    limit_memory()
    question = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Question)
    write_message(answer(question, _Progress(question.training.microbatches)))


def write_message(message: Searched | Answer | Foreseen) -> None:
    """Write a message for the broker."""
    body = msgspec.msgpack.encode(message)
    sys.stdout.buffer.write(len(body).to_bytes(LENGTH_BYTES, "big") + body)
    sys.stdout.buffer.flush()


def limit_memory() -> None:
    """Limit this process's memory, so that it fails before the machine does, if the system supports it."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))


def answer(question: Question, watch: Watch = ignore_progress) -> Answer:
    """Plan what the question asks for; `watch` is called with the search's progress."""
    try:
        return _answer(question, watch)
    except FarflungError as error:
        return Impossible(str(error))
    except MemoryError:
        return Impossible("the model or the fleet is too large for the broker's machine to plan")
    except Exception as error:
        return Broken(f"{type(error).__name__}: {error}", traceback.format_exc())


def _answer(question: Question, watch: Watch) -> PlanResult | Lacking:
    training = question.training
    graph = wire.load_graph(question.graph, training.microbatch_size)
    _require_lengths(graph, question)
    lacking = unable(Needs.of(graph), question.abilities)
    able = [worker for worker in question.workers if worker not in lacking]
    if lacking and len(able) < max(question.count, 1):
        return Lacking(lacking)
    question = _among(question, able)
    require_known(question.codecs, question.workers, training.codecs)
    require_scheduler(question.scheduler, question.home)
    made, prediction = _planned(question, graph, watch)
    made = kept_at_home(made, graph, question.home)
    tuning = _tuning_basis(question, made.plan)
    sites = {} if question.topology is None else {w.id: w.site for w in question.topology.workers}
    made = made.unfolded(training.microbatch_size, sites)
    programs = programs_of(made, training)
    evaluated, why = _evaluated(question, made.plan)
    return PlanResult(
        made.plan,
        programs,
        [list(program.owned) for program in programs],
        prediction,
        lacking,
        _notes(question, graph, made.plan, why),
        tuning,
        [trained_values(segment, training) for segment in made.segments],
        _current_seconds(question),
        evaluated,
    )


def _among(question: Question, able: Sequence[str]) -> Question:
    """The question for these workers only; replicas run on workers that are alike."""
    if question.replicas != 1 and not question.training.emulated:
        able = alike_workers(able, question.abilities)
        count = min(question.count, len(able))
        question = msgspec.structs.replace(question, count=count - count % max(1, question.replicas))
    return msgspec.structs.replace(question, workers=list(able))


def _planned(question: Question, graph: Graph, watch: Watch) -> tuple[PlannedJob, Prediction | None]:
    """The folded plan, with a prediction where links are measured."""
    if question.topology is not None:
        return scheduled(question, graph, watch)
    if question.home.data:
        return _on_equals(question, graph, watch), None
    return _balanced(question, graph), None


def _notes(question: Question, graph: Graph, plan: Plan, evaluated: Sequence[str]) -> list[str]:
    """Notes on the unfolded plan, those on its evaluations among them."""
    training, abilities = question.training, question.abilities
    frameworks = {worker: ability.framework for worker, ability in abilities.items()}
    kinds = {worker: ability.kind for worker, ability in abilities.items()}
    notes = plan_notes(plan, question.codecs, training.steps, draws(graph), frameworks)
    if (found := len(plan.pipelines) or 1) < question.replicas:
        notes.append(fewer_replicas(found, question.replicas, len(question.workers)))
    if not question.replicas and question.topology is None:
        notes.append(
            f"{count_of(found, 'replica')}: nothing is measured of these workers yet to compare more by"
        )
    modes = mode_notes(plan.workers(), kinds, training.deterministic, training.compiled)
    noise = home_noise_notes(plan, training.home_noise)
    return [*notes, *noise, *evaluated, *length_notes(training.lengths), *modes]


def _require_lengths(graph: Graph, question: Question) -> None:
    lengths = question.training.lengths
    if lengths_of(graph, lengths[-1] if lengths else 0) != (lengths or (0,)):
        raise PlanError("the job was captured at other lengths than it trains on: submit it again")
    if lengths and (question.codecs.every != DENSE or question.codecs.links):
        raise PlanError(
            "codecs of links write batches of one length: train without --codec, or give Pad one length"
        )


def _current_seconds(question: Question) -> float | None:
    """The simulated step of the plan that the job has."""
    if question.current is None or question.topology is None:
        return None
    net = connected_part(topology_of(question))[0]
    return simulate(folded(question.current), net, Conditions(efficiency=question.efficiency)).step_seconds


def _evaluated(question: Question, plan: Plan) -> tuple[int, list[str]]:
    """How many microbatches evaluations take, 0 for as many as the training says, and why there are fewer."""
    training, share = question.training, question.validation_share
    if not share or question.topology is None or training.validation_microbatches < 2:
        return 0, []
    net, conditions = connected_part(topology_of(question))[0], Conditions(efficiency=question.efficiency)
    plan, units = folded(plan), training.units()
    step = simulate(plan, net, conditions)
    passes = [] if training.validate_plain else [step]
    if training.validate_twice or training.validate_plain:
        passes.append(simulate(msgspec.structs.replace(plan, codecs=[]), net, conditions))
    found = affordable_microbatches(units, step, passes, share)
    if found == training.validation_microbatches:
        return 0, []
    return found, [fewer_note(units, step, passes, found, share)]


def _tuning_basis(question: Question, plan: Plan) -> bytes:
    """The initial state of codec tuning; empty if the job's codecs are fixed."""
    policy = question.codecs.policy
    if policy is None or policy.kind != "auto":
        return b""
    topology = question.topology
    net = alike(plan.workers()) if topology is None else connected_part(topology_of(question))[0]
    return tuning_basis(plan, net, Conditions(efficiency=question.efficiency), limits_of(question.codecs))


def _balanced(question: Question, graph: Graph) -> PlannedJob:
    """Plan with the cut of `planner.cutting.balanced`, for workers whose links are unknown.

    Where the planner is to choose how many replicas there are, there are no more than the cut needs.
    """
    training = question.training
    workers = question.workers[: question.count or None]
    replicas = possible(question.replicas, len(workers), training.microbatches)
    tried = [replicas] if question.replicas or not question.count else shared_out(len(workers), training)
    for replicas in tried:
        try:
            made = plan_job(
                graph,
                training.microbatches,
                training.microbatch_size,
                workers[: len(workers) // replicas],
                exactly=question.count > 0,
                recompute=question.recompute == "always",
            )
            break
        except PlanError:
            if replicas == tried[-1]:
                raise
    plan = evenly_replicated(made.plan, question.workers, replicas)
    plan = msgspec.structs.replace(plan, codecs=list(unplanned(plan, question.codecs)))
    if plan.replicas > 1:
        sums = DENSE if question.codecs.sums == AUTO else question.codecs.sums
        plan = msgspec.structs.replace(plan, sum_codec=sums, inner_steps=training.inner_steps)
    return replace(made, plan=phased(plan, question.codecs, training.steps))


def _on_equals(question: Question, graph: Graph, watch: Watch) -> PlannedJob:
    """Plan for workers without measurements as if all were equal, where data stays at home.

    The balanced cut is for workers in their order, which says nothing of who is home. As many are used as
    can be, unless the question says how many.
    """
    equals = alike(question.workers)
    roomy = tuple(msgspec.structs.replace(one, memory_gb=MOST_GIGABYTES) for one in equals.workers)
    topology = msgspec.structs.replace(equals, workers=roomy)
    counts = [question.count] if question.count else range(len(question.workers), 0, -1)
    for count in counts:
        asked = msgspec.structs.replace(question, topology=topology, count=count)
        try:
            return scheduled(asked, graph, watch)[0]
        except PlanError:
            if count == counts[-1]:
                raise
    raise PlanError("a plan needs at least one worker, found none: start one with `farflung join`")


def scheduled(question: Question, graph: Graph, watch: Watch) -> tuple[PlannedJob, Prediction]:
    """Plan with the scheduler that the job asks for, on a topology."""
    training = question.training
    topology = topology_of(question)
    options = Options(
        workers=question.count or None,
        efficiency=question.efficiency,
        budget=BUDGET,
        recompute=question.recompute != "never",
        most_replicas=question.replicas or len(question.workers),
        inner_steps=training.inner_steps,
        seconds=question.search_seconds,
        watch=watch,
        home=HomeRule.of(graph, question.home),
        equal_cuts=training.clip_by == "segment",
    )
    conditions = Conditions(efficiency=question.efficiency)
    planning = scheduler_for_replicas(question.scheduler, question.replicas)
    noised = bool(training.home_noise and question.home.data)
    search = scheduler_for(question.codecs, planning, conditions, noised)

    def found(training: Training) -> Schedule:
        updates = memory_of_updates(training.optimizer, training.copies)
        workload = workload_of(graph, training.microbatches, training.microbatch_size, updates=updates)
        return find_schedule(search, topology, workload, options, question.recompute)

    schedule, unprotected = _with_room(found, training, question.copies)
    made = place(graph, schedule.assignment, training.microbatch_size)
    predicted = predict(made.plan, topology, question.codecs, training.steps, conditions)
    made, simulation = replace(made, plan=predicted.plan), predicted.simulation
    used = set(made.plan.workers())
    busy = max((load.share for load in simulation.loads if load.kind == "device"), default=0.0)
    brief = brief_notes(busy, simulation.step_seconds, made.plan.microbatches, len(used))
    notes = [
        *unprotected,
        *schedule.notes,
        *predicted.notes,
        *recomputing_notes(made.plan),
        *window_notes(made.plan),
        *check_notes(made.plan, simulation, training.verify),
        *brief,
        *question.assumed,
    ]
    return made, Prediction(
        scheduler=schedule.scheduler,
        step_seconds=simulation.step_seconds,
        bottleneck=simulation.line(),
        lower_bound_seconds=schedule.lower_bound_seconds,
        left_out=[id for id in predicted.connected.ids if id not in used],
        unreachable=predicted.unreachable,
        notes=[note[:LINE_LENGTH] for note in notes],
        measured=question.measured,
        brief=bool(brief),
        asked=question.count,
    )


def _with_room(
    found: Callable[[Training], Schedule], training: Training, copies: int
) -> tuple[Schedule, list[str]]:
    """A schedule with memory for copies of the state, else one without, and a note that says so."""
    roomy = training.with_copies(copies)
    if roomy == training:
        return found(training), []
    try:
        return found(roomy), []
    except PlanError:
        note = "no plan leaves memory for copies of the state: a lost worker costs all since a checkpoint"
        return found(training), [note]


def topology_of(question: Question, workers: Sequence[str] | None = None) -> Topology:
    """The topology reduced to these workers, or those of the question; PlanError if it lacks one of them."""
    assert question.topology is not None
    wanted = question.workers if workers is None else workers
    numbers = {id: number for number, id in enumerate(question.topology.ids)}
    for worker in wanted:
        if worker not in numbers:
            raise PlanError(
                f"the topology does not have worker {worker}: name the workers to train on (--on), or add it"
            )
    return subtopology(question.topology, [numbers[worker] for worker in wanted])


if __name__ == "__main__":
    main()
