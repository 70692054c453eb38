"""A survey as a list of events: who is asked what, and what comes of those who do not answer."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from farflung.broker.network.worker_addresses import WorkerAddresses
from farflung.broker.survey.machine import (
    AccessLine,
    Member,
    PlannedProbe,
    Survey,
    SurveyTransition,
    begin,
    leave,
    on_answer,
    on_tick,
)
from farflung.broker.survey.measurements import (
    AccessLineMeasurement,
    Measurement,
    Measurements,
    Pair,
    PairMeasurement,
)
from farflung.broker.survey.plan import meetings
from farflung.protocol.probing import EndProbe, Probe, Probed, ProbedLink
from farflung.transport.timeouts import ACCESS_LINE_SECONDS, SURVEY_PROBE_SECONDS, Timeouts

PATIENCE_SECONDS = Timeouts().probe_answer_seconds


def known_of(fleet: Fleet) -> Mapping[Pair, PairMeasurement]:
    return fleet.survey.known.pairs


def names(count: int) -> list[str]:
    return [f"w{number:02}" for number in range(count)]


def survey(count: int, lines: bool = True, known: Measurements | None = None) -> Survey:
    workers = names(count)
    both: list[AccessLine] = [(name, link) for link in ("up", "down") for name in workers] if lines else []  # type: ignore[misc]
    return Survey(
        members={name: Member(name, WorkerAddresses((f"{name}:1",))) for name in workers},
        known=known or Measurements(),
        pairs=tuple(PlannedProbe("pair", meeting) for meeting in meetings(dict.fromkeys(workers, ""))),
        lines=tuple(both),
        byte_limit=1000,
        patience_seconds=PATIENCE_SECONDS,
        next_number=1,
        began_at=0.0,
    )


@dataclass
class Fleet:
    """Workers that answer as `answer` says, after `seconds`; None: never."""

    survey: Survey
    answer: Callable[[str, Probe], Probed | None]
    seconds: Callable[[Probe], float] = lambda probe: 1.0
    now: float = 0.0
    found: list[Measurement] = field(default_factory=list)
    asked: list[tuple[str, Probe]] = field(default_factory=list)
    busy: dict[str, int] = field(default_factory=dict)
    due: list[tuple[float, int, str, Probed]] = field(default_factory=list)

    def run(self) -> Fleet:
        self.take(begin(self.survey))
        for _ in range(100_000):
            if self.survey.is_over:
                return self
            if self.due:
                self.now, _, worker, probed = heapq.heappop(self.due)
                self.busy = {
                    name: number
                    for name, number in self.busy.items()
                    if (name, number) != (worker, probed.number)
                }
                self.take(on_answer(self.survey, self.now, worker, probed))
            else:
                self.now += 1.0
                self.take(on_tick(self.survey, self.now))
        raise AssertionError("the survey never ends")

    def take(self, turn: SurveyTransition) -> None:
        self.survey = turn.survey
        self.found += turn.measurements
        running = [name for one in self.survey.running.values() for name in one.probe.members]
        assert len(running) == len(set(running)), "somebody is in two probes"
        for worker, message in turn.messages:
            if isinstance(message, EndProbe):
                continue
            assert isinstance(message, Probe)
            self.asked.append((worker, message))
            if (probed := self.answer(worker, message)) is not None:
                at = self.now + self.seconds(message)
                heapq.heappush(self.due, (at, len(self.asked), worker, probed))

    @property
    def pairs(self) -> dict[tuple[str, str], PairMeasurement]:
        return {one.pair: one for one in self.found if isinstance(one, PairMeasurement)}

    @property
    def lines(self) -> dict[AccessLine, AccessLineMeasurement]:
        return {
            (one.worker, one.direction): one for one in self.found if isinstance(one, AccessLineMeasurement)
        }


def well(worker: str, probe: Probe) -> Probed:
    """All ways carry 10 Mbit/s, and every line 25."""
    links = [
        ProbedLink(
            peer.worker,
            "direct" if peer.dials else "",
            "",
            10.0 if probe.task == "pair" else None,
            5.0,
            100,
            True,
        )
        for peer in probe.peers
    ]
    return Probed(probe.number, links, 25.0 if probe.task in ("out", "in") else None, True, 100)


def longest(probe: Probe) -> float:
    """Seconds of a probe that does not end early, with round trips of 40 ms."""
    once = SURVEY_PROBE_SECONDS + 5 * 0.04
    return 2 * once + 0.25 if probe.task == "pair" else ACCESS_LINE_SECONDS + 5 * 0.04 + 0.25


def test_a_pair_whose_probe_came_to_nothing_gets_a_second_chance() -> None:
    failures = 1

    def answer(worker: str, probe: Probe) -> Probed:
        nonlocal failures
        if worker == "w00" and failures:
            failures -= 1
            return Probed(probe.number, [ProbedLink("w01", "direct", "too little of a probe came")])
        return well(worker, probe)

    fleet = Fleet(survey(2), answer).run()
    assert [link.bandwidth_mbps for link in fleet.pairs.values()] == [10, 10]
    failures = 10
    fleet = Fleet(survey(2), answer).run()
    assert failures == 8
    assert fleet.pairs["w00", "w01"].problem == "too little of a probe came"
    assert known_of(fleet)["w00", "w01"].state == "not measured"  # they reached each other


def test_every_pair_is_probed_once_from_both_sides_and_every_line_both_ways() -> None:
    fleet = Fleet(survey(6), well).run()
    asked = Counter(
        frozenset((worker, probe.peers[0].worker)) for worker, probe in fleet.asked if probe.task == "pair"
    )
    assert len(asked) == 15 and set(asked.values()) == {2}
    assert len(fleet.pairs) == 30
    assert {
        (link.bandwidth_mbps, link.latency_ms, link.path, link.problem) for link in fleet.pairs.values()
    } == {(10.0, 5.0, "direct", "")}
    assert len(fleet.lines) == 12
    assert {(line.mbps, line.alone_mbps) for line in fleet.lines.values()} == {(25.0, 50.0)}


def test_one_of_two_dials_and_the_other_hears_of_it_first() -> None:
    (first, one), (second, other) = Fleet(survey(2), well).run().asked
    assert (one.peers[0].worker, other.peers[0].worker) == (second, first)
    assert (one.peers[0].dials, other.peers[0].dials) == (False, True)
    assert other.peers[0].addresses == [f"{first}:1"]


def test_a_line_that_was_still_getting_faster_shows_nothing() -> None:
    def answer(worker: str, probe: Probe) -> Probed:
        return structs.replace(well(worker, probe), line_is_settled=False)

    fleet = Fleet(survey(4), answer).run()
    assert not fleet.lines and len(fleet.pairs) == 12


def test_a_rate_that_still_grew_is_measured_again_and_the_better_one_stays() -> None:
    rates = iter([(6.0, False), (9.0, True), (7.0, True), (8.0, True)])

    def answer(worker: str, probe: Probe) -> Probed:
        mbps, is_settled = next(rates)
        path = "direct" if probe.peers[0].dials else ""
        return Probed(probe.number, [ProbedLink(probe.peers[0].worker, path, "", mbps, 5.0, 1, is_settled)])

    fleet = Fleet(survey(2), answer).run()
    assert sorted(link.bandwidth_mbps for link in fleet.pairs.values()) in ([7.0, 9.0], [8.0, 9.0])


def test_two_workers_have_no_line_to_share() -> None:
    assert not Fleet(survey(2), well).run().lines


def test_sixteen_workers_are_surveyed_within_a_minute_even_if_no_probe_ends_early() -> None:
    fleet = Fleet(survey(16), well, longest).run()
    assert len(fleet.pairs) == 240 and len(fleet.lines) == 32
    assert fleet.now < 60


def test_lines_that_need_the_few_fast_ones_to_be_kept_busy_do_not_all_wait_for_them() -> None:
    """Homes with 20/50, 8/50, 50/50 and 20/20 Mbit/s up and down, four of each."""
    lines = dict(zip(names(16), 4 * [(20.0, 50.0), (8.0, 50.0), (50.0, 50.0), (20.0, 20.0)], strict=True))

    def answer(worker: str, probe: Probe) -> Probed:
        if probe.task != "pair":
            return structs.replace(well(worker, probe), line_mbps=lines[worker][probe.task == "in"])
        peer = probe.peers[0]
        rate = min(lines[worker][0], lines[peer.worker][1])
        link = ProbedLink(peer.worker, "direct" if peer.dials else "", "", rate, 20.0, 100, True)
        return Probed(probe.number, [link], None, True, 100)

    fleet = Fleet(survey(16), answer, longest).run()
    assert len(fleet.lines) == 32 and all(line.is_shared for line in fleet.lines.values())
    assert fleet.now < 55


def test_a_frozen_worker_costs_one_deadline_and_each_of_its_pairs_a_clear_word() -> None:
    def answer(worker: str, probe: Probe) -> Probed | None:
        return None if worker == "w00" else well(worker, probe)

    fleet = Fleet(survey(6), answer).run()
    failed = {link.pair: link.problem for link in fleet.pairs.values() if not link.bandwidth_mbps}
    assert fleet.now < 2 * PATIENCE_SECONDS + 30
    assert len(failed) == 1 and "w00" in next(iter(failed))
    assert next(iter(failed.values())) == f"worker w00: it did not answer within {PATIENCE_SECONDS:g} s"
    assert known_of(fleet)[next(iter(failed))].state == "not measured"
    assert len(fleet.pairs) == 2 + 20  # the way to it carried something; the others were all measured
    assert not any(line[0] == "w00" for line in fleet.lines)


def test_a_pair_that_cannot_reach_each_other_is_a_result_and_no_more() -> None:
    def answer(worker: str, probe: Probe) -> Probed:
        if {worker, probe.peers[0].worker} == {"w00", "w01"} and probe.task == "pair":
            return Probed(probe.number, [ProbedLink(probe.peers[0].worker, problem="no way leads to it")])
        return well(worker, probe)

    fleet = Fleet(survey(4), answer).run()
    for pair in (("w00", "w01"), ("w01", "w00")):
        assert (fleet.pairs[pair].bandwidth_mbps, fleet.pairs[pair].problem) == (0, "no way leads to it")
    assert sum(link.bandwidth_mbps > 0 for link in fleet.pairs.values()) == 10
    assert fleet.lines["w00", "up"].alone_mbps == 20  # the two that it reaches
    asked = [probe for worker, probe in fleet.asked if worker == "w00" and probe.peers[0].worker == "w01"]
    assert len(asked) == 2 and known_of(fleet)["w00", "w01"].state == "unreachable"


def test_one_failed_probe_costs_nobody_a_place() -> None:
    failures = 2  # both of a pair say so

    def answer(worker: str, probe: Probe) -> Probed:
        nonlocal failures
        if failures:
            failures -= 1
            return Probed(probe.number, [ProbedLink(probe.peers[0].worker, problem="no link came about")])
        return well(worker, probe)

    fleet = Fleet(survey(2), answer).run()
    assert {link.state for link in known_of(fleet).values()} == {"measured"}


def test_few_of_many_who_cannot_reach_each_other_are_asked_twice_in_one_survey() -> None:
    def answer(worker: str, probe: Probe) -> Probed:
        return Probed(probe.number, [ProbedLink(probe.peers[0].worker, problem="no way leads to it")])

    first = Fleet(survey(8), answer).run()
    states = Counter(link.state for link in known_of(first).values())
    assert states == {"unreachable": 2 * (1 + 28 // 4), "not measured": 2 * (28 - 8)}
    second = Fleet(survey(8, known=first.survey.known), answer).run()
    assert {link.state for link in known_of(second).values()} == {"unreachable"}


def test_who_begins_a_job_is_left_out_without_a_result() -> None:
    fleet = Fleet(survey(4), well)
    fleet.take(begin(fleet.survey))
    turn = leave(fleet.survey, 0.1, "w02", "it has a job")
    assert not turn.measurements
    (other,) = (worker for worker, message in turn.messages if isinstance(message, EndProbe))
    assert all("w02" not in pair.members for pair in turn.survey.pairs)
    late = next(probed for _, _, worker, probed in fleet.due if worker == other)
    assert not on_answer(turn.survey, 0.2, other, late).measurements


def test_who_says_that_it_has_a_job_is_left_out() -> None:
    def answer(worker: str, probe: Probe) -> Probed:
        return Probed(probe.number, problem="it has a job") if worker == "w01" else well(worker, probe)

    fleet = Fleet(survey(4), answer).run()
    assert fleet.survey.gone == {"w01": "it has a job"}
    assert not any("w01" in pair for pair in fleet.pairs)


def test_whom_nobody_can_dial_dials_from_then_on() -> None:
    """w00 and w01 are behind NATs: the first probe finds out, and none tries in vain after that."""

    def answer(worker: str, probe: Probe) -> Probed:
        links = []
        for peer in probe.peers:
            link = "direct"
            if peer.worker in ("w00", "w01"):
                link = "relay through broker" if worker in ("w00", "w01") else "reverse"
            rate = 10.0 if probe.task == "pair" else None
            links.append(ProbedLink(peer.worker, link if peer.dials else "", "", rate, 5.0))
        return Probed(probe.number, links, 25.0 if probe.task in ("out", "in") else None, True)

    fleet = Fleet(survey(8), answer).run()
    assert fleet.survey.behind_nat == {"w00", "w01"}
    vain = [
        (worker, peer.worker) for worker, probe in fleet.asked for peer in probe.peers
        if peer.dials and peer.worker in ("w00", "w01") and worker not in ("w00", "w01")
    ]  # fmt: skip
    assert len(vain) <= 2
    assert fleet.pairs["w00", "w01"].closed == ("w00", "w01")
    assert not any(
        {worker, peer.worker} == {"w00", "w01"} for worker, probe in fleet.asked for peer in probe.peers
        if probe.task != "pair"
    )  # fmt: skip


def test_what_was_known_before_is_enough_to_keep_a_line_busy() -> None:
    known = Measurements().updated(Fleet(survey(4, lines=False), well).run().found)
    newer = survey(4, known=known)
    fleet = Fleet(Survey(**{**vars(newer), "pairs": ()}), well).run()
    assert len(fleet.lines) == 8 and not fleet.pairs


@pytest.mark.parametrize("probed", [Probed(99), Probed(1, [ProbedLink("w03", bandwidth_mbps=1.0)])])
def test_what_nobody_asked_for_is_dropped(probed: Probed) -> None:
    turn = begin(survey(2))
    after = on_answer(turn.survey, 0.0, "stranger", probed)
    assert after.survey == turn.survey and not after.measurements and not after.messages
    after = on_answer(turn.survey, 0.0, "w00", probed)
    assert not after.measurements


@settings(max_examples=60)
@given(st.integers(2, 12), st.integers(0, 2**32), st.sampled_from([0.0, 0.1, 0.5]))
def test_any_survey_ends_whatever_its_members_do(count: int, seed: int, fault: float) -> None:
    chance = random.Random(seed)

    def answer(worker: str, probe: Probe) -> Probed | None:
        if chance.random() >= fault:
            return well(worker, probe)
        kinds = [
            None,
            Probed(probe.number, problem="it has a job"),
            Probed(probe.number),
            Probed(probe.number, [ProbedLink(peer.worker, problem="no way") for peer in probe.peers]),
            Probed(probe.number, [ProbedLink("nobody", "direct", "", 7.0, 1.0)], 1.0, True),
        ]
        return chance.choice(kinds)

    fleet = Fleet(survey(count), answer, lambda probe: chance.random() * 3).run()
    assert not fleet.survey.running
    assert all({*pair} <= set(names(count)) for pair in fleet.pairs)
    asked = Counter((worker, probe.peers[0].worker) for worker, probe in fleet.asked if probe.task == "pair")
    assert all(times <= (2 if fault else 1) for times in asked.values())
    if not fault:
        assert len(fleet.pairs) == count * (count - 1)
