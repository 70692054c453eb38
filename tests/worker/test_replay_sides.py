"""What was sent is kept for a neighbour that runs past units again, while it fits, and asked for in turn."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worker.loads import MICROBATCHES, load

from farflung.errors import ProtocolError
from farflung.protocol.messages import Pull, ServeCheck
from farflung.protocol.worker import PastUnit
from farflung.runtime.parcel import Coded, Parcel
from farflung.worker.computing.replay import BoundaryLog, Replay
from farflung.worker.computing.replay_sides import ReplaySides

SIZE = 10


def parcel(unit: int, target: int = 1, size: int = SIZE) -> Parcel[Coded]:
    return Parcel(unit, 0, 0, target, 7, False, Coded(0, memoryview(bytes(size))) if size else None)


def test_what_was_sent_in_a_unit_to_some_segments_comes_in_its_order() -> None:
    log = BoundaryLog(3, 1000)
    sent = [parcel(3), parcel(4, target=2), parcel(4, size=0), parcel(4, target=5)]
    for one in sent:
        log.add(one)
    assert log.of(4, [1, 2]) == sent[1:3] and log.of(3, [1]) == sent[:1] and not log.of(5, [1])


def test_units_that_run_again_are_logged_anew() -> None:
    log = BoundaryLog(0, 1000)
    for unit in range(4):
        log.add(parcel(unit))
    log.drop_from(2)
    assert log.of(1, [1]) and not log.of(2, [1]) and log.since == 0
    log.add(parcel(2))
    assert len(log.of(2, [1])) == 1


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), max_size=40), st.integers(0, 100))
def test_a_log_never_takes_more_than_it_may_and_says_from_where_it_is_whole(
    sent: list[tuple[int, int]], most: int
) -> None:
    log, unit, kept = BoundaryLog(0, most), 0, dict[int, list[Parcel[Coded]]]()
    for step, size in sent:
        unit += step
        log.add(one := parcel(unit, size=size))
        kept.setdefault(unit, []).append(one)
        held = [one for number in range(unit + 1) for one in log.of(number, [1])]
        assert sum(len(one.payload.data) for one in held if one.payload is not None) <= most
        assert all(log.of(number, [1]) == kept.get(number, []) for number in range(log.since, unit + 1))
        assert not any(log.of(number, [1]) for number in range(log.since))


def test_units_are_asked_for_once_and_one_ahead_of_the_one_that_runs() -> None:
    replay = Replay(msgspec.structs.replace(load(), unit=0, history=[PastUnit(1.0)] * 3))
    assert (replay.current, replay.over) == (0, 3)
    assert replay.due("a") == [0, 1] and replay.due("a") == [] and replay.due("desk") == [0, 1]
    replay.advance()
    assert replay.due("a") == [2]
    replay.advance()
    assert replay.due("a") == [] and replay.due("late") == [2]


def test_nothing_is_asked_for_of_an_evaluation() -> None:
    training = msgspec.structs.replace(
        load().training, validate_every=1, validation_microbatches=MICROBATCHES
    )
    replay = Replay(msgspec.structs.replace(load(), training=training, unit=0, history=[PastUnit(1.0)] * 4))
    asked = []
    for _ in range(4):
        asked += replay.due("a")
        replay.advance()
    assert (
        asked == [unit.number for unit in training.units() if unit.train and unit.number < 4] != [0, 1, 2, 3]
    )


def test_a_checker_gets_each_unit_once_over_a_link() -> None:
    mine = load()
    pull = Pull(mine.job, mine.attempt, 0)
    sides = ReplaySides()
    sides.begin("a", mine, keeps=False)
    sides.log_sent(1000)
    sides.sends(parcel(0), "b")
    for checker in ("y", "z"):
        sides.serve_check(checker, ServeCheck(mine.job, mine.attempt, 1, checker, "b", [], 0, 1))
        assert sides.served(checker, pull) == [parcel(0)]
    with pytest.raises(ProtocolError, match="z asks for unit 0 twice"):
        sides.served("z", pull)
    sides.unlinked("z")
    assert sides.served("z", pull) == [parcel(0)]
    with pytest.raises(ProtocolError, match="y asks for unit 0 twice"):
        sides.served("y", pull)


@pytest.mark.parametrize(("noise", "home", "since"), [(0.5, [0], 3), (0.5, [1], 1), (0.0, [0], 1)])
def test_a_home_worker_does_not_give_what_it_sends_in_a_replay_with_another_noise_than_before(
    noise: float, home: list[int], since: int
) -> None:
    mine = load()
    mine = msgspec.structs.replace(
        mine,
        unit=1,
        history=[PastUnit(1.0)] * 2,
        plan=msgspec.structs.replace(mine.plan, home=home),
        training=msgspec.structs.replace(mine.training, steps=9, home_noise=noise),
    )
    sides = ReplaySides()
    sides.begin("a", mine, keeps=False)
    sides.log_sent(1000)
    for unit in range(1, 5):
        sides.sends(parcel(unit), "b")
    assert sides.logged_from == since and sides.serve(since) and not sides.serve(since - 1)
