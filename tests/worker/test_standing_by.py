"""An idle worker holds copies for a job in which it has no part: the decisions of its state machine."""

from __future__ import annotations

import msgspec
import pytest
from tests.worker.loads import load

from farflung.protocol.messages import Begin, Decide, Message, Registered, StandBy, Standbys, Stop
from farflung.worker import events
from farflung.worker import state as machine
from farflung.worker.events import (
    Assist,
    BrokerLost,
    ChangeStandbys,
    Drop,
    Filled,
    FromBroker,
    Orphaned,
    PeerLinked,
    PeerLost,
    Prepare,
    Verified,
)
from farflung.worker.records import State

PLAN, TRAINING = load().plan, load().training
ORDER = StandBy(
    "job-1", 5, PLAN, TRAINING, "desk", {"a": "d", "c": "d", "b": "e"}, {"a": ["a:1"], "c": ["c:1"]}
)


def after(state: State, *found: events.Event | Message) -> tuple[State, list[events.Command]]:
    """The state after events and messages of the broker, and the commands of the last of them."""
    commands: list[events.Command] = []
    for one in found:
        state, commands = machine.step(state, FromBroker(one) if isinstance(one, Message) else one)
    return state, commands


def standing_by(worker: str = "d") -> State:
    return after(State(worker), for_worker(worker))[0]


def for_worker(worker: str, **changes: object) -> StandBy:
    """The order to stand by for a and c."""
    return msgspec.structs.replace(ORDER, standbys={"a": worker, "c": worker, "b": "e"}, **changes)


def test_a_standby_admits_those_whose_copies_it_holds_and_needs_nobody() -> None:
    state, commands = after(State("b0"), for_worker("b0"))
    assert (state.phase, state.attempt) == ("standby", ("job-1", 5))
    assert (state.admitted, state.needed, state.neighbours) == ({"a", "c"}, frozenset(), frozenset())
    assert isinstance(commands[0], Assist) and commands[0].dial == ("c",)
    linked, commands = after(state, PeerLinked("a"), PeerLost("a", "gone"))
    assert not commands and linked.phase == "standby"


def test_it_drops_pairs_that_are_not_of_the_plan_or_of_others() -> None:
    stray = {"a": "d", "stranger": "d", "b": "e"}
    state, commands = after(State("d"), msgspec.structs.replace(ORDER, standbys=stray))
    assert isinstance(commands[0], Assist)
    assert state.standbys == commands[0].standbys == {"a": "d"} and state.admitted == {"a"}
    changed, commands = after(state, Standbys("job-1", 5, {**stray, "c": "d"}, {}))
    assert changed.standbys == {"a": "d", "c": "d"} and changed.admitted == {"a", "c"}
    nothing = {"stranger": "d", "b": "e"}
    assert after(state, Standbys("job-1", 5, nothing, {})) == (state, [])
    idle = State("d")
    assert after(idle, msgspec.structs.replace(ORDER, standbys=nothing)) == (idle, [])


def test_it_is_idle_for_everybody_else() -> None:
    state = standing_by()
    assert state.standing is None
    away, commands = after(state, BrokerLost("gone"))
    assert not commands and away.phase == "standby"
    back, commands = after(away, Registered("d", 1))
    assert back.phase == "idle" and isinstance(commands[0], Drop) and not commands[0].over
    gone, commands = after(away, Orphaned(60.0))
    assert gone.phase == "idle" and isinstance(commands[0], Drop)


def test_it_begins_any_job_at_once() -> None:
    state, commands = after(standing_by("b"), load())
    assert (state.phase, state.standbys) == ("loading", {})
    assert [type(command) for command in commands[:2]] == [Drop, Prepare]


@pytest.mark.parametrize("over", [True, False])
def test_it_stops_when_the_broker_says_so(over: bool) -> None:
    state, commands = after(standing_by(), Stop("job-1", 5, "another one", over))
    assert state.phase == "idle" and Drop("another one", "job-1", over) in commands
    state, commands = after(standing_by(), Stop("job-1", 4, "late"))
    assert state.phase == "standby" and not commands
    state, commands = after(standing_by(), Stop("job-2", 9, "of another job"))
    assert state.phase == "standby" and not commands


def test_another_attempt_begins_with_new_links() -> None:
    state, commands = after(standing_by(), msgspec.structs.replace(ORDER, attempt=6))
    assert state.attempt == ("job-1", 6) and [type(command) for command in commands[:2]] == [Drop, Assist]


def test_it_hears_whose_copies_it_holds_and_dials_those_that_are_new() -> None:
    state, commands = after(standing_by("a0"), Standbys("job-1", 5, {"a": "a0", "b": "a0"}, {"b": ["b:1"]}))
    assert commands == [ChangeStandbys({"a": "a0", "b": "a0"}, {"b": ["b:1"]}, ("b",))]
    assert state.admitted == {"a", "b"}
    assert after(state, Standbys("job-1", 4, {}, {})) == (state, [])


def test_a_member_hears_of_its_standby_and_goes_on() -> None:
    key = ("job-1", 5)
    linked = [PeerLinked(peer) for peer in ("a", "c", "desk")]
    state, _ = after(State("b"), load(), Verified(key, None), *linked, Filled(key), Begin("job-1", 5))
    assert state.phase == "running"
    state, commands = after(state, Standbys("job-1", 5, {"b": "d"}, {"d": ["d:1"]}))
    assert commands == [ChangeStandbys({"b": "d"}, {"d": ["d:1"]}, ("d",))]
    assert state.phase == "running" and "d" in state.admitted and "d" not in state.needed
    lost, commands = after(state, PeerLinked("d"), PeerLost("d", "killed"))
    assert not commands and lost.phase == "running"
    assert after(state, msgspec.structs.replace(ORDER, standbys={})) == (state, [])  # it has a part in a job


def test_a_standby_obeys_nothing_that_is_for_members() -> None:
    state = standing_by()
    for message in (Begin("job-1", 5), Decide("job-1", 5, 0, 1.0)):
        assert after(state, message) == (state, [])
