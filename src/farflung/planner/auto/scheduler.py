"""`auto`: the best of all other schedulers' plans, improved by structured moves; see docs/planner.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np

from farflung.errors import PlanError
from farflung.plan import Topology
from farflung.planner.assignment import Assignment, Options, Schedule, memory_of, plan_of
from farflung.planner.auto.descent import Candidate, Descent
from farflung.planner.auto.judge import Budget, Judge
from farflung.planner.auto.moves import Moves
from farflung.planner.auto.polish import Judged, polished
from farflung.planner.auto.reach import Ground
from farflung.planner.auto.tables import Tables, tables_of
from farflung.planner.devices import Devices
from farflung.simulator import Conditions
from farflung.workload import Workload

JUDGED = 12  # candidates whose cuts go to the simulator
POLISHED = 3
SLACK = 1.7
SEARCHED = 0.5  # of the budget, before anything is simulated
SITES = 6  # searched from
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)


def auto(topology: Topology, workload: Workload, options: Options) -> Schedule:
    """The best plan that could be found within the budget."""
    budget = Budget(options.budget, options.seconds)
    judge = Judge(topology, Conditions(efficiency=options.efficiency), budget)
    found: list[Judged] = []
    for one in (workload, *options.alternatives):
        found += _Search(topology, one, options, judge).run()
    if not found:
        raise PlanError("no plan fits")
    best = min(found, key=lambda judged: judged.seconds)
    return Schedule(
        scheduler="auto",
        workload=best.workload,
        assignment=best.assignment,
        plan=plan_of(best.workload, best.assignment),
        step_seconds=best.seconds,
        evaluated=round(budget.evaluated),
        capped=budget.capped,
    )


class _Search:
    """All that is done for one workload."""

    def __init__(self, topology: Topology, workload: Workload, options: Options, judge: Judge) -> None:
        self.topology, self.workload, self.options, self.judge = topology, workload, options, judge
        self.devices = Devices.of(topology, options.efficiency)
        names = list(dict.fromkeys(worker.site for worker in topology.workers))
        self.site = np.array([names.index(worker.site) for worker in topology.workers])
        self.low = workload.microbatches * workload.work[-1] / self.devices.speeds.sum()
        self.draw = Random(options.seed)

    def run(self) -> list[Judged]:
        candidates: list[tuple[Candidate, Tables]] = []
        moves = Moves(range(len(self.devices)), self.site, self.devices.speeds)
        budget = self.judge.budget.part(SEARCHED)
        for tables in tables_of(self.workload)[:2]:
            descent = Descent(self._ground(tables), moves, budget, self.low, self.draw)
            for start in self._starts(descent, 1 if tables.loop is None else 2):
                candidate = descent.run(descent.settled(start))
                if candidate.found.fits:
                    candidates.append((candidate, tables))
        self.judge.budget.spend(budget.evaluated)
        judged = self._judged(candidates)
        judged.sort(key=lambda one: one.seconds)
        return [polished(one, self.judge) for one in judged[:POLISHED]]

    def _ground(self, tables: Tables) -> Ground:
        home = self.topology.ids.index(self.topology.home.id)
        return Ground(self.devices, tables, self.workload.microbatches, home, SLACK, self.options.recompute)

    def _starts(self, descent: Descent, least: int) -> list[Candidate]:
        """For each of the strongest sites the best number of its fastest workers, the best site first."""
        speeds = self.devices.speeds
        ranked = np.argsort(-speeds, kind="stable")
        sites = sorted(set(self.site.tolist()), key=lambda site: -float(speeds[self.site == site].sum()))
        found = []
        for site in sites[:SITES]:
            members = ranked[self.site[ranked] == site].tolist()
            members += [worker for worker in ranked.tolist() if worker not in members][
                : max(0, least - len(members))
            ]
            if len(members) < least:
                continue
            sizes = sorted({least, *(size for size in SIZES if least < size < len(members)), len(members)})
            best = descent.best_of(
                [members[:size] for size in sizes if size <= len(members)], self._most_window()
            )
            if best is not None:
                found.append(best)
        return sorted(found, key=lambda one: (one.seconds, -one.found.part))

    def _most_window(self) -> int:
        return min(self.workload.microbatches, 24)

    def _judged(self, candidates: list[tuple[Candidate, Tables]]) -> list[Judged]:
        found: dict[Assignment, Judged] = {}
        candidates = sorted(candidates, key=lambda pair: pair[0].seconds)[:JUDGED]
        for candidate, tables in candidates:
            for assignment in self._assignments(candidate, tables):
                if assignment in found or not self.judge.fits(self.workload, assignment):
                    continue
                seconds = self.judge.simulated(self.workload, assignment)
                found[assignment] = Judged(seconds, self.workload, assignment, tables)
        return list(found.values())

    def _assignments(self, candidate: Candidate, tables: Tables) -> Iterator[Assignment]:
        order = candidate.workers if tables.loop is None else (*candidate.workers, candidate.workers[0])
        most = self.workload.microbatches
        base = Assignment(
            cuts=tuple(int(tables.at[stop]) for stop in candidate.found.stops[:-1]),
            workers=tuple((self.topology.ids[worker],) for worker in order),
            microbatches=most,
            window=candidate.found.window,
        )
        if self.options.recompute:
            base = self._recomputing(base)
        for window in sorted(
            {base.window, max(1, base.window * 2 // 3), min(most, base.window * 3 // 2), most}
        ):
            yield replace(base, window=window)

    def _recomputing(self, assignment: Assignment) -> Assignment:
        """The same with segments that run forward twice where their worker's memory asks for it."""
        again = [False] * len(assignment.workers)
        for worker in self.topology.workers:
            for number, names in enumerate(assignment.workers):
                fits = memory_of(self.workload, assignment, worker.id) <= worker.memory_gb * 1e9
                if worker.id in names and not fits:
                    again[number] = True
                    assignment = replace(assignment, recompute=tuple(again))
        return assignment
