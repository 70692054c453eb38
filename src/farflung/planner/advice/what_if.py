"""Find what would help most: plan the model again with one thing about the fleet changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from farflung.errors import PlanError
from farflung.planner.advice import changes
from farflung.planner.assignment import Options, Schedule, Scheduler, ignore_progress, ignore_stage, memory_of
from farflung.planner.bounds import lower_bound_seconds
from farflung.plans import Topology
from farflung.plans.wishes import AUTO
from farflung.simulator import Load
from farflung.workload import Workload

MOST_CHANGES = 12
_WORTH_TELLING = 0.02  # of the step time: another search of the same fleet could find as much
_FULL = 0.7  # of a worker's memory: above this, memory may prevent better plans
_EASIER = 10  # a search that begins with a good plan gets the budget divided by this


@dataclass(frozen=True)
class Change:
    """A change that a user can make, and the resulting topology."""

    words: str
    topology: Topology


@dataclass(frozen=True)
class Effect:
    """The effect of a change: the step time with it, and the relative difference (-0.31)."""

    words: str
    step_seconds: float
    change: float


def what_if(
    topology: Topology,
    schedule: Schedule,
    loads: Sequence[Load],
    scheduler: Scheduler,
    options: Options,
    *,
    most: int = MOST_CHANGES,
    seconds: float | None = None,
    tell: Callable[[str], None] = lambda words: None,
) -> list[Effect]:
    """The effects of at most `most` changes, the best first, without those that help very little.

    `scheduler` plans for each change, starting from the current plan. Changes that relieve the busiest of
    `loads` are tried first. `seconds` limits the CPU time of all of them, and `tell` is called with each
    change. A change is skipped if the lower bound shows that no plan helps enough.
    """
    searching = replace(
        options,
        budget=max(1, options.budget // _EASIER),
        incumbent=schedule.assignment,
        watch=ignore_progress,
        stage=ignore_stage,
    )
    leaves_out = options.workers is None and schedule.scheduler == AUTO
    enough = schedule.step_seconds * (1 - _WORTH_TELLING)
    coded = bool(schedule.assignment.codecs)  # bounds are for dense links
    began = time.process_time()
    found: list[Effect] = []
    for change in islice(changes_worth_a_try(topology, schedule, loads, leaves_out), most):
        if seconds is not None and time.process_time() - began > seconds:
            break
        tell(change.words)
        proven = None if coded else _bound(change.topology, schedule.workload, searching)
        if proven is not None and proven > enough:
            continue  # it helps very little
        try:
            workers = _as_many(options.workers, change.topology)
            with_it = replace(searching, workers=workers, proven=proven)
            after = scheduler(change.topology, schedule.workload, with_it).step_seconds
        except PlanError:
            continue  # a change without a plan does not help
        found.append(Effect(change.words, after, after / schedule.step_seconds - 1))
    return sorted((e for e in found if e.change <= -_WORTH_TELLING), key=lambda e: e.change)


def _bound(topology: Topology, workload: Workload, options: Options) -> float:
    """The lower bound over all numbers of microbatches that may be chosen."""
    return min(
        lower_bound_seconds(topology, one, options.efficiency, options.most_replicas, options.recompute)
        for one in (workload, *options.alternatives)
    )


def _as_many(asked: int | None, topology: Topology) -> int | None:
    """The requested number of workers, or all if there are fewer."""
    return None if asked is None else min(asked, len(topology.workers))


def changes_worth_a_try(
    topology: Topology, schedule: Schedule, loads: Sequence[Load], leaves_out: bool = True
) -> Iterator[Change]:
    """Changes of the fleet, the most promising first, each once.

    They include removing a worker, unless the scheduler `leaves_out` workers by itself.
    """
    said: set[str] = set()
    for change in _changes(topology, schedule, loads, leaves_out):
        if change.words not in said:
            said.add(change.words)
            yield change


def _changes(
    topology: Topology, schedule: Schedule, loads: Sequence[Load], leaves_out: bool
) -> Iterator[Change]:
    numbers = {id: number for number, id in enumerate(topology.ids)}
    yield from _memory(topology, schedule, numbers)
    for load in loads:
        ends = [numbers[worker] for worker in load.workers]
        if load.kind == "device":
            yield from _device(topology, ends[0])
            yield _twin(topology, ends[0])
        elif load.kind == "machine":
            shared = topology.machines()[topology.workers[ends[0]].machine or ""]
            more = changes.with_cores(topology, shared, 2)
            yield Change(f"twice the cores for {', '.join(load.workers)}", more)
        else:
            for number in ends:
                yield from _line(topology, number)
            if len(ends) == 2:
                yield from _path(topology, *ends)
        if not leaves_out:
            for number in ends:
                if topology.workers[number] != topology.home:
                    yield Change(f"without {topology.ids[number]}", changes.without(topology, number))
    used, workload = set(schedule.plan.workers()), schedule.workload
    whole = workload.memory_bytes(0, len(workload), 1)
    for id, number in numbers.items():
        if id not in used:
            if topology.workers[number].memory_gb * 1e9 < whole:
                yield Change(f"twice the memory at {id}", changes.with_memory(topology, number, 2))
            yield from _line(topology, number)
        yield _twin(topology, number)


def _memory(topology: Topology, schedule: Schedule, numbers: dict[str, int]) -> Iterator[Change]:
    for id in schedule.plan.workers():
        number = numbers[id]
        has = topology.workers[number].memory_gb * 1e9
        if memory_of(schedule.workload, schedule.assignment, id) > _FULL * has:
            yield Change(f"twice the memory at {id}", changes.with_memory(topology, number, 2))


def _device(topology: Topology, number: int) -> Iterator[Change]:
    id = topology.ids[number]
    yield Change(f"a device twice as fast at {id}", changes.with_device(topology, number, 2))


def _twin(topology: Topology, number: int) -> Change:
    """Add another worker like the best at a worker's site."""
    site = topology.workers[number].site
    mates = [a for a, worker in enumerate(topology.workers) if worker.site == site]
    best = max(mates, key=lambda a: (topology.workers[a].tflops, topology.workers[a].memory_gb, -a))
    id = topology.ids[best]
    where = f" at {site}" if site not in ("", id) else ""
    return Change(f"one more like {id}{where}", changes.with_twin(topology, best))


def _line(topology: Topology, number: int) -> Iterator[Change]:
    """A faster access line: both directions if they are equal, else the slower direction first."""
    id = topology.ids[number]
    up, down = (changes.own_line_mbps(topology, number, direction) for direction in ("up", "down"))
    if up is None or down is None:
        return
    if up == down:
        if rate := changes.next_line_mbps(up):
            yield Change(f"a {rate:g} Mbit/s line at {id}", changes.with_line(topology, number, rate, rate))
        return
    directions = [(up, "uplink"), (down, "downlink")]
    for mbps, direction in sorted(directions):
        if rate := changes.next_line_mbps(mbps):
            new = (rate, None) if direction == "uplink" else (None, rate)
            yield Change(f"a {rate:g} Mbit/s {direction} at {id}", changes.with_line(topology, number, *new))


def _path(topology: Topology, a: int, b: int) -> Iterator[Change]:
    """Twice the bandwidth of links that no access line limits: between two sites, or inside one."""
    site, other = sorted((topology.workers[a].site, topology.workers[b].site))
    if not site or not other:
        return
    where = f"inside {site}" if site == other else f"between {site} and {other}"
    yield Change(f"twice the bandwidth {where}", changes.with_path(topology, site, other, 2))
