"""What the log says of one job, kept from the stored facts alone, as a second opinion."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.simulation.model import Outcome

from farflung.broker.core import facts
from farflung.plans import LinkCodec, Plan
from farflung.protocol.copies import StateVersion


@dataclass
class Line:
    """One attempt, which begins at the unit `begins`; if it `keeps` the state, with what workers held."""

    begins: int
    plan: Plan | None = None
    decided: dict[int, facts.UnitDecided] = field(default_factory=dict)
    codecs: dict[int, tuple[LinkCodec, ...]] = field(default_factory=dict)
    keeps: bool = False
    replayers: frozenset[str] = frozenset()


@dataclass
class Ledger:
    """One job. `lines` are its attempts by number, `whole` the outcomes without faults.

    `wish`: a copy is due; `under_way`: the one that is not stored yet; `saved` are the units whose state the
    submitter has written, `stable` is the newest one of which the log says so. `furthest` is the first unit
    that no failed attempt has decided, `fruitless` how many in a row decided none of these, and `regrouped`
    how many of them regrouped. On the workers `unfit` alone it cannot be planned; if it is
    `scattered`, only because its plan leaves out some that have copies. `copying` is the version
    that is on its way to disks, `version` the newest stable one, and one was made or failed last at
    `tried_at`; the job `waits` for workers that have it. `owned` are the names that the plan's segments own,
    `shares` those of the version's shares. `damaged`: a disk has lost a copy. Since `lost_at` it has waited
    to run again; `held`: its submitter is away. It `moves` to another plan. It never ran, and in so many
    attempts workers were `unlinked`.
    """

    submitted: facts.JobSubmitted
    whole: list[Outcome]
    attempt: int
    next_unit: int
    stable: int
    furthest: int
    phase: str = "queued"
    lines: dict[int, Line] = field(default_factory=dict)
    planned_on: frozenset[str] = frozenset()
    unfit: frozenset[str] = frozenset()
    scattered: bool = False
    rolled_back: dict[int, set[int]] = field(default_factory=dict)
    copying: StateVersion | None = None
    version: StateVersion | None = None
    tried_at: float = 0.0
    waits: bool = False
    owned: list[frozenset[str]] = field(default_factory=list)
    shares: dict[int, frozenset[str]] = field(default_factory=dict)
    damaged: bool = False
    moves: bool = False
    lost_at: float | None = None
    held: bool = False
    fruitless: int = 0
    regrouped: int = 0
    unlinked: int = 0
    wish: bool = False
    under_way: int | None = None
    saved: set[int] = field(default_factory=set)
    ending: str = ""
    ended: str = ""

    @property
    def line(self) -> Line:
        """The newest attempt."""
        return self.lines[self.attempt]

    @property
    def next_fruitless(self) -> int:
        """How many attempts in a row will have been fruitless if this one ends now."""
        return 0 if self.next_unit > self.furthest else self.fruitless + 1

    def is_overdue(self, now: float) -> bool:
        """Whether it waits in the queue although its patience is over."""
        if self.phase != "queued" or self.held or self.lost_at is None:
            return False
        return now - self.lost_at >= self.submitted.patience_seconds

    def interrupt_copies(self) -> None:
        """A copy that is under way may never arrive: another one is due."""
        self.wish = self.wish or self.under_way is not None
        self.under_way = self.copying = None
