"""A survey as data: what is left to measure, what is being measured, and what was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from farflung.broker.measurements import Direction, Measurements
from farflung.broker.whereabouts import Whereabouts
from farflung.paths.ways import is_relayed
from farflung.protocol.probing import Probed, Task

Line = tuple[str, Direction]

RELAY = "a relay"


@dataclass(frozen=True)
class Member:
    """A worker that takes part, and where it is to be found."""

    worker: str
    where: Whereabouts


@dataclass(frozen=True)
class Measuring:
    """One thing to measure: the first of a pair dials, the centre of a fan comes first."""

    task: Task
    members: tuple[str, ...]


@dataclass(frozen=True)
class Running:
    """What is being measured, what was heard of it so far, and until when it may last."""

    measuring: Measuring
    deadline: float
    heard: Mapping[str, Probed] = field(default_factory=dict)


@dataclass(frozen=True)
class Survey:
    """Where a survey stands.

    Attributes
    ----------
    known : What was measured before, with what was found since.
    pairs, lines : What is still to be measured.
    byte_limit : What a worker may send in one probe of a pair.
    patience_seconds : How long an answer may take.
    next_number : Is given to the next probe.
    running : What is being measured, by its number.
    opened, closed : Who could be dialled and who could not.
    gone : Members who take no further part, and why.
    repeated : What was measured, and if it failed is not tried a second time.
    doubts_left : How many pairs may still be repeated because their rate still grew, or no link came about.
    ended : How many probes are over.
    """

    members: Mapping[str, Member]
    known: Measurements
    pairs: tuple[Measuring, ...]
    lines: tuple[Line, ...]
    byte_limit: int
    patience_seconds: float
    next_number: int
    began_at: float
    running: Mapping[int, Running] = field(default_factory=dict)
    opened: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()
    gone: Mapping[str, str] = field(default_factory=dict)
    repeated: frozenset[Measuring] = frozenset()
    doubts_left: int = 0
    ended: int = 0
    bytes_sent: int = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to measure."""
        return not (self.running or self.pairs or self.lines)

    @property
    def behind_nat(self) -> frozenset[str]:
        """Who is known not to be dialled."""
        return self.closed - self.opened

    @property
    def taken(self) -> set[str]:
        """What the running probes need."""
        return {need for running in self.running.values() for need in self.needs(running.measuring)}

    def needs(self, measuring: Measuring) -> set[str]:
        """What nobody else may use meanwhile: its workers and, if they need one, the way over a relay."""
        needs = set(measuring.members)
        return needs | {RELAY} if needs <= self.behind_nat else needs

    def rates(self, line: Line) -> dict[str, float]:
        """What each way from (or to) a member carries by itself, where the two are joined without a relay."""
        worker, direction = line
        rates: dict[str, float] = {}
        for peer in self.members.keys() - self.gone.keys():
            way = self.known.pairs.get((worker, peer) if direction == "up" else (peer, worker))
            if way is not None and way.bandwidth_mbps and not is_relayed(way.path):
                rates[peer] = way.bandwidth_mbps
        return rates

    def words(self) -> str:
        """How far it is."""
        left = len(self.pairs) + len(self.lines) + len(self.running)
        return f"{self.ended} of {self.ended + left} measured"
