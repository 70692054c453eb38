"""What would help most: the model planned again with one thing about the fleet changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from farflung.errors import PlanError
from farflung.planner.advice import changes
from farflung.planner.assignment import Options, Schedule, Scheduler, memory_of, unwatched
from farflung.planner.bounds import lower_bound_seconds
from farflung.plans import Topology
from farflung.plans.wishes import AUTO
from farflung.simulator import Load
from farflung.workload import Workload

MOST_CHANGES = 12
_WORTH_TELLING = 0.02  # of the step time: another search of the same fleet may find as much
_FULL = 0.7  # of a worker's memory: from there on it may keep a plan from being a better one
_EASIER = 10  # a search that begins with a good plan gets this part of the budget


@dataclass(frozen=True)
class Change:
    """Something that a user may change, and the topology that it makes."""

    words: str
    topology: Topology


@dataclass(frozen=True)
class Effect:
    """What a change brings: the step time with it, and how that differs from the time without (-0.31)."""

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
    """What at most `most` changes would bring, the best first; those that bring next to nothing are left out.

    Each change is planned for by `scheduler`, from the plan that there is. They are tried in the order of
    promise: what the busiest of `loads` asks for comes first. `seconds` bounds the CPU time of all of them,
    and `tell` hears which one is tried. A change for which the lower bound says that no plan brings enough is
    not planned for.
    """
    searching = replace(
        options, budget=max(1, options.budget // _EASIER), incumbent=schedule.assignment, watch=unwatched
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
            continue  # it brings next to nothing
        try:
            workers = _as_many(options.workers, change.topology)
            with_it = replace(searching, workers=workers, proven=proven)
            after = scheduler(change.topology, schedule.workload, with_it).step_seconds
        except PlanError:
            continue  # a change that a scheduler cannot plan for helps nobody
        found.append(Effect(change.words, after, after / schedule.step_seconds - 1))
    return sorted((e for e in found if e.change <= -_WORTH_TELLING), key=lambda e: e.change)


def _bound(topology: Topology, workload: Workload, options: Options) -> float:
    """What no plan undercuts with any of the numbers of microbatches that may be chosen."""
    return min(
        lower_bound_seconds(topology, one, options.efficiency, options.most_replicas, options.recompute)
        for one in (workload, *options.alternatives)
    )


def _as_many(asked: int | None, topology: Topology) -> int | None:
    """The workers that were asked for, or all if that is one more than there are."""
    return None if asked is None else min(asked, len(topology.workers))


def changes_worth_a_try(
    topology: Topology, schedule: Schedule, loads: Sequence[Load], leaves_out: bool = True
) -> Iterator[Change]:
    """Changes of the fleet in the order of their promise, each once.

    A fleet without one of its workers is among them unless the scheduler `leaves_out` whom it wants anyway.
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
    """One more of the best of a worker's site."""
    site = topology.workers[number].site
    mates = [a for a, worker in enumerate(topology.workers) if worker.site == site]
    best = max(mates, key=lambda a: (topology.workers[a].tflops, topology.workers[a].memory_gb, -a))
    id = topology.ids[best]
    where = f" at {site}" if site not in ("", id) else ""
    return Change(f"one more like {id}{where}", changes.with_twin(topology, best))


def _line(topology: Topology, number: int) -> Iterator[Change]:
    """A faster line: where both ways are as fast, both at once; else the slower way first."""
    id = topology.ids[number]
    up, down = changes.uplink_mbps(topology, number), changes.downlink_mbps(topology, number)
    if up is None or down is None:
        return
    if up == down:
        if rate := changes.next_line_mbps(up):
            yield Change(f"a {rate:g} Mbit/s line at {id}", changes.with_line(topology, number, rate, rate))
        return
    ways = [(up, "uplink"), (down, "downlink")]
    for mbps, way in sorted(ways):
        if rate := changes.next_line_mbps(mbps):
            new = (rate, None) if way == "uplink" else (None, rate)
            yield Change(f"a {rate:g} Mbit/s {way} at {id}", changes.with_line(topology, number, *new))


def _path(topology: Topology, a: int, b: int) -> Iterator[Change]:
    """Twice the bandwidth of a link that no line of its ends explains: between two sites, or in one."""
    site, other = sorted((topology.workers[a].site, topology.workers[b].site))
    if not site or not other:
        return
    where = f"inside {site}" if site == other else f"between {site} and {other}"
    yield Change(f"twice the bandwidth {where}", changes.with_path(topology, site, other, 2))
