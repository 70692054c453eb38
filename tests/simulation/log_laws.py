"""Laws of the broker's log: what may be decided, in which order, and what a restart gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tests.simulation.disk import Key, digest_of
from tests.simulation.ledger import Ledger, Line
from tests.simulation.model import chain_of, undisturbed
from tests.simulation.parcels import Chain
from tests.simulation.store import VirtualStore
from tests.simulation.trust_laws import TrustLaws
from tests.simulation.twins import Twins
from tests.simulation.world import LEASE_SECONDS, World

from farflung.broker.core import facts
from farflung.broker.core.facts import AnyDecision
from farflung.broker.core.fleet.draining import RECENT_UNITS
from farflung.broker.core.recovering.recovery import (
    MOST_FRUITLESS,
    MOST_REGROUPED,
    MOST_REPLAYED,
    MOST_UNLINKED,
)
from farflung.broker.core.state import State, durable, reduce_fact
from farflung.broker.journal import Journal
from farflung.protocol.copies import StateVersion
from farflung.worker.events import Attempt

if TYPE_CHECKING:
    from collections import Counter

PHASES: dict[type, tuple[tuple[str, ...], str]] = {
    facts.JobPlanning: (("queued",), "planning"),
    facts.JobRequeued: (("planning",), "queued"),
    facts.JobLoading: (("planning",), "loading"),
    facts.JobRunning: (("loading",), "running"),
    facts.UnitDecided: (("running",), "running"),
    facts.CodecsDecided: (("running",), "running"),
    facts.JobCollecting: (("running", "loading"), "collecting"),
    facts.JobRegrouped: (("loading", "running", "collecting"), "loading"),
    facts.JobReplaying: (("loading", "running", "collecting"), "loading"),
    facts.JobMended: (("loading", "running", "collecting"), "loading"),
    facts.JobEnding: (("loading",), "loading"),
    facts.JobRolledBack: (("loading", "running", "collecting"), "queued"),
    facts.JobRestoring: (("queued",), "loading"),
    facts.PlanGivenUp: (("queued",), "queued"),
    facts.VersionGivenUp: (("queued",), "queued"),
    facts.JobMoves: (("running",), "running"),
}
"""In which phases of a job each fact is right, and the phase after it."""

ABOUT_WORKERS = (
    facts.WorkerAdmitted,
    facts.WorkerMoved,
    facts.WorkerMeasured,
    facts.WorkerLost,
    facts.WorkerAway,
    facts.WorkerLeaving,
    facts.WorkerReleased,
    facts.MemberRemoved,
    facts.MemberAllowed,
    facts.WorkerBlamed,
    facts.WorkerSuspected,
)

SETTLED_SECONDS = 8 * LEASE_SECONDS
"""After so long without faults, whatever they broke has been noticed."""

LASTING = ("too large for these workers", "in a row ended without a new step", "waited 1 minute for ")
"""Why a job may fail even then."""


class LogLaws:
    """Judges each stored fact, and compares each replay with the state that was lost."""

    def __init__(self, world: World, counts: Counter[str]) -> None:
        self._world, self._counts = world, counts
        self.jobs: dict[str, Ledger] = {}
        self._collected: set[Attempt] = set()
        self._replayed, self._twins = State.empty(), Twins()
        self.is_disturbed = False  # by other faults than those of the broker
        self.has_losses = False  # or by other faults than workers that leave in good order
        self._leaving: dict[str, float] = {}
        self._trust = TrustLaws()
        self._boots: dict[str, str] = {}
        self.on_stable: Callable[[], None] | None = None

    def on_stored(self, decisions: Sequence[AnyDecision], state: State, store: VirtualStore) -> None:
        """A group of facts has become durable; `state` is the broker's state with them."""
        for record in store.records[len(store.records) - len(decisions) :]:
            fact = facts.decode(record)
            self._replayed = reduce_fact(self._replayed, fact)
            self._counts[type(fact).__name__] += 1
            self._judge(fact)
        if decisions and not self._twins.are_equal(self._replayed, state):
            self._world.fail("a replay of the log gives another state than the broker has")
        if store.stored.keys() != state.blobs():
            self._world.fail(f"{len(store.stored)} blobs are stored, the jobs need {len(state.blobs())}")

    def on_crash(self, store: VirtualStore) -> None:
        """The broker has died: what it had stored must come back."""
        if Journal(store).state != durable(self._replayed):  # type: ignore[arg-type]
            self._world.fail("a restart gives another state than was stored before the crash")

    def on_saved(self, job: str, unit: int) -> None:
        """A submitter has written the state after `unit`."""
        self.jobs[job].saved.add(unit)

    def on_collected(self, attempt: Attempt) -> None:
        """A submitter has received the last state of an attempt."""
        self._collected.add(attempt)

    def _judge(self, fact: AnyDecision) -> None:
        self._require(not (words := self._trust.trouble(fact)), words)
        if isinstance(fact, facts.JobSubmitted):
            self._require(fact.job not in self.jobs, "a job was submitted twice")
            twins = [one.submitted for one in self.jobs.values() if not one.ended]
            self._require(all(one.run != fact.run for one in twins), f"a run has two jobs: {fact}")
            assert fact.graph_digest is not None
            whole = undisturbed(fact.graph_digest, fact.training)
            self.jobs[fact.job] = Ledger(fact, whole, fact.attempts, fact.unit, fact.unit, fact.unit)
            return
        if isinstance(fact, facts.WorkerAdmitted):  # it may have more memory now
            for ledger in self.jobs.values():
                ledger.unfit -= {fact.worker}
        if isinstance(fact, facts.WorkerLeaving):
            self._leaving.setdefault(fact.worker, fact.at)
        if isinstance(fact, facts.WorkerReleased):
            self._judge_release(fact)
        if isinstance(fact, facts.WorkerAdmitted) and fact.boot != self._boots.get(fact.worker):
            self._boots[fact.worker] = fact.boot
            self._leaving.pop(fact.worker, None)
        if isinstance(fact, ABOUT_WORKERS):
            return
        ledger = self.jobs[fact.job]
        self._require(not ledger.ended, f"{fact.job} has ended, and then: {fact}")
        before, after = PHASES.get(type(fact), ((ledger.phase,), ledger.phase))
        self._require(ledger.phase in before, f"{fact} of a job that is {ledger.phase}")
        match fact:
            case facts.SubmitterAway():
                ledger.held = True
            case facts.SubmitterReturned(at=at):
                ledger.held = False
                ledger.lost_at = None if ledger.lost_at is None else at
            case facts.JobPlanning(attempt=attempt, workers=workers, restores=restores):
                self._require(attempt == ledger.attempt + 1, f"attempt {attempt} follows {ledger.attempt}")
                self._require(not ledger.unfit >= set(workers), f"{fact} on workers that are too few")
                ledger.attempt, ledger.planned_on = attempt, frozenset(workers)
                ledger.lines[attempt] = Line(ledger.next_unit)
                ledger.interrupt_copies()
                self._require(restores == ledger.waits, f"{fact}, but the job waits for {ledger.version}")
                ledger.version = ledger.version if restores else None
            case facts.JobMoves():
                ledger.moves = True
                self._require(ledger.version is not None, f"{fact} without a version")
            case facts.PlanGivenUp():
                self._require(ledger.waits, f"{fact}, but the job waits for no worker")
            case facts.JobRestoring(attempt=attempt, plan=plan):
                ledger.unfit = frozenset()
                self._judge_sources(ledger, fact)
                self._require(attempt == ledger.attempt + 1, f"attempt {attempt} follows {ledger.attempt}")
                self._require(ledger.waits, f"{fact}, but no version is to be restored")
                ledger.attempt, ledger.waits = attempt, False
                ledger.lines[attempt] = Line(ledger.next_unit, plan)
                ledger.line.codecs[ledger.next_unit] = tuple(plan.codecs)
            case facts.VersionGivenUp():
                self._judge_version_given_up(ledger, fact)
            case facts.VersionStable():
                self._judge_version(ledger, fact)
            case facts.VersionFailed(version=version):
                self._require(version == ledger.copying, f"{fact}, but {ledger.copying} is under way")
                ledger.copying, ledger.tried_at = None, fact.at
            case facts.JobRequeued(unfit=unfit):
                self._require(ledger.planned_on >= set(unfit), f"{fact} was planned on {ledger.planned_on}")
                may_be_unfit = ledger.rolled_back or self._trust.suspected  # which it has not been planned on
                self._require(not unfit or bool(may_be_unfit), f"{fact}, but it never ran")
                ledger.unfit, ledger.scattered = frozenset(unfit), fact.scattered
            case facts.JobLoading(plan=plan, owned=owned):
                self._require(
                    bool(fact.sources) == ledger.waits, f"{fact}, but the job waits: {ledger.waits}"
                )
                ledger.owned, ledger.waits = [frozenset(names) for names in owned], False
                self._judge_sources(ledger, fact)
                ledger.unfit = frozenset()
                ledger.line.plan = plan
                ledger.line.codecs[ledger.next_unit] = tuple(plan.codecs)
            case facts.UnitDecided():
                self._judge_unit(ledger, fact)
            case facts.CodecsDecided(unit=unit, codecs=codecs):
                self._require(unit == ledger.next_unit, f"codecs change at {unit}, not {ledger.next_unit}")
                ledger.line.codecs[unit] = tuple(codecs)
            case facts.CopyAsked():
                ledger.wish = True
            case facts.CopyStored():
                self._judge_copy(ledger, fact)
            case facts.JobRolledBack():
                self._judge_rollback(ledger, fact)
            case facts.JobRunning():
                ledger.lost_at, ledger.unlinked = None, 0
            case facts.JobRegrouped():
                self._judge_regroup(ledger, fact)
            case facts.JobReplaying():
                self._judge_replay(ledger, fact)
            case facts.JobMended():
                self._judge_mending(ledger, fact)
            case facts.JobEnding(state=state):
                self._require(ledger.line.keeps and not ledger.ending, f"{fact} of attempt {ledger.attempt}")
                ledger.ending = state
            case facts.JobCollecting(state=state):
                if ledger.phase == "loading":
                    self._require(ledger.line.keeps and ledger.ending == state, f"{fact} of a job that loads")
                ledger.ending = state
            case facts.JobEnded(state=state):
                self._judge_end(ledger, fact)
                ledger.ended = state
        ledger.phase = after

    def _judge_unit(self, ledger: Ledger, fact: facts.UnitDecided) -> None:
        units = ledger.submitted.training.units()
        unit = units.at(fact.unit)
        self._require(fact.attempt == ledger.attempt, f"{fact} in attempt {ledger.attempt}")
        self._require(
            all(fact.unit not in line.decided for line in ledger.lines.values() if line.begins > fact.unit)
            and fact.unit not in ledger.line.decided,
            f"unit {fact.unit} of {fact.job} is decided again",
        )
        self._require(unit is not None and fact.unit == ledger.next_unit, f"expected unit {ledger.next_unit}")
        assert unit is not None
        found, expected = (fact.scale, fact.loss, fact.gradient_norm), ledger.whole[fact.unit]
        self._require(
            found == (expected.scale, expected.loss, expected.norm), f"{fact} is decided, not {expected}"
        )
        every = ledger.submitted.checkpoint_every
        due = ledger.wish or (unit.train and every > 0 and (unit.step + 1) % every == 0)
        is_last = units.at(fact.unit + 1) is None or fact.stops
        if fact.stops:
            ledger.whole = ledger.whole[: fact.unit + 1]
            self._counts["a job that stops early"] += 1
        is_best = fact.keep and not unit.train and ledger.submitted.training.keeps_best
        self._counts["a copy of the best weights"] += is_best
        copied = (is_best or (due and unit.train)) and ledger.under_way is None and not is_last
        may_wait = ledger.copying is not None  # its memory may not be free
        self._require(
            fact.keep == copied or (may_wait and not fact.keep),
            f"the copy of unit {fact.unit}: expected keep={copied}",
        )
        if fact.copy:
            is_checked = is_last and ledger.submitted.training.verify > 0
            is_due = is_checked or (unit.train and not is_last)
            self._require(ledger.copying is None and is_due, f"{fact} copies too much")
            ledger.copying = StateVersion(fact.attempt, fact.unit)
        if fact.keep:
            ledger.under_way, ledger.wish = fact.unit, False
        else:
            ledger.wish = due
        ledger.line.decided[fact.unit] = fact
        ledger.next_unit += 1

    def _judge_copy(self, ledger: Ledger, fact: facts.CopyStored) -> None:
        unit = fact.unit
        self._require(unit == ledger.under_way, f"the copy of {unit} is stored, not {ledger.under_way}")
        self._require(not fact.stored or unit in ledger.saved, f"the copy of {unit} was never written")
        self._counts["a copy that was not stored"] += not fact.stored
        ledger.under_way = None
        ledger.stable = unit + 1 if fact.stored else ledger.stable

    def _judge_version(self, ledger: Ledger, fact: facts.VersionStable) -> None:
        """What is called stable is on the disks of two workers, share by share, and is right."""
        self._require(fact.version == ledger.copying, f"{fact}, but {ledger.copying} is under way")
        ledger.version, ledger.copying, ledger.tried_at = fact.version, None, fact.at
        strike, self.on_stable = self.on_stable, None
        if strike is not None:
            self._world.schedule(len(ledger.whole) / 20, self._world.weather, strike)
        plan, expected = ledger.line.plan, chain_of(ledger.whole, fact.version.unit + 1)
        assert plan is not None
        for owner in plan.workers():
            parts = plan.segments_of(owner)
            ledger.shares[min(parts)] = frozenset[str]().union(*(ledger.owned[part] for part in parts))
        for share, digest in fact.digests.items():
            self._require(digest == digest_of(expected), f"{fact}: share {share} is of another state")
            owner = plan.worker_of(share)
            found = [
                name
                for name in self._world.workers
                if self._disk_of(name).get((fact.job, fact.version, share)) == expected
            ]
            is_safe = owner in found and len(found) > 1
            self._require(is_safe or ledger.damaged, f"{fact}: share {share} is only on {found}")

    def _judge_sources(self, ledger: Ledger, fact: facts.JobLoading | facts.JobRestoring) -> None:
        """Each member reads all that it owns, from members that have it, if the version was cut otherwise."""
        if not fact.sources:
            return
        self._counts["a version on another cut"] += 1
        version, members = ledger.version, fact.plan.workers()
        assert version is not None, f"{fact} without a version"
        self._require(fact.sources.keys() == set(members), f"{fact} is not for {members}")
        for member, read in fact.sources.items():
            owned = frozenset[str]().union(*(ledger.owned[part] for part in fact.plan.segments_of(member)))
            found = frozenset[str]().union(*(ledger.shares[share] for share in read))
            self._require(owned <= found, f"{member} owns {owned}, and reads {found}: {fact}")
            for share, donor in read.items():
                has = (fact.job, version, share) in self._disk_of(donor)
                self._require(has or ledger.damaged, f"{donor} lacks share {share}: {fact}")

    def _judge_version_given_up(self, ledger: Ledger, fact: facts.VersionGivenUp) -> None:
        self._require(ledger.waits, f"{fact}, but the job waits for none")
        self._require(fact.unit == ledger.stable, f"{fact} instead of to unit {ledger.stable}")
        is_lost = fact.reason.startswith("a copy of the newest version")
        self._require(not is_lost or ledger.damaged, f"{fact}, but no disk was damaged")
        ledger.rolled_back.setdefault(ledger.attempt, set()).add(fact.unit)
        ledger.next_unit, ledger.version, ledger.waits = fact.unit, None, False
        ledger.unfit = frozenset() if ledger.scattered else ledger.unfit

    def _disk_of(self, name: str) -> dict[Key, Chain]:
        return self._world.processes[name].disk.copies  # type: ignore[attr-defined, no-any-return]

    def _judge_regroup(self, ledger: Ledger, fact: facts.JobRegrouped) -> None:
        self._require(self.is_disturbed, f"{fact}, but only the broker has died")
        self._counts[f"regrouped while {ledger.phase}"] += 1
        before = ledger.line
        self._require(ledger.phase != "loading" or before.keeps, f"{fact} of workers without a state")
        self._require(fact.attempt == ledger.attempt + 1, f"{fact} follows attempt {ledger.attempt}")
        is_further = ledger.next_unit > ledger.furthest
        ledger.fruitless = 0 if is_further else ledger.fruitless
        if fact.awaited:
            self._counts["awaited"] += 1
        else:
            ledger.regrouped = 1 if is_further else ledger.regrouped + 1
            self._require(ledger.regrouped <= MOST_REGROUPED, f"{fact} is no. {ledger.regrouped} in a row")
            ledger.furthest = max(ledger.furthest, ledger.next_unit)
        ledger.attempt = fact.attempt
        ledger.lines[fact.attempt] = Line(ledger.next_unit, before.plan, keeps=True)
        ledger.interrupt_copies()

    def _judge_replay(self, ledger: Ledger, fact: facts.JobReplaying) -> None:
        """Some begin with the stable version, others in the places of lost ones; all others stay."""
        self._require(self.is_disturbed, f"{fact}, but only the broker has died")
        self._counts[f"replayed while {ledger.phase}"] += 1
        self._counts["handed over"] += "in good order" in fact.reason
        self._require_recent(ledger, fact)
        before, version = ledger.line, ledger.version
        has_state = ledger.phase != "loading" or before.keeps
        self._require(has_state, f"{fact} of workers without a state")
        self._require(fact.attempt == ledger.attempt + 1, f"{fact} follows attempt {ledger.attempt}")
        assert version is not None and before.plan is not None, f"{fact} without a version"
        self._require(version.unit < ledger.next_unit, f"{fact} begins after unit {version.unit}")
        old, new = before.plan.seats(), fact.plan.seats()
        changed = {old[at]: new[at] for at in old if old[at] != new[at]}
        replayers, members = frozenset(fact.replayers), set(fact.plan.workers())
        self._require(replayers >= {*changed.values()}, f"{fact} changes the places {changed}")
        self._require(bool(replayers) and replayers < members, f"{fact}, but {members} are in the plan")
        if ledger.phase == "loading":  # as long as it is not known that they have the state again
            self._counts["replayed again"] += bool(replayers & before.replayers)
        self._counts["several replayed"] += len(replayers) > 1
        self._keep_on(ledger, fact, Line(ledger.next_unit, fact.plan, keeps=True, replayers=replayers))

    def _keep_on(self, ledger: Ledger, fact: facts.JobReplaying | facts.JobMended, line: Line) -> None:
        """Begin an attempt in which members keep their state; there are not too many in vain."""
        is_further = ledger.next_unit > ledger.furthest
        ledger.fruitless = 0 if is_further else ledger.fruitless
        ledger.regrouped = 1 if is_further else ledger.regrouped + 1
        self._require(ledger.regrouped <= MOST_REPLAYED, f"{fact} is no. {ledger.regrouped} in a row")
        ledger.furthest = max(ledger.furthest, ledger.next_unit)
        ledger.attempt = fact.attempt
        ledger.lines[fact.attempt] = line
        ledger.interrupt_copies()

    def _judge_mending(self, ledger: Ledger, fact: facts.JobMended) -> None:
        """Who stays has its place, who is new gets the same parameters from another pipeline that stays."""
        is_grown = "another replica again" in fact.reason
        self._require(self.is_disturbed, f"{fact}, but only the broker has died")
        self._counts[f"mended while {ledger.phase}"] += 1
        self._counts["handed over to another replica"] += "in good order" in fact.reason
        before = ledger.line
        self._require(ledger.phase != "loading" or before.keeps, f"{fact} of workers without a state")
        self._require(fact.attempt == ledger.attempt + 1, f"{fact} follows attempt {ledger.attempt}")
        assert before.plan is not None
        old, new, owned = before.plan.seats(), fact.plan.seats(), ledger.owned
        self._require(not new.keys() - old.keys() or is_grown, f"{fact} has other segments than {old}")
        unchanged = {at for at in new if old.get(at) == new[at]}
        self._require(new.keys() - unchanged <= fact.donors.keys(), f"{fact} lacks a donor: {old} before")
        for taker, donor in fact.donors.items():
            self._require(donor in unchanged and donor not in fact.donors, f"{fact}: {donor} has no state")
            self._require(owned[taker] == owned[donor], f"{fact}: {donor} holds another part than {taker}")
        names = [
            frozenset[str]().union(*(owned[at] for at in new if self._pipeline(fact, at) == one))
            for one in fact.plan.live_pipelines()
        ]
        self._require(len({*names}) == 1, f"{fact}: a pipeline lacks a part of the model")
        left, known = len(fact.plan.live_pipelines()), len(before.plan.live_pipelines())
        self._counts["a replica less"] += left < known
        self._counts["a replica more"] += left > known
        self._keep_on(ledger, fact, Line(ledger.next_unit, fact.plan, keeps=True))

    def _pipeline(self, fact: facts.JobMended, segment: int) -> int:
        return fact.plan.pipeline_of(segment)

    def _require_recent(self, ledger: Ledger, fact: facts.JobReplaying | facts.JobRolledBack) -> None:
        """What a worker that leaves hands over is from after its wish, or a few units old."""
        if "leaves in good order" not in fact.reason or ledger.phase != "running" or ledger.version is None:
            return
        (since,) = [at for name, at in self._leaving.items() if f"worker {name} " in fact.reason]
        is_recent = ledger.next_unit - (ledger.version.unit + 1) <= RECENT_UNITS
        self._require(is_recent or ledger.tried_at >= since, f"{fact} from {ledger.version}")

    def _judge_release(self, fact: facts.WorkerReleased) -> None:
        """A worker that leaves in good order has no share, and what its disk has lies with two others."""
        self._require(fact.worker in self._leaving, f"{fact}, but it was not asked to leave")
        self._leaving.pop(fact.worker, None)
        in_order = "in good order" in fact.reason
        self._counts["left in good order" if in_order else "left at last"] += 1
        for name, ledger in self.jobs.items():
            plan, version = (ledger.line.plan, ledger.version) if ledger.lines else (None, None)
            is_live = ledger.phase in ("loading", "running") and not ledger.ended
            if not is_live or not in_order or plan is None:
                continue
            self._require(fact.worker not in plan.workers(), f"{fact}, but it has a share of {name}")
            for share in {min(plan.segments_of(worker)) for worker in plan.workers()}:
                having = [one for one in self._world.workers if (name, version, share) in self._disk_of(one)]
                others = [one for one in having if one != fact.worker]
                there = [one for one in self._replayed.workers.values() if one.connected]
                enough = min(2, max(1, len({one.worker for one in there} - {fact.worker})))
                is_safe = fact.worker not in having or len(others) >= enough or ledger.damaged
                self._require(is_safe, f"{fact}, but share {share} of {name} is else only on {others}")

    def _judge_rollback(self, ledger: Ledger, fact: facts.JobRolledBack) -> None:
        self._require_no_deadline(fact)
        self._counts[f"rolled back while {ledger.phase}"] += 1
        self._require(fact.attempt == ledger.attempt, f"{fact} in attempt {ledger.attempt}")
        is_free = fact.unit == ledger.next_unit
        self._require(is_free or not ledger.moves, f"a move costs units up to {ledger.next_unit}: {fact}")
        ledger.moves = False
        self._require(self.is_disturbed or is_free, f"{fact}, but only the broker has died")
        left_alone = "it handed over no share" in fact.reason or "no longer what it sent" in fact.reason
        if not is_free:
            self._require_recent(ledger, fact)
        in_order = "leaves in good order" in fact.reason
        self._counts["left, and all went back"] += in_order and not is_free
        self._require(
            self.has_losses or is_free or left_alone or in_order, f"{fact}, but all left in good order"
        )
        self._counts["a crash of the broker alone"] += not self.is_disturbed
        version = ledger.version
        restores = version is not None and version.unit + 1 >= ledger.stable
        unit = version.unit + 1 if version is not None and restores else ledger.stable
        self._require((fact.unit, fact.restores) == (unit, restores), f"{fact} instead of to unit {unit}")
        ledger.version, ledger.waits = version if restores else None, restores
        self._require(ledger.ending in ("", "done"), f"{fact}, but {fact.job} was to end as {ledger.ending}")
        is_over = ledger.next_unit == len(ledger.whole)
        self._require(fact.over == is_over, f"{fact} after unit {ledger.next_unit - 1}")
        fruitless = ledger.fruitless if fact.dropped else ledger.next_fruitless
        self._require(fruitless < MOST_FRUITLESS, f"{fact.job} goes on after {fruitless} fruitless attempts")
        if not fact.dropped:
            ledger.fruitless, ledger.furthest = fruitless, max(ledger.furthest, ledger.next_unit)
        ledger.lost_at = fact.at if ledger.lost_at is None else ledger.lost_at
        ledger.unlinked += fact.unlinked
        self._require(ledger.unlinked < MOST_UNLINKED, f"{fact} after {ledger.unlinked} attempts like it")
        self._counts["workers that did not link up at first"] += fact.unlinked
        ledger.rolled_back.setdefault(fact.attempt, set()).add(fact.unit)
        ledger.next_unit, ledger.ending, ledger.regrouped = fact.unit, "", 0
        ledger.interrupt_copies()

    def _judge_end(self, ledger: Ledger, fact: facts.JobEnded) -> None:
        self._counts[f"job {fact.state}"] += 1
        self._require_no_deadline(fact)
        self._require(fact.state == "done" or bool(fact.reason), f"{fact.job} {fact.state} without a reason")
        if fact.state == "failed" and self._world.calm_since is not None:
            calm = self._world.now - self._world.calm_since
            self._require(
                calm < SETTLED_SECONDS or any(words in fact.reason for words in LASTING),
                f"{fact.job} fails after {calm:.0f} s without a fault: {fact.reason}",
            )
        if fact.state == "done":
            total = len(ledger.whole) - 1
            lines = ledger.lines.items()
            complete = [number for number, line in lines if total in line.decided or line.begins > total]
            home = any((fact.job, number) in self._collected for number in complete)
            self._require(home, f"{fact.job} is done, but its submitter has no state of {complete}")
        if fact.state == "failed" and ledger.phase == "loading" and "lost the link to worker" in fact.reason:
            enough = ledger.unlinked == MOST_UNLINKED - 1 or "in a row ended" in fact.reason
            self._require(enough, f"{fact}, but two workers were apart in its first attempt alone")
        if "in a row ended" in fact.reason:
            self._counts["too many fruitless attempts"] += 1
            count = ledger.next_fruitless
            self._require(count == MOST_FRUITLESS, f"{fact.job} ends after {count} fruitless attempts")

    def _require_no_deadline(self, fact: facts.JobEnded | facts.JobRolledBack) -> None:
        self._require(
            "(allowed: " not in fact.reason, f"only the last deadline helped {fact.job}: {fact.reason}"
        )

    def _require(self, holds: bool, words: str) -> None:
        if not holds:
            self._world.fail(f"the log: {words}")
