"""The interface of schedulers: `Options` in, `Schedule` out, with an `Assignment` of segments to workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from farflung.plans import FEEDER, Edge, LinkCodec, Placement, Plan, Topology, side_by_side
from farflung.plans.codec_pair import DENSE
from farflung.simulator import Conditions
from farflung.workload import Workload
from farflung.workload.coding import sum_memory
from farflung.workload.footprint import NOTHING, Footprint

if TYPE_CHECKING:
    from farflung.planner.home import HomeRule


@dataclass(frozen=True)
class Assignment:
    """Contiguous segments of a workload and their workers.

    Parameters
    ----------
    cuts
        Positions of the cuts, ascending: one fewer than segments.
    workers
        The ids of each segment's workers, one for each replica.
    microbatches
        Microbatches of a step, over all replicas.
    window
        W of the admission rule (`schedule.policy`).
    shares
        Microbatches of each replica; empty without replicas.
    recompute
        For each segment, whether it recomputes activations instead of storing them; empty: none does.
    codecs
        Codec pairs of the links that are not dense.
    sum_codec
        The codec of sums of gradients between the sites of replicas.
    inner_steps
        Replicas add up once in so many steps.
    others
        Further pipelines with cuts of their own, each an assignment of one pipeline on its share of the
        microbatches: then `cuts` and `workers` are those of the first pipeline, which has one worker for each
        segment. Each has its own window.
    """

    cuts: tuple[int, ...]
    workers: tuple[tuple[str, ...], ...]
    microbatches: int
    window: int
    shares: tuple[int, ...] = ()
    recompute: tuple[bool, ...] = ()
    codecs: tuple[LinkCodec, ...] = ()
    sum_codec: str = DENSE
    inner_steps: int = 1
    others: tuple[Assignment, ...] = ()

    def ranges(self, nodes: int) -> list[tuple[int, int]]:
        """The first position and the one after the last of each segment of a workload of `nodes` nodes."""
        edges = [0, *self.cuts, nodes]
        return list(pairwise(edges))

    def parts(self) -> tuple[Assignment, ...]:
        """Its pipelines if they have cuts of their own; else itself, with all replicas."""
        if not self.others:
            return (self,)
        alone = replace(self, microbatches=self.shares[0], shares=(), codecs=(), others=())
        return (alone, *self.others)

    def used(self) -> set[str]:
        """All its workers."""
        return {name for part in self.parts() for names in part.workers for name in names}

    def recomputing(self) -> Assignment:
        """The same one with every segment recomputing."""
        others = tuple(one.recomputing() for one in self.others)
        return replace(self, recompute=(True,) * len(self.workers), others=others)


Watch = Callable[[float, float], None]
"""A progress callback of a search: the number of further plans evaluated, and the best step time among them
(infinite if unknown). It has no effect on the result."""


def ignore_progress(plans: float, step_seconds: float) -> None:
    """Ignore progress."""


def ignore_stage(words: str) -> None:
    """Ignore what a search looks at."""


@dataclass(frozen=True)
class Coding:
    """How a search rates plans whose links get codecs, if it is given other lines than there are.

    Parameters
    ----------
    codecs
        Gives roughly the codec pairs of a plan's links on `topology`; called for each plan that is rated.
    topology
        The workers and lines as they are.
    conditions
        Those of the simulation, with the speed of codecs.
    """

    codecs: Callable[[Plan, Topology], tuple[LinkCodec, ...]]
    topology: Topology
    conditions: Conditions


@dataclass(frozen=True)
class Options:
    """What a scheduler may use and how long it may search.

    Parameters
    ----------
    workers
        Use exactly this many workers (all replicas together); None lets the scheduler choose.
    most_replicas
        The largest number of replicas; 1 for an ordinary pipeline.
    window
        W of the admission rule; None lets the scheduler choose.
    recompute
        Whether segments may recompute activations instead of storing them.
    efficiency
        The fraction of its TFLOP/s that a device sustains.
    budget
        How many plans may be evaluated. A search stops by this count, so equal inputs give equal plans.
    seconds
        A cap on CPU seconds. A search that reaches it says so; its result may differ the next time.
    seed
        The seed of all random numbers.
    sum_codec
        The codec of sums of gradients, where a plan has replicas.
    inner_steps
        Steps between two sums: more than 1 if replicas train apart (DiLoCo).
    incumbent
        A plan in use; the answer is never worse.
    alternatives
        The same model with other numbers of microbatches, from which a scheduler may choose.
    proven
        A known lower bound on the step time over all of these workloads; None: the scheduler computes one.
    watch
        The progress callback of a long search.
    stage
        Called with a few words on what a search of several parts looks at next, such as "codecs".
    home
        Which workers may run segments that read data that stays at home; None: any. Only `auto` obeys it.
    coding
        Rate plans by their steps with these codecs; None: by dense ones. Only `auto` does so.
    equal_cuts
        Whether all replicas must have the same cuts, as where each segment's gradients are clipped by
        themselves.
    """

    workers: int | None = None
    most_replicas: int = 1
    window: int | None = None
    recompute: bool = False
    efficiency: float = 1.0
    budget: int = 2000
    seconds: float | None = None
    seed: int = 0
    sum_codec: str = DENSE
    inner_steps: int = 1
    incumbent: Assignment | None = None
    alternatives: tuple[Workload, ...] = ()
    proven: float | None = None
    watch: Watch = field(default=ignore_progress, compare=False)
    stage: Callable[[str], None] = field(default=ignore_stage, compare=False)
    home: HomeRule | None = None
    coding: Coding | None = None
    equal_cuts: bool = False

    @property
    def may_cut_unlike(self) -> bool:
        """Whether replicas may have cuts of their own.

        Not where data stays at home: a stranger could hold what a home worker of another replica holds, and
        would get its gradients to add them up, which tell of the data.
        """
        return not self.equal_cuts and self.home is None

    def begin(self, words: str) -> Options:
        """Report a stage, and return the options of its search, whose own stages follow its words."""
        self.stage(words)
        return replace(self, stage=lambda within: self.stage(f"{words}, {within}"))


@dataclass(frozen=True)
class Schedule:
    """A scheduler's answer.

    `step_seconds` is the simulated time of a step. No plan for the same inputs can take less than
    `lower_bound_seconds` (0 if the scheduler proves nothing). `evaluated` counts the plans that were
    evaluated; `capped` says that a cap on seconds ended the search. `notes` are for the user. `others` are
    further good assignments, each with its workload, the best one first.
    """

    scheduler: str
    workload: Workload
    assignment: Assignment
    plan: Plan
    step_seconds: float
    lower_bound_seconds: float = 0.0
    evaluated: int = 1
    capped: bool = False
    notes: tuple[str, ...] = field(default=())
    others: tuple[tuple[Workload, Assignment], ...] = field(default=(), repr=False)

    @property
    def gap(self) -> float | None:
        """Step time divided by its lower bound; None if nothing is proven."""
        return self.step_seconds / self.lower_bound_seconds if self.lower_bound_seconds else None


Scheduler = Callable[[Topology, Workload, Options], Schedule]
"""A pure function: equal inputs, equal answers. If there is no plan, PlanError says what is missing."""


def plan_of(workload: Workload, assignment: Assignment) -> Plan:
    """The plan of an assignment, from costs alone, for `simulate` and for the user.

    Its edges are those that `planner.placing.place` derives from the graph, with one difference: it also
    recomputes values that would be cheaper to send. Pipelines with cuts of their own are beside each other,
    with one sum for each piece, whose value is the number of its first node; nothing is known of sites.
    """
    if not assignment.others:
        return _plan_of_part(workload, assignment)
    parts = assignment.parts()
    plans = [_plan_of_part(workload, part) for part in parts]
    like = replace(assignment, shares=(), others=())
    return side_by_side(
        _plan_of_part(workload, like), plans, [_trained(workload, part, parts) for part in parts], {}
    )


def _trained(workload: Workload, part: Assignment, parts: Sequence[Assignment]) -> list[dict[int, int]]:
    """The bytes of gradients in each piece of each segment, by the piece's first node."""
    edges = sorted({0, len(workload), *(cut for one in parts for cut in one.cuts)})
    trained = workload.sums["trainable"]
    sizes = {first: int(trained[over] - trained[first]) for first, over in pairwise(edges)}
    return [
        {first: size for first, size in sizes.items() if start <= first < stop and size}
        for start, stop in part.ranges(len(workload))
    ]


