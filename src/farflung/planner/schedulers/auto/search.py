"""Search plans for one workload: starting orders, descents, and replicas, rated by the simulator.

Each worker of a replica is the unused one, with enough memory for the segment, that adds least to a step: by
its work, its link from the previous worker, and its exchange of gradients with other replicas of the segment.
Replicas get microbatches in proportion to their speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from farflung.planner.assignment import Assignment, Options, memory_of
from farflung.planner.checks import Fleet
from farflung.planner.devices import Devices
from farflung.planner.schedulers.auto.descent import Candidate, Descent
from farflung.planner.schedulers.auto.feasibility import SearchSetting
from farflung.planner.schedulers.auto.moves import Moves
from farflung.planner.schedulers.auto.polish import Judge, RatedPlan, polish
from farflung.planner.schedulers.auto.tables import Tables, home_tables, tables_of
from farflung.workload import Workload


def replicated(
    workload: Workload, devices: Devices, assignment: Assignment, most: int, options: Options
) -> Iterator[Assignment]:
    """The plan with 2, 3, ... up to `most` replicas, while there are enough workers and microbatches."""
    number = {id: at for at, id in enumerate(devices.ids)}
    pipelines = [[number[names[0]] for names in assignment.workers]]
    for _ in range(2, min(most, assignment.microbatches) + 1):
        copy = _copy(workload, devices, assignment, pipelines, options)
        if copy is None:
            return
        pipelines.append(copy)
        yield replace(
            assignment,
            workers=tuple(tuple(devices.ids[at] for at in row) for row in zip(*pipelines, strict=True)),
            shares=_shares(workload, devices, assignment, pipelines),
            sum_codec=options.sum_codec,
            inner_steps=options.inner_steps,
        )


def _copy(
    workload: Workload,
    devices: Devices,
    assignment: Assignment,
    pipelines: list[list[int]],
    options: Options,
) -> list[int] | None:
    """Another pipeline of workers that none of `pipelines` uses; None if there are not enough."""
    first = pipelines[0]
    left = set(range(len(devices))) - {at for pipeline in pipelines for at in pipeline}
    copies: dict[int, int] = {}
    ranges = assignment.ranges(len(workload))
    for segment, (original, (start, stop)) in enumerate(zip(first, ranges, strict=True)):
        if original in copies:
            continue
        needed = memory_of(workload, assignment, devices.ids[original])
        able = [at for at in sorted(left) if devices.memory_bytes[at] >= needed]
        if options.home is not None and any(
            options.home.binds(*ranges[at]) for at, worker in enumerate(first) if worker == original
        ):
            able = [at for at in able if options.home.is_home(devices.ids[at])]
        if not able:
            return None
        peers = [pipeline[segment] for pipeline in pipelines]
        before = copies[first[segment - 1]] if segment else None
        cost = [
            _seconds(workload, devices, assignment.microbatches, before, at, peers, start, stop)
            for at in able
        ]
        copies[original] = able[int(np.argmin(cost))]
        left.discard(copies[original])
    return [copies[original] for original in first]


def _seconds(
    workload: Workload,
    devices: Devices,
    microbatches: int,
    before: int | None,
    worker: int,
    peers: list[int],
    start: int,
    stop: int,
) -> float:
    """Seconds that a worker would add to a step: its work or hop, and its exchange of gradients."""
    work = float(workload.work[stop] - workload.work[start]) / devices.speeds[worker]
    hop = 0.0
    if before is not None:
        hop = float(
            workload.crossing_forward[start] / max(devices.bandwidth[before, worker], 1e-9)
            + workload.crossing_backward[start] / max(devices.bandwidth[worker, before], 1e-9)
        )
    gradients = float(workload.sums["parameter"][stop] - workload.sums["parameter"][start])
    rates = [min(devices.bandwidth[worker, peer], devices.bandwidth[peer, worker]) for peer in peers]
    return microbatches * max(work, hop) / (len(peers) + 1) + gradients / max(min(rates), 1e-9)


def _shares(
    workload: Workload, devices: Devices, assignment: Assignment, pipelines: list[list[int]]
) -> tuple[int, ...]:
    """Microbatches of each pipeline, given one by one to the pipeline that would finish first."""
    seconds = [_busiest(workload, devices, assignment, pipeline) for pipeline in pipelines]
    shares = [1] * len(pipelines)
    for _ in range(assignment.microbatches - len(pipelines)):
        ends = [(share + 1) * each for share, each in zip(shares, seconds, strict=True)]
        shares[int(np.argmin(ends))] += 1
    return tuple(shares)


def _busiest(workload: Workload, devices: Devices, assignment: Assignment, pipeline: list[int]) -> float:
    """Seconds per microbatch of the busiest worker or link of a pipeline."""
    busy: dict[int, float] = {}
    ranges = assignment.ranges(len(workload))
    for worker, (start, stop) in zip(pipeline, ranges, strict=True):
        work = float(workload.work[stop] - workload.work[start]) / devices.speeds[worker]
        busy[worker] = busy.get(worker, 0.0) + work
    links = [
        workload.crossing_forward[cut] / max(devices.bandwidth[a, b], 1e-9)
        for cut, a, b in zip(assignment.cuts, pipeline, pipeline[1:], strict=False)
    ]
    return float(max(*busy.values(), *links, 0.0))


SLACKS = (1.7, 1.1)
"""By which factor a window must exceed the round trip: in simulations 1.7 leaves no device idle; with little
memory, less is better."""
SEARCHED = 0.5  # of the budget, before anything is simulated
JUDGED = 10  # candidates whose cuts go to the simulator
POLISHED = 3
SITES = 6  # searched from
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)


class Search:
    """Looks for the best plan of one workload."""

    def __init__(self, fleet: Fleet, workload: Workload, options: Options, judge: Judge) -> None:
        self.fleet, self.workload, self.options, self.judge = fleet, workload, options, judge
        self.devices = fleet.devices
        names = list(dict.fromkeys(worker.site for worker in fleet.topology.workers))
        self.site = np.array([names.index(worker.site) for worker in fleet.topology.workers])
        self.low = workload.microbatches * workload.work[-1] / self.devices.speeds.sum()
        self.tables = tables_of(workload) if options.home is None else home_tables(workload, options.home)
        self.is_home = np.array([options.home is None or options.home.is_home(id) for id in self.devices.ids])

    def run(self, known: Sequence[RatedPlan]) -> list[RatedPlan]:
        """The best plans found, beside those that are `known`, from which it also starts.

        Those with replicas come after all others. So a search that may copy segments has looked at every plan
        that one without has, of one workload, before its first copy.
        """
        copies = self.options.most_replicas > 1 and self.fleet.count is None  # a count is of one pipeline
        plain = [one for one in known if not (copies and one.assignment.shares)]
        rated = [*plain, *self._rate_candidates(self._candidates(plain))]
        rated.sort(key=lambda one: one.seconds)
        best = [polish(self._with_tables(one), self.judge, self.options) for one in rated[:POLISHED]]
        if not copies:
            return best
        return [*best, *self._replicated([*best, *rated], [one for one in known if one.assignment.shares])]

    def _replicated(self, rated: Sequence[RatedPlan], known: Sequence[RatedPlan]) -> list[RatedPlan]:
        """The shortest plans that leave most workers unused, in several copies; of these and those that are
        known the best one, improved.
        """
        found = {one.assignment: one for one in known}
        shallow = {len(one.assignment.workers): one for one in sorted(rated, key=lambda one: -one.seconds)}
        for one in shallow.values():
            if one.assignment.shares:
                continue
            for assignment in replicated(
                self.workload, self.devices, one.assignment, self.options.most_replicas, self.options
            ):
                if assignment not in found and self.judge.fits(self.workload, assignment):
                    seconds = self.judge.simulate_plan(self.workload, assignment)
                    found[assignment] = replace(one, seconds=seconds, assignment=assignment)
        best = sorted(found.values(), key=lambda one: one.seconds)[:1]
        return [polish(self._with_tables(one), self.judge, self.options) for one in best]

    def _candidates(self, known: Sequence[RatedPlan]) -> list[tuple[Candidate, Tables]]:
        """What descents end with; on the way there a worker may come twice, which leads elsewhere."""
        budget = self.judge.budget.part(SEARCHED)
        moves, again = (
            Moves(range(len(self.devices)), self.site, self.devices.speeds, self.fleet.count, again)
            for again in (False, True)
        )
        found: dict[tuple[object, ...], tuple[Candidate, Tables]] = {}
        tables = self._worth(known)
        for number, one in enumerate(tables):
            descent = Descent(
                self._setting(one, SLACKS[0]), moves, budget.part(1 / (len(tables) - number)), self.low
            )
            tight = replace(descent, setting=self._setting(one, SLACKS[1]), moves=again)
            for start in self._starts(descent, known):
                for candidate in self._descend(start, descent, tight):
                    if candidate.solution.fits and len(set(candidate.workers)) == len(candidate.workers):
                        found[candidate.workers, candidate.solution.window, one.loop] = candidate, one
            budget.settle(descent.budget)
        self.judge.budget.settle(budget)
        return list(found.values())

    def _descend(self, start: Candidate, descent: Descent, tight: Descent) -> Iterator[Candidate]:
        candidate = descent.run(descent.with_needed_window(start))
        yield candidate
        if descent.is_held_up(candidate) and self.options.window is None:
            yield tight.run(tight.evaluate(candidate.workers, candidate.solution.window))

    def _worth(self, known: Sequence[RatedPlan]) -> list[Tables]:
        """The tables of plain pipelines and of the first loop, if they can be cut."""
        return [
            tables for tables in self.tables[:2] if len(tables.latest) > (2 if tables.loop is None else 3)
        ]

    def _setting(self, tables: Tables, slack: float) -> SearchSetting:
        home, rule = self.fleet.topology.ids.index(self.fleet.topology.home.id), self.options.home
        return SearchSetting(
            self.devices,
            tables,
            self.workload.microbatches,
            home,
            slack,
            self.options.recompute,
            self.options.window,
            None if rule is None else self.is_home,
            None if rule is None else rule.open_until(tables.at),
        )

    def _starts(self, descent: Descent, known: Sequence[RatedPlan]) -> list[Candidate]:
        """The known orders and, for each of the strongest sites, the best number of its workers."""
        loop = descent.setting.tables.loop is not None
        found = [descent.best_of([order]) for order in self._orders(known, loop)]
        found += [
            descent.best_of([self._home_outside(order, loop) for order in prefixes])
            for prefixes in self._prefixes(2 if loop else 1)
        ]
        some = [one for one in found if one is not None]
        return sorted(some, key=lambda one: (one.seconds, -one.solution.part))

    def _orders(self, known: Sequence[RatedPlan], loop: bool) -> list[tuple[int, ...]]:
        number = {id: at for at, id in enumerate(self.devices.ids)}
        orders = []
        for rated in known:
            order = tuple(number[names[0]] for names in rated.assignment.workers)
            if loop and len(order) > 2 and order[0] == order[-1]:
                order = order[:-1]
            elif loop and (len(order) < 2 or order[0] == order[-1]):
                continue
            orders.append(order)
        return list(dict.fromkeys(orders))

    def _home_outside(self, order: Sequence[int], loop: bool) -> list[int]:
        """The same order with home workers at its ends, or one in front; it may get one more of them."""
        rule = self.options.home
        if rule is None:
            return list(order)
        ranked = np.argsort(-self.devices.speeds, kind="stable").tolist()
        home = [worker for worker in order if self.is_home[worker]]
        others = [worker for worker in order if not self.is_home[worker]]
        opens, closes = rule.open_stretch(self.workload)
        ends = (opens > 0) + (closes < len(self.workload) and not loop)
        ends = min(ends, self.fleet.count or ends)
        home += [worker for worker in ranked if self.is_home[worker] and worker not in home][
            : max(0, ends - len(home))
        ]
        if self.fleet.count is not None:
            others = others[: max(0, self.fleet.count - len(home))]
        if not opens:
            return [*others, *home]
        if loop or closes == len(self.workload):
            return [*home, *others]
        return [*home[:-1], *others, *home[-1:]]

    def _prefixes(self, least: int) -> Iterator[list[list[int]]]:
        speeds, count = self.devices.speeds, self.fleet.count
        ranked = np.argsort(-speeds, kind="stable")
        sites = sorted(set(self.site.tolist()), key=lambda site: -float(speeds[self.site == site].sum()))
        for site in sites[:SITES]:
            inside = self.site[ranked] == site
            members, others = ranked[inside].tolist(), ranked[~inside].tolist()
            members += others[: max(0, (count or least) - len(members))]
            sizes = {count} if count else {least, len(members), *SIZES}
            kept = sorted(size for size in sizes if least <= size <= len(members))
            if kept:
                yield [members[:size] for size in kept]

    def _rate_candidates(self, candidates: list[tuple[Candidate, Tables]]) -> list[RatedPlan]:
        found: dict[Assignment, RatedPlan] = {}
        for candidate, tables in sorted(candidates, key=lambda pair: pair[0].seconds)[:JUDGED]:
            for assignment in self._assignments(candidate, tables):
                if assignment not in found and self.judge.fits(self.workload, assignment):
                    seconds = self.judge.simulate_plan(self.workload, assignment)
                    found[assignment] = RatedPlan(seconds, self.workload, assignment, tables)
        return list(found.values())

    def _assignments(self, candidate: Candidate, tables: Tables) -> Iterator[Assignment]:
        order = candidate.workers if tables.loop is None else (*candidate.workers, candidate.workers[0])
        base = Assignment(
            cuts=tuple(int(tables.at[stop]) for stop in candidate.solution.stops[:-1]),
            workers=tuple((self.devices.ids[worker],) for worker in order),
            microbatches=self.workload.microbatches,
            window=candidate.solution.window,
        )
        if self.options.recompute:
            base = self._recomputing(base)
        window, most = base.window, base.microbatches
        wider = {window * 2 // 3, window, window * 3 // 2, most} if self.options.window is None else {window}
        for other in sorted({max(1, min(most, each)) for each in wider}):
            yield replace(base, window=other)

    def _recomputing(self, assignment: Assignment) -> Assignment:
        """The same assignment with segments that recompute if their worker's memory requires it."""
        again = [False] * len(assignment.workers)
        for worker in self.fleet.topology.workers:
            for number, names in enumerate(assignment.workers):
                fits = memory_of(self.workload, assignment, worker.id) <= worker.memory_gb * 1e9
                if worker.id in names and not fits:
                    again[number] = True
                    assignment = replace(assignment, recompute=tuple(again))
        return assignment

    def _with_tables(self, rated: RatedPlan) -> RatedPlan:
        """The plan with the tables that are needed to improve its cuts, if there are any.

        Cuts of a loop may separate uses of a parameter, which those of a plain pipeline may not.
        """
        if rated.tables is not None:
            return rated
        loops = rated.assignment.workers[0] == rated.assignment.workers[-1] and len(rated.assignment.cuts) > 1
        loops &= bool(self.workload.ties) or self.options.home is not None
        for tables in self.tables:
            if (tables.loop is not None) == loops:
                return replace(rated, tables=tables)
        return rated
