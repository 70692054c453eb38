"""A worker's state as immutable data: its job, if any, and how far that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from farflung.protocol.messages import Broken, Load, ServeCheck, UnitReady
from farflung.protocol.registration import Standing
from farflung.worker.events import Attempt

Phase = Literal["idle", "loading", "running", "collecting", "broken", "standby"]


@dataclass(frozen=True)
class State:
    """The worker's job, if any, and what it still needs before it can begin.

    `ready` is what was reported about unit `unit`; it is kept until the broker has decided that unit.
    `broken` is what was reported when the attempt ended here. `failure` says why a segment failed, which
    costs the state, and `failed_on` who sent what it failed on, if known. `standbys` maps members to idle
    workers that hold their copies, before the load's holders. A worker in the phase "standby" is
    such an idle one: it has a load, but no part in its plan. Without a broker the worker is `away`.
    It has `given` its state to these members of other pipelines, which lacked it.
    `generation` and `seal` are those of the newest broker that admitted it. A worker that is
    `leaving` ends once the broker has released it. With a `check`, a worker without a part pulls what
    this one sent to a neighbour.
    """

    worker: str
    phase: Phase = "idle"
    load: Load | None = None
    verified: bool = False
    filled: bool = False
    linked: frozenset[str] = field(default_factory=frozenset)
    announced: bool = False
    unit: int = 0
    ready: UnitReady | None = None
    warned: bool = False
    failure: str = ""
    failed_on: str | None = None
    unprotected: str = ""
    needs_bytes: int = 0
    broken: Broken | None = None
    standbys: Mapping[str, str] = field(default_factory=dict)
    away: bool = False
    generation: int = 0
    seal: bytes = b""
    leaving: bool = False
    given: frozenset[str] = field(default_factory=frozenset)
    check: ServeCheck | None = None

    @property
    def checker(self) -> str | None:
        """The worker without a part in the attempt that checks a neighbour's share now."""
        return None if self.check is None else self.check.checker

    @property
    def idle(self) -> State:
        """The same worker without a job."""
        return State(
            self.worker, away=self.away, generation=self.generation, seal=self.seal, leaving=self.leaving
        )

    @property
    def standing(self) -> Standing | None:
        """What to say of the job to a broker that may not know of it."""
        if self.load is None or self.phase == "idle" or self.phase == "standby" or self.load.checks:
            return None
        phase = "loaded" if self.phase == "loading" and self.announced else self.phase
        return Standing(self.load.job, self.load.attempt, self.unit, phase)

    @property
    def attempt(self) -> Attempt | None:
        """The current job and attempt, and the number of the check, if any."""
        return self.load.key if self.load else None

    @property
    def neighbours(self) -> frozenset[str]:
        """The workers with which this one exchanges values in the plan."""
        return frozenset(self.load.plan.neighbours(self.worker)) if self.load else frozenset()

    @property
    def partners(self) -> frozenset[str]:
        """The workers with which this one exchanges copies: its holder, and those that it holds or gives."""
        if self.load is None:
            return frozenset()
        gifts = [(donor, taker) for donor, taker, _ in self.load.gifts]
        pairs = (*self.load.holders.items(), *self.standbys.items(), *gifts, *self.load.state_gifts)
        found = frozenset(one for pair in pairs if self.worker in pair for one in pair)
        return (found if self.checker is None else found | {self.checker}) - {self.worker}

    @property
    def needed(self) -> frozenset[str]:
        """Ids without whose links the attempt cannot go on: the neighbours, the submitter, and the donors."""
        if self.load is None or self.phase == "standby":
            return frozenset()
        gifts = [] if self.filled else self.load.gifts
        donors = {donor for donor, taker, _ in gifts if taker == self.worker}
        if not self.filled:
            donors |= {donor for donor, taker in self.load.state_gifts if taker == self.worker}
        return self.neighbours | {self.load.submitter} | donors

    @property
    def admitted(self) -> frozenset[str]:
        """Ids whose data links are accepted now: the neighbours, the partners and the submitter.

        A standby accepts only partners.
        """
        return self.neighbours | self.partners | self.needed