def _plan_of_part(workload: Workload, assignment: Assignment) -> Plan:
    ranges = assignment.ranges(len(workload))
    recompute = assignment.recompute or (False,) * len(ranges)
    placements = [
        Placement(
            segment=number,
            workers=list(assignment.workers[number]),
            flops=int(workload.flops[start:stop].sum()),
            parameter_bytes=int(workload.sums["parameter"][stop] - workload.sums["parameter"][start]),
            nodes=stop - start,
            recompute=recompute[number],
            trained_bytes=int(workload.sums["trainable"][stop] - workload.sums["trainable"][start]),
        )
        for number, (start, stop) in enumerate(ranges)
    ]
    return Plan(
        placements=placements,
        edges=_edges(workload, assignment.cuts),
        microbatches=assignment.microbatches,
        window=assignment.window,
        shares=list(assignment.shares),
        codecs=list(assignment.codecs),
        sum_codec=assignment.sum_codec,
        inner_steps=assignment.inner_steps,
    )


def memory_of(workload: Workload, assignment: Assignment, worker: str) -> float:
    """Bytes that all segments of `worker` need together."""
    return memory_by_worker(workload, assignment, worker).get(worker, 0.0)


def memory_by_worker(workload: Workload, assignment: Assignment, only: str | None = None) -> dict[str, float]:
    """`memory_of` each worker that has a segment, or of `only` one."""
    needed: dict[str, Footprint[float]] = {}
    others = max(0, len(assignment.shares) - 1)
    for part in assignment.parts():
        recompute = part.recompute or (False,) * len(part.workers)
        ranges = part.ranges(len(workload))
        for (start, stop), names, again in zip(ranges, part.workers, recompute, strict=True):
            if only is not None and only not in names:
                continue
            footprint = workload.footprint(start, stop, part.window, again)
            if others:  # what arrives for sums of gradients, at most: one owns all
                sizes = workload.trainable_bytes[start:stop]
                footprint = replace(footprint, state=footprint.state + others * float(sizes.sum()))
                if assignment.sum_codec != DENSE:
                    coding = sum_memory(map(float, sizes))
                    most = max(float(footprint.coding), coding.working)
                    footprint = footprint.with_codecs(coding.learned, most)
            for name in names:
                needed[name] = needed.get(name, NOTHING).beside(footprint)
    return {name: float(together.bytes) for name, together in needed.items()}


def _edges(workload: Workload, cuts: tuple[int, ...]) -> list[Edge]:
    def segments(positions: tuple[int, ...]) -> list[int]:
        return np.unique(np.searchsorted(cuts, positions, side="right")).tolist()

    edges = [
        Edge(feed.value, FEEDER, target, feed.bytes, False)
        for feed in workload.feeds
        for target in segments(feed.readers)
    ]
    first, last = np.searchsorted(cuts, workload.span_ends, side="right")
    for at in np.flatnonzero(first != last).tolist():  # there are few, and schedulers call this often
        span, source = workload.spans[at], int(first[at])
        each = span.tensor.element_bytes
        for target in segments(span.readers):
            if target != source:
                edges.append(Edge(span.value, source, target, span.bytes, span.gradient, each, span.frozen))
    return edges
