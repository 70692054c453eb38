"""A survey as a pure state machine: events in, probe requests and measurements out.

First, pairs of workers probe each other in both directions; a worker is in one pair at a time. A pair is
probed a second time if its probe failed, or if its rate still grew when time was up. When all pairs of a
worker are measured, it keeps several links busy at once (a fan), out and in, to measure its access line.

A worker that does not answer costs one deadline, not one for each of its pairs. No clock, socket or thread:
time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from farflung.broker.network.worker_addresses import WorkerAddresses
from farflung.broker.survey.measurements import Direction, Measurement, Measurements, PairMeasurement
from farflung.broker.survey.results import Results, better, line_results, pair_results
from farflung.connectivity.routes import is_relayed
from farflung.protocol.fields import Message
from farflung.protocol.probing import EndProbe, Probe, Probed, ProbedPeer, Task

Line = tuple[str, Direction]

RELAY = "a relay"


@dataclass(frozen=True)
class Member:
    """A worker that takes part in a survey, and its addresses."""

    worker: str
    where: WorkerAddresses


@dataclass(frozen=True)
class Measuring:
    """One probe: of a pair, whose first member dials, or of a fan, whose centre comes first."""

    task: Task
    members: tuple[str, ...]


@dataclass(frozen=True)
class Running:
    """A running probe: its deadline, and the answers received so far."""

    measuring: Measuring
    deadline: float
    heard: Mapping[str, Probed] = field(default_factory=dict)


@dataclass(frozen=True)
class Survey:
    """The state of a survey.

    Attributes
    ----------
    known : All measurements, from before the survey and from it.
    pairs, lines : Pairs and access lines that are still to be measured.
    byte_limit : Bytes that a worker may send in one probe of a pair.
    patience_seconds : The time that an answer may take.
    next_number : The number of the next probe.
    running : Running probes by number.
    opened, closed : Workers that could be dialled, and workers that could not.
    gone : Members that have left the survey, and why.
    repeated : Finished probes, which are not tried a third time.
    doubts_left : Number of pairs that may still be repeated, because their rate still grew or they did not
        connect.
    ended : Number of finished probes.
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
        """Whether everything is measured."""
        return not (self.running or self.pairs or self.lines)

    @property
    def behind_nat(self) -> frozenset[str]:
        """Workers that other workers cannot dial."""
        return self.closed - self.opened

    @property
    def taken(self) -> set[str]:
        """What the running probes occupy: workers, and the relay."""
        return {need for running in self.running.values() for need in self.needs(running.measuring)}

    def needs(self, measuring: Measuring) -> set[str]:
        """What a probe occupies: its workers and, if none of them can be dialled, the relay."""
        needs = set(measuring.members)
        return needs | {RELAY} if needs <= self.behind_nat else needs

    def rates(self, line: Line) -> dict[str, float]:
        """Measured rates of the links from (or to) a worker that need no relay, by peer."""
        worker, direction = line
        rates: dict[str, float] = {}
        for peer in self.members.keys() - self.gone.keys():
            way = self.known.pairs.get((worker, peer) if direction == "up" else (peer, worker))
            if way is not None and way.bandwidth_mbps and not is_relayed(way.path):
                rates[peer] = way.bandwidth_mbps
        return rates

    def words(self) -> str:
        """The progress of the survey, for `farflung status`."""
        left = len(self.pairs) + len(self.lines) + len(self.running)
        return f"{self.ended} of {self.ended + left} measured"


FAN_PEERS, FAN_PEERS_OF_MANY = 7, 4
"""Peers that keep a worker's access line busy: all of a fleet of 8, and fewer of a larger fleet, so that
several fans can run at once.
"""

FAN_SHARE = 4
"""Each link of a fan may carry the byte limit of a pair divided by this."""

DOUBTFUL_SHARE = 4
"""One in this many pairs may be repeated because its rate still grew or it did not connect."""

_GOOD_ENOUGH = 0.8
"""The peers of a fan must reach this share of the rate of the best peers."""
_TELLING = 2.0
"""Or this multiple of the fastest link alone, which is enough to see whether the access line is shared."""
_WORTH_A_FAN = 1.15
"""A fan is measured if its links alone add up to at least this multiple of the fastest."""


