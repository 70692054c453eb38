"""Plans whose pipelines have cuts of their own, each for its own devices.

Workers are partitioned into groups (`planner.grouping`). Each group plans one pipeline for itself, on its
share of the batch. Then microbatches are dealt so that all pipelines end together, and the whole plan is
simulated, with the sums of the gradients of each piece between its cuts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from farflung.errors import PlanError
from farflung.planner.answer import answer
from farflung.planner.assignment import Assignment, Options, Schedule, Scheduler, plan_of
from farflung.planner.checks import Fleet, usable_fleet
from farflung.planner.grouping import Group, groupings
from farflung.planner.objective.window import SLACK
from farflung.planner.schedulers.auto.polish import GAIN, Budget, Judge
from farflung.plans import Topology, subtopology
from farflung.plans.codec_pair import DENSE
from farflung.plans.wishes import AUTO
from farflung.simulator import Conditions
from farflung.text import count_of
from farflung.workload import Workload

EACH = 16
"""The search of one group may take this part of the budget and of the seconds."""
ALL = 4
"""All simulations of whole plans together may take this part of them."""
MOVES = 8
"""How often a microbatch may go from one pipeline to another, if the step gets shorter."""

Windows = tuple[int, ...]
"""The window of each pipeline."""


def with_unequal_cuts(
    scheduler: Scheduler, single: Scheduler, replicas: int = 0, name: str = AUTO
) -> Scheduler:
    """A scheduler that answers as `scheduler`, or with replicas of unequal cuts if their step is shorter.

    `scheduler` has the whole budget to itself, so the answer's step is never longer than that of its own.
    `single` plans the pipeline of each group. There are exactly `replicas` of them; 0 leaves that open.
    """

    def search(topology: Topology, workload: Workload, options: Options) -> Schedule:
        known: Schedule | None = None
        refusal: PlanError | None = None
        options.stage(count_of(replicas, "replica") if replicas else "one pipeline and copies of it")
        try:
            known = scheduler(topology, workload, options)
        except PlanError as error:
            refusal = error
        found = None
        if options.may_cut_unlike and options.most_replicas > 1:
            options.stage("replicas with cuts of their own")
            found = _search(topology, workload, options, single, replicas, known)
        if found is None and known is None:
            assert refusal is not None
            raise refusal
        if found is None or (known is not None and found.seconds >= known.step_seconds * (1 - GAIN)):
            assert known is not None
            return known
        if known is None:
            return answer(name, found.fleet, found.workload, found.assignment, options)
        return replace(
            known,
            workload=found.workload,
            assignment=found.assignment,
            plan=plan_of(found.workload, found.assignment),
            step_seconds=found.seconds,
            lower_bound_seconds=min(known.lower_bound_seconds, found.seconds),
            evaluated=known.evaluated + found.evaluated,
            others=((known.workload, known.assignment), *known.others) if options.coding else (),
        )

    return search


@dataclass(frozen=True)
class _Found:
    """The best plan of some groups."""

    fleet: Fleet
    workload: Workload
    assignment: Assignment
    seconds: float
    evaluated: int


def _search(
    topology: Topology,
    workload: Workload,
    options: Options,
    single: Scheduler,
    replicas: int,
    known: Schedule | None,
) -> _Found | None:
    """The best plan of groups, for the microbatches of `workload` and for those of the plan that is known."""
    try:
        fleet = usable_fleet(topology, workload, options)
    except PlanError:
        return None
    budget = Budget(
        options.budget / ALL, None if options.seconds is None else options.seconds / ALL, options.watch
    )
    conditions = Conditions(efficiency=options.efficiency)
    judge = Judge(fleet.topology, conditions, budget, options.home, options.coding)
    limit = float("inf") if known is None else known.step_seconds
    workloads = [workload] if known is None or known.workload is workload else [known.workload, workload]
    rated = [
        (seconds, number, assignment)
        for number, one in enumerate(workloads)
        for seconds, assignment in _Groups(fleet, one, options, judge, single, replicas, limit).rated()
    ]
    if not rated:
        return None
    seconds, number, assignment = min(rated, key=lambda one: one[:2])
    return _Found(fleet, workloads[number], assignment, seconds, round(budget.evaluated))


@dataclass
class _Groups:
    """Plans of one workload by groups of workers, whose steps may be shorter than `limit` seconds."""

    fleet: Fleet
    workload: Workload
    options: Options
    judge: Judge
    single: Scheduler
    replicas: int
    limit: float
    _alone: dict[Group, Assignment | None] = field(default_factory=dict)

    def rated(self) -> Iterator[tuple[float, Assignment]]:
        """The best plan of each grouping, with its simulated step."""
        most = min(self.options.most_replicas, self.workload.microbatches)
        for groups in groupings(self.fleet.topology, self.replicas):
            if self.judge.budget.is_spent:
                return
            if len(groups) > most or self.fleet.count not in (None, sum(map(len, groups))):
                continue
            parts = [one for group in groups if (one := self._pipeline(group, groups)) is not None]
            if len(parts) == len(groups):
                yield from self._best(parts)

    def _pipeline(self, group: Group, groups: Sequence[Group]) -> Assignment | None:
        """The plan of one group alone, on its share of the batch by speed; None if there is none."""
        if group not in self._alone:
            speeds = self.fleet.devices.speeds
            part = float(speeds[[*group]].sum() / speeds[[at for one in groups for at in one]].sum())
            share = max(1, round(self.workload.microbatches * part))
            if (alone := self._on_one(group, share)) is not None:
                self._alone[group] = alone
                return alone
            kept = self.workload.kept_bytes + self.workload.trainable_bytes  # what arrives for sums
            seconds = self.options.seconds
            options = replace(
                self.options,
                workers=None if self.fleet.count is None else len(group),
                most_replicas=1,
                budget=max(1, self.options.budget // EACH),
                seconds=None if seconds is None else seconds / EACH,
                sum_codec=DENSE,
                incumbent=None,
                alternatives=(),
                proven=None,
            )
            try:
                found = self.single(
                    subtopology(self.fleet.topology, [*group]),
                    replace(self.workload, microbatches=share, kept_bytes=kept),
                    options,
                )
                self._alone[group] = replace(found.assignment, codecs=())
            except PlanError:  # too little memory, or fewer cuts than workers
                self._alone[group] = None
        return self._alone[group]

    def _on_one(self, group: Group, share: int) -> Assignment | None:
        """The whole model on a group of one worker, if that fits: there is nothing to search for."""
        if len(group) > 1:
            return None
        window = self.options.window or min(2, share)
        whole = Assignment((), ((self.fleet.devices.ids[group[0]],),), share, window)
        return whole if self.judge.fits(self.workload, whole) else None

    def _best(self, parts: Sequence[Assignment]) -> Iterator[tuple[float, Assignment]]:
        """The plan of these pipelines with the best windows and shares, if it fits."""
        rates = [self._rate(one) for one in parts]
        shares = ended_together(self.workload.microbatches, rates)
        all_windows = self._windows(parts, shares)
        widest = _joined(parts, shares, all_windows[-1], self.options)
        if self.judge.lower_bound(self.workload, widest) >= self.limit:
            return  # as where sums alone take longer than a step of the plan that is known
        tried = [(windows, self._rated(parts, shares, windows)) for windows in all_windows]
        found = [(one, windows) for windows, one in tried if one is not None]
        if not found:
            return
        shortest = min(one[0] for one, _ in found)
        best, windows = next(pair for pair in found if pair[0][0] <= shortest * (1 + SLACK))
        for _ in range(MOVES):
            if self.judge.budget.is_spent:
                break
            moved = [
                one
                for other in _moved(best[1].shares, rates)
                if (one := self._rated(parts, other, windows)) is not None
            ]
            if not moved or (next_one := min(moved, key=lambda one: one[0]))[0] >= best[0] * (1 - GAIN):
                break
            best = next_one
        yield best

    def _rate(self, part: Assignment) -> tuple[float, float]:
        """Seconds that a pipeline alone takes beside its microbatches, and for each of them."""
        most = self.workload.microbatches
        few, many = max(1, part.microbatches // 2), max(2, part.microbatches, most // 2)
        first, last = (
            self.judge.simulate_plan(self.workload, replace(part, microbatches=count))
            for count in (few, many)
        )
        each = max(0.0, (last - first) / (many - few))
        return max(0.0, first - few * each), each

    def _windows(self, parts: Sequence[Assignment], shares: Sequence[int]) -> list[Windows]:
        """The windows to try, the widest last: each pipeline's own and common ones, as far as memory goes."""
        if self.options.window is not None:
            return [(self.options.window,) * len(parts)]
        own = [one.window for one in parts]
        room = [self._room(parts, shares, at) for at in range(len(parts))]
        wider = ([level] * len(parts) for level in sorted({max(own), max(shares)}))
        bounded = (tuple(map(min, windows, room)) for windows in ([min(own)] * len(parts), own, *wider))
        return list(dict.fromkeys(bounded))

    def _room(self, parts: Sequence[Assignment], shares: Sequence[int], at: int) -> int:
        """The widest window that pipeline `at` has memory for, from 1 to the largest share."""

        def is_too_much(window: int) -> bool:
            windows = tuple(window if place == at else 1 for place in range(len(parts)))
            return not self.judge.fits(self.workload, _joined(parts, shares, windows, self.options))

        return max(1, bisect_left(range(1, max(shares) + 1), True, key=is_too_much))

    def _rated(
        self, parts: Sequence[Assignment], shares: Sequence[int], windows: Windows
    ) -> tuple[float, Assignment] | None:
        assignment = _joined(parts, shares, windows, self.options)
        if not self.judge.fits(self.workload, assignment):
            return None
        return self.judge.simulate_plan(self.workload, assignment), assignment


