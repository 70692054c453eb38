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

AccessLine = tuple[str, Direction]

RELAY = "a relay"


@dataclass(frozen=True)
class Member:
    """A worker that takes part in a survey, and its addresses."""

    worker: str
    where: WorkerAddresses


@dataclass(frozen=True)
class PlannedProbe:
    """One probe: of a pair, whose first member dials, or of a fan, whose centre comes first."""

    task: Task
    members: tuple[str, ...]


@dataclass(frozen=True)
class RunningProbe:
    """A running probe: its deadline, and the answers received so far."""

    probe: PlannedProbe
    deadline: float
    answers: Mapping[str, Probed] = field(default_factory=dict)


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
    pairs: tuple[PlannedProbe, ...]
    lines: tuple[AccessLine, ...]
    byte_limit: int
    patience_seconds: float
    next_number: int
    began_at: float
    running: Mapping[int, RunningProbe] = field(default_factory=dict)
    opened: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()
    gone: Mapping[str, str] = field(default_factory=dict)
    repeated: frozenset[PlannedProbe] = frozenset()
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
    def occupied(self) -> set[str]:
        """What the running probes occupy: workers, and the relay."""
        return {need for running in self.running.values() for need in self.needs(running.probe)}

    def needs(self, probe: PlannedProbe) -> set[str]:
        """What a probe occupies: its workers and, if none of them can be dialled, the relay."""
        needs = set(probe.members)
        return needs | {RELAY} if needs <= self.behind_nat else needs

    def rates(self, line: AccessLine) -> dict[str, float]:
        """Measured rates of the links from (or to) a worker that need no relay, by peer."""
        worker, direction = line
        rates: dict[str, float] = {}
        for peer in self.members.keys() - self.gone.keys():
            measurement = self.known.pairs.get((worker, peer) if direction == "up" else (peer, worker))
            if measurement is not None and measurement.bandwidth_mbps and not is_relayed(measurement.path):
                rates[peer] = measurement.bandwidth_mbps
        return rates

    def progress_text(self) -> str:
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
_CLEARLY_SHARED = 2.0
"""Or this multiple of the fastest link alone, which is enough to see whether the access line is shared."""
_WORTH_A_FAN = 1.15
"""A fan is measured if its links alone add up to at least this multiple of the fastest."""


class SurveyTransition:
    """Accumulates messages and measurements while one event is handled."""

    def __init__(self, survey: Survey, now: float) -> None:
        self.survey = survey
        self.now = now
        self.messages: list[tuple[str, Message]] = []
        self.measurements: list[Measurement] = []

    def finish(self, number: int) -> None:
        """End a probe and keep its results."""
        probe = self.survey.running[number].probe
        result = _results(self.survey, self.survey.running[number], self.now)
        second_chance = _second_chance(self.survey, probe, result)
        self.drop(number)
        self.measurements.extend(result.measurements)
        self.survey = replace(
            self.survey,
            known=self.survey.known.updated(result.measurements),
            opened=self.survey.opened | result.opened,
            closed=self.survey.closed | result.closed,
            pairs=(*self.survey.pairs, *second_chance),
            repeated=self.survey.repeated | {probe},
            doubts_left=self.survey.doubts_left - len(second_chance),
        )

    def drop(self, number: int) -> None:
        """End a probe without results."""
        running = {key: one for key, one in self.survey.running.items() if key != number}
        self.survey = replace(self.survey, running=running, ended=self.survey.ended + 1)

    def start(self, probe: PlannedProbe) -> None:
        """Ask the members of a probe to run it."""
        number = self.survey.next_number
        running = RunningProbe(probe, self.now + self.survey.patience_seconds)
        self.survey = replace(
            self.survey, running={**self.survey.running, number: running}, next_number=number + 1
        )
        centre, *peers = probe.members
        part: Task = {"pair": "pair", "out": "take", "in": "give"}[probe.task]  # type: ignore[assignment]
        # Members that are dialled are asked first, so that few connections reach them too early.
        for peer in peers:
            self.messages.append((peer, _probe(self.survey, number, part, peer, [centre])))
        self.messages.append((centre, _probe(self.survey, number, probe.task, centre, peers)))

    def leave(self, worker: str, reason: str, is_fault: bool) -> None:
        """Remove a member; see the function `leave`."""
        self.survey = replace(
            self.survey,
            gone={**self.survey.gone, worker: reason},
            pairs=tuple(pair for pair in self.survey.pairs if worker not in pair.members),
            lines=tuple(line for line in self.survey.lines if line[0] != worker),
        )
        for number, running in list(self.survey.running.items()):
            if worker in running.probe.members:
                left = [name for name in running.probe.members if name not in self.survey.gone]
                self.messages += [(name, EndProbe(number)) for name in left]
                if is_fault:
                    self.finish(number)
                else:
                    self.drop(number)

    def start_probes(self) -> SurveyTransition:
        """Start all probes that can run now: pairs first, then access lines of workers without open pairs."""
        occupied = self.survey.occupied
        for pair in self.survey.pairs:
            if not self.survey.needs(pair) & occupied:
                occupied |= self.survey.needs(pair)
                self.survey = replace(
                    self.survey, pairs=tuple(one for one in self.survey.pairs if one is not pair)
                )
                self.start(pair)
        self._start_fans(occupied)
        return self

    def _start_fans(self, occupied: set[str]) -> None:
        unmeasured = {name for pair in self.survey.pairs for name in pair.members}
        for line in self.survey.lines:
            if line[0] in occupied | unmeasured:
                continue
            is_worth_it, fan = _fan(self.survey, line, occupied | unmeasured)
            if fan is not None:
                occupied.update(fan.members)
                self.start(fan)
            if fan is not None or not is_worth_it:
                left = tuple(one for one in self.survey.lines if one != line)
                self.survey = replace(self.survey, lines=left)