class SurveyTransition:
    """Accumulates messages and measurements while one event is handled."""

    def __init__(self, survey: Survey, now: float) -> None:
        self.survey = survey
        self.now = now
        self.messages: list[tuple[str, Message]] = []
        self.found: list[Measurement] = []

    def finish(self, number: int) -> None:
        """End a probe and keep its results."""
        measuring = self.survey.running[number].measuring
        result = _results(self.survey, self.survey.running[number], self.now)
        again = _again(self.survey, measuring, result)
        self.drop(number)
        self.found.extend(result.found)
        self.survey = replace(
            self.survey,
            known=self.survey.known.updated(result.found),
            opened=self.survey.opened | result.opened,
            closed=self.survey.closed | result.closed,
            pairs=(*self.survey.pairs, *again),
            repeated=self.survey.repeated | {measuring},
            doubts_left=self.survey.doubts_left - len(again),
        )

    def drop(self, number: int) -> None:
        """End a probe without results."""
        running = {key: one for key, one in self.survey.running.items() if key != number}
        self.survey = replace(self.survey, running=running, ended=self.survey.ended + 1)

    def start(self, measuring: Measuring) -> None:
        """Ask the members of a probe to run it."""
        number = self.survey.next_number
        running = Running(measuring, self.now + self.survey.patience_seconds)
        self.survey = replace(
            self.survey, running={**self.survey.running, number: running}, next_number=number + 1
        )
        centre, *peers = measuring.members
        part: Task = {"pair": "pair", "out": "take", "in": "give"}[measuring.task]  # type: ignore[assignment]
        # Members that are dialled are asked first, so that few connections reach them too early.
        for peer in peers:
            self.messages.append((peer, _probe(self.survey, number, part, peer, [centre])))
        self.messages.append((centre, _probe(self.survey, number, measuring.task, centre, peers)))

    def leave(self, worker: str, reason: str, is_fault: bool) -> None:
        """Remove a member; see the function `leave`."""
        self.survey = replace(
            self.survey,
            gone={**self.survey.gone, worker: reason},
            pairs=tuple(pair for pair in self.survey.pairs if worker not in pair.members),
            lines=tuple(line for line in self.survey.lines if line[0] != worker),
        )
        for number, running in list(self.survey.running.items()):
            if worker in running.measuring.members:
                left = [name for name in running.measuring.members if name not in self.survey.gone]
                self.messages += [(name, EndProbe(number)) for name in left]
                if is_fault:
                    self.finish(number)
                else:
                    self.drop(number)

    def go_on(self) -> SurveyTransition:
        """Start all probes that can run now: pairs first, then access lines of workers without open pairs."""
        taken = self.survey.taken
        for pair in self.survey.pairs:
            if not self.survey.needs(pair) & taken:
                taken |= self.survey.needs(pair)
                self.survey = replace(
                    self.survey, pairs=tuple(one for one in self.survey.pairs if one is not pair)
                )
                self.start(pair)
        self._go_on_with_lines(taken)
        return self

    def _go_on_with_lines(self, taken: set[str]) -> None:
        unmet = {name for pair in self.survey.pairs for name in pair.members}
        for line in self.survey.lines:
            if line[0] in taken | unmet:
                continue
            is_worth_it, fan = _fan(self.survey, line, taken | unmet)
            if fan is not None:
                taken.update(fan.members)
                self.start(fan)
            if fan is not None or not is_worth_it:
                left = tuple(one for one in self.survey.lines if one != line)
                self.survey = replace(self.survey, lines=left)


def begin(survey: Survey) -> SurveyTransition:
    """Ask for the first probes of a new survey."""
    doubts = 1 + len(survey.pairs) // DOUBTFUL_SHARE
    return SurveyTransition(replace(survey, doubts_left=doubts), survey.began_at).go_on()


def heard(survey: Survey, now: float, worker: str, probed: Probed) -> SurveyTransition:
    """Handle a worker's answer; answers that are not awaited are ignored."""
    turn = SurveyTransition(survey, now)
    running = survey.running.get(probed.number)
    if running is None or worker not in running.measuring.members or worker in running.heard:
        return turn
    if probed.problem:
        turn.leave(worker, probed.problem, is_fault=False)
        return turn.go_on()
    running = replace(running, heard={**running.heard, worker: probed})
    turn.survey = replace(
        survey,
        running={**survey.running, probed.number: running},
        bytes_sent=survey.bytes_sent + probed.bytes_sent,
    )
    if len(running.heard) < len(running.measuring.members):
        return turn
    turn.finish(probed.number)
    return turn.go_on()