def ended_together(microbatches: int, rates: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """Shares of the microbatches, at least one each, with which pipelines end as near together as can be.

    `rates` has the seconds that each pipeline takes beside its microbatches, and for one of them.
    """
    shares = [1] * len(rates)
    for _ in range(microbatches - len(rates)):
        ends = [fill + (share + 1) * each for share, (fill, each) in zip(shares, rates, strict=True)]
        shares[ends.index(min(ends))] += 1
    return tuple(shares)


def _moved(shares: Sequence[int], rates: Sequence[tuple[float, float]]) -> Iterator[tuple[int, ...]]:
    """The shares with one microbatch of the pipeline that ends last on another one."""
    ends = [fill + share * each for share, (fill, each) in zip(shares, rates, strict=True)]
    last = ends.index(max(ends))
    for other in range(len(shares)):
        if other != last and shares[last] > 1:
            found = list(shares)
            found[last], found[other] = found[last] - 1, found[other] + 1
            yield tuple(found)


def _joined(
    parts: Sequence[Assignment], shares: Sequence[int], windows: Windows, options: Options
) -> Assignment:
    """One plan of these pipelines; folded, with the narrowest window, where all have the same cuts."""
    whole = Assignment(
        cuts=parts[0].cuts,
        workers=parts[0].workers,
        microbatches=sum(shares),
        window=min(windows),
        shares=tuple(shares),
        recompute=parts[0].recompute,
        sum_codec=options.sum_codec,
        inner_steps=options.inner_steps,
    )
    if all((one.cuts, one.recompute) == (whole.cuts, whole.recompute) for one in parts):
        rows = zip(*(one.workers for one in parts), strict=True)
        return replace(whole, workers=tuple(tuple(name for names in row for name in names) for row in rows))
    own = [min(window, share) for window, share in zip(windows, shares, strict=True)]
    others = [
        replace(one, microbatches=share, window=window)
        for one, share, window in zip(parts[1:], shares[1:], own[1:], strict=True)
    ]
    return replace(whole, window=own[0], others=tuple(others))
