"""Keep data at home: segments that read raw inputs or targets run on home workers alone.

A plan is contiguous, so a model whose inputs are read at its begin and whose targets at its end has one open
stretch between. Home workers run what is before and after it: two of them, or one that has the first and the
last segment, which is a loop as for tied parameters (`cutting.ties`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from farflung.errors import PlanError
from farflung.opdag.graph import Graph
from farflung.opdag.raw_data import inputs_of_kinds, raw_readers, raw_values, reads_raw, words_of
from farflung.planner.assignment import Assignment, memory_of
from farflung.planner.cutting.positions import Positions
from farflung.planner.cutting.ties import last_cut, positions_within_ties
from farflung.planner.placing import PlannedJob
from farflung.plans import Topology
from farflung.plans.wishes import AUTO, KeepHome
from farflung.text import and_more
from farflung.workload import Workload

Ints = NDArray[np.int64]

NAMED = 3
"""How many workers a message names at most."""


@dataclass(frozen=True, eq=False)
class HomeRule:
    """Which workers are home, and which positions only they may run.

    Parameters
    ----------
    wishes
        What is kept at home, and the workers that are.
    bound : int64 [nodes + 1]
        How many of the nodes before each position only home workers may run.
    """

    wishes: KeepHome
    bound: Ints

    @staticmethod
    def of(graph: Graph, wishes: KeepHome) -> HomeRule | None:
        """The rule for a graph; None if nothing is kept. PlanError as of `inputs_of_kinds`."""
        if not wishes.data:
            return None
        readers = raw_readers(graph, inputs_of_kinds(graph, wishes.data))
        return HomeRule(wishes, np.concatenate([[0], np.cumsum(readers)]).astype(np.int64))

    def is_home(self, worker: str) -> bool:
        """Whether a worker may run any segment."""
        return worker in self.wishes.workers

    def binds(self, start: int, stop: int) -> bool:
        """Whether only home workers may run these nodes."""
        return bool(self.bound[stop] > self.bound[start])

    def allows(self, assignment: Assignment) -> bool:
        """Whether all segments that read raw data are on home workers."""
        nodes = len(self.bound) - 1
        return all(
            self.is_home(worker)
            for part in assignment.parts()
            for (start, stop), workers in zip(part.ranges(nodes), part.workers, strict=True)
            if self.binds(start, stop)
            for worker in workers
        )

    def open_until(self, positions: Ints) -> Ints:
        """For each position the index of the last one up to which any worker may run."""
        counts = self.bound[positions]
        return np.searchsorted(counts, counts, side="right").astype(np.int64) - 1

    def open_stretch(self, workload: Workload) -> tuple[int, int]:
        """First and last position of the stretch without raw data that has most work."""
        edges = [0, *(np.flatnonzero(np.diff(self.bound)) + 1).tolist(), len(workload)]
        starts, stops = edges[:-1], [edge - 1 for edge in edges[1:-1]] + [len(workload)]
        work = [workload.work[stop] - workload.work[start] for start, stop in zip(starts, stops, strict=True)]
        at = int(np.argmax(work))
        return starts[at], stops[at]

    def loop(self, workload: Workload, parts: int) -> tuple[Positions, int, int] | None:
        """Positions, and the indices of the first and the last cut, if one worker has both ends, or None."""
        opens, closes = self.open_stretch(workload)
        if not opens or closes == len(workload):
            return None
        legal = positions_within_ties
        heads = [
            head
            for head in range(opens, closes)
            if workload.owned[head] > 0 and legal(workload, head)[head] and last_cut(workload, head) > head
        ]
        if not heads:
            return None
        crossing = workload.crossing_forward + workload.crossing_backward
        head = min(heads, key=lambda at: (float(crossing[at]), at))
        allowed = legal(workload, head)
        allowed[1:head] = False
        positions = Positions.of(workload, parts, allowed)
        positions = replace(positions, at=np.union1d(positions.at, [head]))
        last = min(last_cut(workload, head), closes)
        index = np.searchsorted(positions.at, [head, last], side="right") - 1
        return (positions, int(index[0]), int(index[1])) if index[1] > index[0] else None

    def refusal(self, topology: Topology, workload: Workload) -> PlanError:
        """The error for workers without a plan: what home workers lack."""
        data, opens = words_of(self.wishes.data), self.open_stretch(workload)
        specs = {one.id: one for one in topology.workers if self.is_home(one.id)}
        if not specs:
            return missing_home(self.wishes)
        best = max(specs.values(), key=lambda one: one.memory_gb)
        room = best.memory_gb * 1e9
        needs = memory_of(workload, Assignment((), ((best.id,),), workload.microbatches, 1), best.id)
        share = (workload.work[opens[1]] - workload.work[opens[0]]) / max(float(workload.work[-1]), 1.0)
        return PlanError(
            f"no plan keeps {data} at home: other workers can take at most {share:.0%} of the model in one"
            f" piece, and {best.id} has {room / 1e9:.2g} GB where all of it takes {needs / 1e9:.2g} GB:"
            " let home workers offer more (`farflung join --memory`), name another one, or keep less at home"
        )


def missing_home(wishes: KeepHome) -> PlanError:
    """The error for a fleet without any home worker."""
    who = and_more(list(wishes.workers), NAMED) or "none is named"
    return PlanError(
        f"{words_of(wishes.data)} must stay at home, but no home worker is there ({who}): start yours, or"
        " `farflung train --with-local-worker`"
    )


def require_scheduler(name: str, wishes: KeepHome) -> None:
    """Raise PlanError if a scheduler of this name cannot keep data at home."""
    if wishes.data and name != AUTO:
        raise PlanError(f"scheduler {name} cannot keep data at home: use --scheduler {AUTO}")


def kept_at_home(made: PlannedJob, graph: Graph, wishes: KeepHome) -> PlannedJob:
    """The job with its plan saying which segments are bound to home workers.

    Raises
    ------
    PlanError
        One of them is on another worker.
    """
    if not wishes.data:
        return made
    raw = raw_values(graph, inputs_of_kinds(graph, wishes.data))
    home = [segment.number for segment in made.segments if reads_raw(segment.nodes, raw)]
    plan = msgspec.structs.replace(made.plan, home=home)
    require_at_home(plan.strangers(wishes.workers), wishes)
    return replace(made, plan=plan)


def require_at_home(strangers: Collection[str], wishes: KeepHome) -> None:
    """Raise PlanError if there are workers in a plan that would see what is to stay at home."""
    if strangers:
        raise PlanError(
            f"{and_more(sorted(strangers), NAMED)} would read {words_of(wishes.data)}, which must stay at"
            f" home: name them as home workers, or plan with the scheduler {AUTO}"
        )