def passed(survey: Survey, now: float) -> SurveyTransition:
    """Handle the passing of time: members that have not answered in time leave the survey."""
    turn = SurveyTransition(survey, now)
    for running in survey.running.values():
        late = set(running.measuring.members) - running.heard.keys() if now >= running.deadline else set()
        for worker in sorted(late - turn.survey.gone.keys()):
            turn.leave(worker, f"it did not answer within {survey.patience_seconds:g} s", is_fault=True)
    return turn.go_on()


def leave(survey: Survey, now: float, worker: str, reason: str, is_fault: bool = False) -> SurveyTransition:
    """Remove a member. If the reason `is_fault` of its own, its running probe counts as failed."""
    turn = SurveyTransition(survey, now)
    if worker in survey.members and worker not in survey.gone:
        turn.leave(worker, reason, is_fault)
    return turn.go_on()


def _results(survey: Survey, running: Running, now: float) -> Results:
    centre, *peers = running.measuring.members
    if running.measuring.task == "pair":
        found = pair_results((centre, peers[0]), running.heard, survey.gone, now)
        return better(found, survey.known) if running.measuring in survey.repeated else found
    direction: Direction = "up" if running.measuring.task == "out" else "down"
    return line_results(centre, direction, running.heard, survey.known, now)


def _again(survey: Survey, measuring: Measuring, result: Results) -> list[Measuring]:
    """The probe again if it deserves a second chance, since the machines may have been busy.

    That is every pair that connected without getting a rate, and some of the pairs that did not connect or
    whose rate still grew.
    """
    found = [one for one in result.found if isinstance(one, PairMeasurement)]
    has_failed = any(one.problem and one.path for one in found)
    is_doubtful = survey.doubts_left > 0 and not all(one.is_settled for one in found)
    is_first = measuring not in survey.repeated and not survey.gone.keys() & set(measuring.members)
    return [measuring] if is_first and (has_failed or is_doubtful) else []


def _probe(survey: Survey, number: int, task: Task, worker: str, peers: Iterable[str]) -> Probe:
    """The request to one member. The first member dials, unless only it can be dialled."""
    is_first = worker == survey.running[number].measuring.members[0]
    reader = survey.members[worker].where.seen
    probed = [
        ProbedPeer(peer, survey.members[peer].where.told(reader), _dials(survey, worker, peer, is_first))
        for peer in peers
    ]
    limit = survey.byte_limit if task == "pair" else survey.byte_limit // FAN_SHARE
    return Probe(number, task, probed, limit)


def _dials(survey: Survey, worker: str, peer: str, is_first: bool) -> bool:
    if (worker in survey.behind_nat) != (peer in survey.behind_nat):
        return worker in survey.behind_nat
    return is_first


def _fan(survey: Survey, line: Line, taken: set[str]) -> tuple[bool, Measuring | None]:
    """Whether an access line is worth measuring and, if so, a fan of free peers that keeps it busy, or None.

    Of the possible peers the slowest are chosen, because other access lines need the fast ones.
    """
    rates = survey.rates(line)
    by_rate = sorted(rates, key=lambda peer: (-rates[peer], peer))
    most = FAN_PEERS if len(survey.members) <= FAN_PEERS + 1 else FAN_PEERS_OF_MANY
    best = by_rate[:most]
    busiest = sum(rates[peer] for peer in best)
    if len(best) < 2 or busiest < _WORTH_A_FAN * rates[best[0]]:
        return False, None
    enough = min(_GOOD_ENOUGH * busiest, _TELLING * rates[best[0]])
    free = [peer for peer in by_rate if peer not in taken]
    fans = (free[first : first + len(best)] for first in reversed(range(len(free) - len(best) + 1)))
    fan = next((fan for fan in fans if sum(rates[peer] for peer in fan) >= enough), None)
    if fan is None:
        return True, None
    return True, Measuring("out" if line[1] == "up" else "in", (line[0], *fan))
