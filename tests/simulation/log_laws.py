"""Laws of the broker's log: what may be decided, in which order, and what a restart gives back.

The ledger of a job is kept from the stored facts alone, so it is a second opinion on the broker's state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.parcels import Chain
from tests.simulation.store import VirtualStore
from tests.simulation.world import World

from farflung.broker.core import facts
from farflung.broker.core.facts import AnyDecision
from farflung.broker.core.state import State, durable, reduce_fact
from farflung.plans import LinkCodec, Plan

if TYPE_CHECKING:
    from collections import Counter


@dataclass
class Ledger:
    """What the log says of one job. `wish`: a copy is due; `under_way`: the one that is not stored yet."""

    submitted: facts.JobSubmitted
    attempt: int
    next_unit: int
    plan: Plan | None = None
    running: bool = False
    decided: dict[int, facts.UnitDecided] = field(default_factory=dict)
    codecs: dict[int, tuple[LinkCodec, ...]] = field(default_factory=dict)
    wish: bool = False
    under_way: int | None = None
    ending: str = ""
    ended: str = ""

    def chain(self) -> Chain:
        """What was applied in this job, in order."""
        return tuple((unit, fact.scale) for unit, fact in self.decided.items())


class LogLaws:
    """Judges each stored fact, and compares each replay with the state that was lost."""

    def __init__(self, world: World, counts: Counter[str]) -> None:
        self._world, self._counts = world, counts
        self.jobs: dict[str, Ledger] = {}
        self._replayed = State.empty()

    def on_stored(self, decisions: Sequence[AnyDecision], state: State, store: VirtualStore) -> None:
        """A group of facts has become durable; `state` is the broker's state with them."""
        for record in store.records[len(store.records) - len(decisions) :]:
            fact = facts.decode(record)
            self._replayed = reduce_fact(self._replayed, fact)
            self._counts[type(fact).__name__] += 1
            self._judge(fact)
        if decisions and durable(self._replayed) != durable(state):
            self._world.fail("a replay of the log gives another state than the broker has")
        if store.blobs.keys() != state.blobs():
            self._world.fail(f"{len(store.blobs)} blobs are stored, the jobs need {len(state.blobs())}")

    def on_crash(self, store: VirtualStore) -> None:
        """The broker has died: what it had stored must come back."""
        if store.replayed() != durable(self._replayed):
            self._world.fail("a restart gives another state than was stored before the crash")

    def _judge(self, fact: AnyDecision) -> None:
        if isinstance(fact, facts.JobSubmitted):
            self._require(fact.job not in self.jobs, "a job was submitted twice")
            self.jobs[fact.job] = Ledger(fact, fact.attempts, fact.unit)
            return
        if isinstance(fact, facts.WorkerAdmitted | facts.WorkerMoved | facts.WorkerLost):
            return
        ledger = self.jobs[fact.job]
        self._require(not ledger.ended, f"{fact.job} has ended, and then: {fact}")
        match fact:
            case facts.JobPlanning(attempt=attempt):
                self._require(attempt == ledger.attempt + 1, f"attempt {attempt} follows {ledger.attempt}")
                ledger.attempt, ledger.running, ledger.plan = attempt, False, None
                ledger.wish = ledger.wish or ledger.under_way is not None
                ledger.under_way = None
            case facts.JobLoading(plan=plan):
                ledger.plan = plan
                ledger.codecs[ledger.next_unit] = tuple(plan.codecs)
            case facts.JobRunning():
                self._require(not ledger.running, "the job began twice")
                ledger.running = True
            case facts.UnitDecided():
                self._judge_unit(ledger, fact)
            case facts.CodecsDecided(unit=unit, codecs=codecs):
                self._require(unit == ledger.next_unit, f"codecs change at {unit}, not {ledger.next_unit}")
                ledger.codecs[unit] = tuple(codecs)
            case facts.CopyAsked():
                ledger.wish = True
            case facts.CopyStored(unit=unit):
                self._require(
                    unit == ledger.under_way, f"the copy of {unit} is stored, not {ledger.under_way}"
                )
                ledger.under_way = None
            case facts.JobCollecting(state=state):
                self._require(
                    ledger.running and not ledger.ending, "the job is collected too often or too soon"
                )
                ledger.ending = state
            case facts.JobEnded(state=state):
                self._judge_end(ledger, fact)
                ledger.ended = state

    def _judge_unit(self, ledger: Ledger, fact: facts.UnitDecided) -> None:
        units = ledger.submitted.training.units()
        unit = units.at(fact.unit)
        self._require(ledger.running and not ledger.ending, f"{fact} while no unit runs")
        self._require(fact.attempt == ledger.attempt, f"{fact} in attempt {ledger.attempt}")
        self._require(fact.unit not in ledger.decided, f"unit {fact.unit} of {fact.job} is decided twice")
        self._require(unit is not None and fact.unit == ledger.next_unit, f"expected unit {ledger.next_unit}")
        assert unit is not None
        every = ledger.submitted.checkpoint_every
        due = ledger.wish or (unit.train and every > 0 and (unit.step + 1) % every == 0)
        is_last = units.at(fact.unit + 1) is None
        copied = due and unit.train and ledger.under_way is None and not is_last
        self._require(fact.keep == copied, f"the copy of unit {fact.unit}: expected keep={copied}")
        if copied:
            ledger.under_way, ledger.wish = fact.unit, False
        else:
            ledger.wish = due
        ledger.decided[fact.unit] = fact
        ledger.next_unit += 1

    def _judge_end(self, ledger: Ledger, fact: facts.JobEnded) -> None:
        self._counts[f"job {fact.state}"] += 1
        self._require(
            "(allowed: " not in fact.reason, f"only the last deadline ended {fact.job}: {fact.reason}"
        )
        self._require(fact.state == "done" or bool(fact.reason), f"{fact.job} {fact.state} without a reason")
        left = ledger.submitted.training.units().at(ledger.next_unit)
        self._require(
            fact.state != "done" or left is None, f"{fact.job} is done before unit {ledger.next_unit}"
        )

    def _require(self, holds: bool, words: str) -> None:
        if not holds:
            self._world.fail(f"the log: {words}")