def begin(survey: Survey) -> SurveyTransition:
    """Ask for the first probes of a new survey."""
    doubts = 1 + len(survey.pairs) // DOUBTFUL_SHARE
    return SurveyTransition(replace(survey, doubts_left=doubts), survey.began_at).start_probes()


def on_answer(survey: Survey, now: float, worker: str, probed: Probed) -> SurveyTransition:
    """Handle a worker's answer; answers that are not awaited are ignored."""
    turn = SurveyTransition(survey, now)
    running = survey.running.get(probed.number)
    if running is None or worker not in running.probe.members or worker in running.answers:
        return turn
    if probed.problem:
        turn.leave(worker, probed.problem, is_fault=False)
        return turn.start_probes()
    running = replace(running, answers={**running.answers, worker: probed})
    turn.survey = replace(
        survey,
        running={**survey.running, probed.number: running},
        bytes_sent=survey.bytes_sent + probed.bytes_sent,
    )
    if len(running.answers) < len(running.probe.members):
        return turn
    turn.finish(probed.number)
    return turn.start_probes()


def on_tick(survey: Survey, now: float) -> SurveyTransition:
    """Handle the passing of time: members that have not answered in time leave the survey."""
    turn = SurveyTransition(survey, now)
    for running in survey.running.values():
        late = set(running.probe.members) - running.answers.keys() if now >= running.deadline else set()
        for worker in sorted(late - turn.survey.gone.keys()):
            turn.leave(worker, f"it did not answer within {survey.patience_seconds:g} s", is_fault=True)
    return turn.start_probes()


def leave(survey: Survey, now: float, worker: str, reason: str, is_fault: bool = False) -> SurveyTransition:
    """Remove a member. If the reason `is_fault` of its own, its running probe counts as failed."""
    turn = SurveyTransition(survey, now)
    if worker in survey.members and worker not in survey.gone:
        turn.leave(worker, reason, is_fault)
    return turn.start_probes()


def _results(survey: Survey, running: RunningProbe, now: float) -> Results:
    centre, *peers = running.probe.members
    if running.probe.task == "pair":
        found = pair_results((centre, peers[0]), running.answers, survey.gone, now)
        return better(found, survey.known) if running.probe in survey.repeated else found
    direction: Direction = "up" if running.probe.task == "out" else "down"
    return line_results(centre, direction, running.answers, survey.known, now)


def _second_chance(survey: Survey, probe: PlannedProbe, result: Results) -> list[PlannedProbe]:
    """The probe again if it deserves a second chance, since the machines may have been busy.

    That is every pair that connected without getting a rate, and some of the pairs that did not connect or
    whose rate still grew.
    """
    found = [one for one in result.measurements if isinstance(one, PairMeasurement)]
    has_failed = any(one.problem and one.path for one in found)
    is_doubtful = survey.doubts_left > 0 and not all(one.is_settled for one in found)
    is_first = probe not in survey.repeated and not survey.gone.keys() & set(probe.members)
    return [probe] if is_first and (has_failed or is_doubtful) else []


def _probe(survey: Survey, number: int, task: Task, worker: str, peers: Iterable[str]) -> Probe:
    """The request to one member. The first member dials, unless only it can be dialled."""
    is_first = worker == survey.running[number].probe.members[0]
    reader = survey.members[worker].where.seen
    probed = [
        ProbedPeer(
            peer, survey.members[peer].where.visible_to(reader), _dials(survey, worker, peer, is_first)
        )
        for peer in peers
    ]
    limit = survey.byte_limit if task == "pair" else survey.byte_limit // FAN_SHARE
    return Probe(number, task, probed, limit)


def _dials(survey: Survey, worker: str, peer: str, is_first: bool) -> bool:
    if (worker in survey.behind_nat) != (peer in survey.behind_nat):
        return worker in survey.behind_nat
    return is_first


def _fan(survey: Survey, line: AccessLine, occupied: set[str]) -> tuple[bool, PlannedProbe | None]:
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
    enough = min(_GOOD_ENOUGH * busiest, _CLEARLY_SHARED * rates[best[0]])
    free = [peer for peer in by_rate if peer not in occupied]
    fans = (free[first : first + len(best)] for first in reversed(range(len(free) - len(best) + 1)))
    fan = next((fan for fan in fans if sum(rates[peer] for peer in fan) >= enough), None)
    if fan is None:
        return True, None
    return True, PlannedProbe("out" if line[1] == "up" else "in", (line[0], *fan))
