"""A worker gives its state to a member of another pipeline that takes a lost one's place."""

from __future__ import annotations

import msgspec
import pytest
from tests.worker.loads import fresh, load

from farflung.errors import ProtocolError
from farflung.plans import FEEDER, Edge, Pipeline, Placement, Plan, Sum
from farflung.protocol.messages import Begin, Continue, Decide, Load, Loaded
from farflung.protocol.worker import Share
from farflung.transport.wire.headers import SliceHeader
from farflung.worker import events
from farflung.worker import state as machine
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.worker.events import Filled, FromBroker, GiveTo, Note, PeerLinked, PeerLost, Tell, Verified
from farflung.worker.records import State


def replicas(first: str, second: str) -> Plan:
    """Two pipelines of one segment each, on these workers."""
    placements = [Placement(0, [first], 10, 16, 1), Placement(1, [second], 10, 16, 1)]
    edges = [Edge(0, FEEDER, segment, 8, False) for segment in (0, 1)]
    sums = [Sum(7, 12, [[0, 1]], [0], 0)]
    return Plan(placements, edges, 4, 2, pipelines=[Pipeline(1, 2), Pipeline(1, 2)], sums=sums)


def loading(plan: Plan, **changes: object) -> Load:
    return msgspec.structs.replace(load(), plan=plan, **changes)  # type: ignore[arg-type]


def run(worker: str, *heard: events.Event) -> tuple[State, list[events.Command]]:
    """The state of a worker after the events, and what it did, remarks left out."""
    state, done = State(worker), list[events.Command]()
    for event in heard:
        state, commands = machine.step(state, event)
        done += [command for command in commands if not isinstance(command, Note)]
    return state, done


ONE_UNIT: tuple[events.Event, ...] = (
    FromBroker(loading(replicas("b", "x"))),
    Verified(("job-1", 5), None),
    PeerLinked("desk"),
    PeerLinked("x"),
    Filled(("job-1", 5)),
    FromBroker(Begin("job-1", 5)),
    events.UnitFinished(("job-1", 5), 0, (Share(0, True, 0.5, {7: 2.0}),)),
    FromBroker(Decide("job-1", 5, 0, 1.0)),
)
MENDED = FromBroker(
    Continue("job-1", 6, 1, {"c": ["c:1"]}, "x was lost", replicas("b", "c"), state_donors={1: 0})
)


def test_a_donor_gives_its_state_once_when_it_is_linked_and_has_dropped_the_unit_in_flight() -> None:
    given = [GiveTo("c")]
    state, done = run("b", *ONE_UNIT, MENDED, PeerLinked("c"))
    assert "c" in state.admitted and not any(isinstance(one, GiveTo) for one in done)
    filled = Filled(("job-1", 6))
    _, done = run("b", *ONE_UNIT, MENDED, PeerLinked("c"), filled, PeerLinked("c"), PeerLinked("desk"))
    assert [one for one in done if isinstance(one, GiveTo)] == given
    assert done[-1] == Tell(Loaded("job-1", 6))
    _, done = run("b", *ONE_UNIT, MENDED, filled, PeerLinked("c"))
    assert [one for one in done if isinstance(one, GiveTo)] == given


def test_a_newcomer_needs_its_donor_until_it_has_the_state() -> None:
    plan = replicas("b", "c")
    apart = msgspec.structs.replace(plan, sums=[Sum(7, 12, [[0], [1]], [0, 1], 1)])
    new = FromBroker(loading(apart, attempt=6, unit=1, state_donors={1: 0}))
    state, _ = run("c", new, Verified(("job-1", 6), None), PeerLinked("b"), PeerLinked("desk"))
    assert "b" in state.needed and state.phase == "loading"
    state, _ = machine.step(state, PeerLost("b", "cut"))
    assert state.phase == "broken"


def slice_of(segment: int, name: str, size: int, slot: str = "") -> SliceHeader:
    return SliceHeader("job-1", 6, segment, name, 0, size, size, bytes(32), slot)


def test_a_newcomer_takes_its_state_from_its_donor_alone() -> None:
    new = loading(replicas("b", "c"), attempt=6, state_donors={1: 0})
    receiver = StateReceiver(new, [1], 10**6, fresh)
    for stranger in ("desk", "x"):
        with pytest.raises(ProtocolError, match="does not expect"):
            receiver.opening(stranger, slice_of(1, "weight", 12))
    for name, size in (("weight", 12), ("bias", 4)):
        header = slice_of(1, name, size)
        assert receiver.opening("b", header) is not None
        receiver.complete(header)
    assert receiver.full


def test_a_newcomer_does_not_wait_for_coders_of_links_that_are_new() -> None:
    new = loading(replicas("b", "c"), attempt=6, state_donors={1: 0})
    coded = msgspec.structs.replace(new, unit=1, training=new.training.with_codecs(("int8",)))
    for state_donors, waits in (({}, True), ({1: 0}, False)):
        receiver = StateReceiver(msgspec.structs.replace(coded, state_donors=state_donors), [1], 10**6, fresh)
        for name, size in (("weight", 12), ("bias", 4)):
            header = slice_of(1, name, size)
            receiver.opening("b" if state_donors else "desk", header)
            receiver.complete(header)
        assert receiver.full is not waits
