"""What a plan is worth: the closed form says what it cannot undercut, the simulator what it takes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from farflung.planner.assignment import Assignment, Watch, memory_by_worker, plan_of, unwatched
from farflung.planner.objective.closed_form import step_seconds
from farflung.plans import Topology
from farflung.simulator import Conditions, simulate
from farflung.workload import Workload

NEVER = float("inf")


class Budget:
    """What a search may still spend: `plans` that are measured, and CPU seconds if they are capped.

    A plan that is simulated counts as one. `BOUNDED` plans that the closed form, or cuts within a step time,
    say enough of count as one too, and so do `SCREENED` orders of which `reach` tells whether they fit: it
    takes hundreds at once. So far apart is what they cost.
    """

    SCREENED = 64
    BOUNDED = 8

    def __init__(self, plans: float, seconds: float | None = None, watch: Watch = unwatched) -> None:
        self.left = plans
        self._watch = watch
        self.evaluated = 0.0
        self._until = None if seconds is None else time.process_time() + seconds
        self.capped = False

    def spend(self, plans: float, step_seconds: float = NEVER) -> None:
        """Count plans, of which the best takes `step_seconds`, and say so; also looks at the clock."""
        self._watch(plans, step_seconds)
        self._count(plans)

    def settle(self, part: Budget) -> None:
        """Count what a part of this budget has spent."""
        self._count(part.evaluated)

    def _count(self, plans: float) -> None:
        self.left -= plans
        self.evaluated += plans
        if self._until is not None and time.process_time() > self._until:
            self.capped = True

    def part(self, share: float) -> Budget:
        """A budget of `share` of what is left, under the same cap; `settle` it afterwards."""
        found = Budget(self.left * share, watch=self._watch)
        found._until, found.capped = self._until, self.capped
        return found

    @property
    def is_spent(self) -> bool:
        return self.left <= 0 or self.capped


@dataclass
class Judge:
    """Judges assignments of workloads on one topology, each once."""

    topology: Topology
    conditions: Conditions
    budget: Budget
    _known: dict[tuple[int, Assignment], float] = field(default_factory=dict)

    def closed(self, workload: Workload, assignment: Assignment) -> float:
        """A lower bound on the step time."""
        self.budget.spend(1 / Budget.BOUNDED)
        return step_seconds(plan_of(workload, assignment), self.topology, self.conditions)

    def simulated(self, workload: Workload, assignment: Assignment) -> float:
        """The step time."""
        key = (id(workload), assignment)
        if key not in self._known:
            plan = plan_of(workload, assignment)
            self._known[key] = simulate(plan, self.topology, self.conditions).step_seconds
            self.budget.spend(1, self._known[key])
        return self._known[key]

    def fits(self, workload: Workload, assignment: Assignment) -> bool:
        """Whether every worker has the memory for its segments."""
        room = {worker.id: worker.memory_gb * 1e9 for worker in self.topology.workers}
        needed = memory_by_worker(workload, assignment)
        return all(size <= room[worker] for worker, size in needed.items())
