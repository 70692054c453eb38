"""A worker's decisions, event by event."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.worker.loads import load

from farflung.plans import LinkCodec
from farflung.protocol.membership import Leaving, Released
from farflung.protocol.messages import (
    Begin,
    Broken,
    Continue,
    Decide,
    Loaded,
    Refused,
    Registered,
    SendState,
    Stop,
    UnitReady,
)
from farflung.protocol.registration import Standing
from farflung.protocol.traffic import LinkBytes, LinkRate
from farflung.protocol.worker import Share
from farflung.runtime.parcel import Sent
from farflung.worker import events
from farflung.worker import state as machine
from farflung.worker.events import (
    Apply,
    BrokerBack,
    BrokerLost,
    ComputeFailed,
    CopyState,
    Drop,
    EndTraining,
    Exit,
    Filled,
    FromBroker,
    GiveState,
    HangUp,
    Leave,
    LeftBehind,
    Note,
    Orphaned,
    PeerLinked,
    PeerLost,
    Prepare,
    Regroup,
    Start,
    Tell,
    Traffic,
    UnitFinished,
    Verified,
)
from farflung.worker.records import State

JOB, ATTEMPT = "job-1", 5
KEY = (JOB, ATTEMPT)
LINKED = (PeerLinked("a"), PeerLinked("c"), PeerLinked("desk"))
READY = (FromBroker(load()), Verified(KEY, None), *LINKED, Filled(KEY))
SHARES = (Share(1, True, 0.5, {7: 2.0}),)


def run(*events: events.Event) -> tuple[State, list[events.Command]]:
    """The state of worker b after the events, and what it did, remarks left out."""
    state, done = State("b"), []
    for event in events:
        state, commands = machine.step(state, event)
        done += [command for command in commands if not isinstance(command, Note)]
    return state, done


def test_a_load_is_prepared_and_only_greater_ids_are_dialled() -> None:
    state, done = run(FromBroker(load()))
    assert (state.phase, done) == ("loading", [Prepare(load(), dial=("c",))])


def test_loaded_is_sent_once_when_loading_is_complete() -> None:
    assert run(*READY[:-1])[1] == [Prepare(load(), ("c",))]
    told = [c for c in run(*READY, PeerLinked("c"))[1] if isinstance(c, Tell)]
    assert told == [Tell(Loaded(JOB, ATTEMPT))]


def test_a_unit_runs_from_begin_to_decide() -> None:
    begin, decide = FromBroker(Begin(JOB, ATTEMPT)), FromBroker(Decide(JOB, ATTEMPT, 0, 0.5))
    state, done = run(*READY, begin, UnitFinished(KEY, 0, SHARES), decide)
    assert done[-3:] == [Start(), Tell(UnitReady(JOB, ATTEMPT, 0, list(SHARES), 0)), Apply(0, 0.5)]
    assert (state.phase, state.unit) == ("running", 1)
    finished = UnitFinished(KEY, 0, SHARES)
    assert run(*READY, begin, finished, decide, decide)[1].count(Apply(0, 0.5)) == 1
    assert Apply(0, 0.5) not in run(*READY, begin, decide)[1]


def go_on(attempt: int = 6, unit: int = 1) -> FromBroker:
    return FromBroker(Continue(JOB, attempt, unit, {"a": ["a.example:1"], "c": ["c.example:1"]}, "cut"))


ONE_UNIT = (
    *READY,
    FromBroker(Begin(JOB, ATTEMPT)),
    UnitFinished(KEY, 0, SHARES),
    FromBroker(Decide(JOB, ATTEMPT, 0, 0.5)),
)
LINKED_AGAIN = (*LINKED, Filled((JOB, 6)))


@pytest.mark.parametrize("lost", [[], [PeerLost("a", "cut")]])
def test_a_worker_keeps_its_state_in_another_attempt(lost: list[events.Event]) -> None:
    state, done = run(*ONE_UNIT, *lost, go_on())
    new = msgspec.structs.replace(
        load(), attempt=6, unit=1, addresses={"a": ["a.example:1"], "c": ["c.example:1"]}
    )
    assert done[-1] == Regroup(new, ("c",))
    assert (state.phase, state.unit, state.ready, state.linked) == ("loading", 1, None, frozenset())
    state, done = run(*ONE_UNIT, *lost, go_on(), *LINKED_AGAIN, FromBroker(Begin(JOB, 6)))
    assert done[-2:] == [Tell(Loaded(JOB, 6)), Start()] and state.phase == "running"
    assert run(*ONE_UNIT, *lost, go_on(), go_on(), go_on(5))[1].count(Regroup(new, ("c",))) == 1


def test_a_worker_that_links_up_again_may_be_asked_for_its_state() -> None:
    state, done = run(*ONE_UNIT, go_on(), *LINKED_AGAIN, FromBroker(SendState(JOB, 6)))
    assert done[-2:] == [EndTraining(), GiveState()] and state.phase == "collecting"
    assert GiveState() not in run(*ONE_UNIT, go_on(), FromBroker(SendState(JOB, 6)))[1]


def test_a_worker_without_the_state_refuses_and_is_idle() -> None:
    problem = "it does not hold the state with which unit 2 begins"
    state, done = run(*ONE_UNIT, go_on(unit=2))
    assert state == State("b") and done[-2:] == [Tell(Refused(JOB, 6, problem)), Drop(problem)]
    assert run(go_on(unit=2))[1] == [Tell(Refused(JOB, 6, problem))]


def test_a_worker_whose_segment_failed_says_so_in_the_next_attempt_too() -> None:
    _, done = run(*ONE_UNIT, ComputeFailed(KEY, "out of memory", "w-9"), go_on())
    assert done[-1] == Tell(Broken(JOB, 6, "out of memory", sender="w-9"))


def test_a_report_is_sent_again_until_its_unit_is_decided() -> None:
    traffic = Traffic(28, {"c": 20}, (LinkRate("a", 1e6),))
    finished = UnitFinished(KEY, 0, SHARES, (Sent("c", 400, 100),), 0.5, traffic)
    ready = UnitReady(
        JOB, ATTEMPT, 0, list(SHARES), 28, [LinkBytes("c", 400, 20, 0, 100)], [LinkRate("a", 1e6)], 0.5
    )
    running = (*READY, FromBroker(Begin(JOB, ATTEMPT)))
    assert run(*running, BrokerBack())[1][-1] == Start()
    state, done = run(*running, finished, BrokerBack(), BrokerBack())
    assert done[-3:] == [Tell(ready)] * 3 and state.ready == ready
    decided = (*running, finished, FromBroker(Decide(JOB, ATTEMPT, 0, 0.5)))
    assert run(*decided, BrokerBack()) == run(*decided)
    broken = (*running, finished, PeerLost("a", "reset"))
    assert run(*broken, BrokerBack()) == run(*broken)


def test_a_run_begins_at_the_units_that_it_is_given() -> None:
    late = msgspec.structs.replace(load(), unit=3)
    begun = (FromBroker(late), *READY[1:], FromBroker(Begin(JOB, ATTEMPT)))
    state, done = run(*begun, UnitFinished(KEY, 0, SHARES), FromBroker(Decide(JOB, ATTEMPT, 0, 0.5)))
    assert (state.unit, done[-1]) == (3, Start())
    state, done = run(*begun, UnitFinished(KEY, 3, SHARES), FromBroker(Decide(JOB, ATTEMPT, 3, 0.5)))
    assert done[-2:] == [Tell(UnitReady(JOB, ATTEMPT, 3, list(SHARES), 0)), Apply(3, 0.5)]
    assert state.unit == 4


def test_traffic_is_reported_and_values_that_are_not_finite_are_noted_once() -> None:
    state = State("b")
    for event in (*READY, FromBroker(Begin(JOB, ATTEMPT))):
        state, _ = machine.step(state, event)
    notes = []
    for unit in (0, 1):
        sent = (Sent("c", 400, 100, not_finite=2),)
        state, commands = machine.step(state, UnitFinished(KEY, unit, SHARES, sent))
        links = [LinkBytes("c", 400, 0, 2, 100)]
        assert commands[0] == Tell(UnitReady(JOB, ATTEMPT, unit, list(SHARES), 0, links))
        notes += [command.text for command in commands if isinstance(command, Note)]
        state, _ = machine.step(state, FromBroker(Decide(JOB, ATTEMPT, unit, 1.0)))
    assert len(notes) == 1 and "values for c are not finite" in notes[0]


def test_a_decision_may_change_the_codecs_of_links() -> None:
    codecs = (LinkCodec("b", "c", "int8", 4.0),)
    begin, decide = FromBroker(Begin(JOB, ATTEMPT)), FromBroker(Decide(JOB, ATTEMPT, 0, 1.0, codecs))
    assert run(*READY, begin, UnitFinished(KEY, 0, SHARES), decide)[1][-1] == Apply(0, 1.0, codecs)


def test_a_copy_is_of_the_state_that_a_unit_has_just_left() -> None:
    keep = FromBroker(Decide(JOB, ATTEMPT, 0, 0.5, keep=True))
    decided = (*READY, FromBroker(Begin(JOB, ATTEMPT)), UnitFinished(KEY, 0, SHARES), keep)
    state, done = run(*decided)
    assert done[-2:] == [Apply(0, 0.5), CopyState(0, keep=True)]
    assert (state.phase, state.unit) == ("running", 1)
    assert run(*decided, keep) == (state, done)
    assert run(*decided, UnitFinished(KEY, 1, SHARES), FromBroker(Decide(JOB, ATTEMPT, 1, 1.0)))[1][-1] == (
        Apply(1, 1.0)
    )


@pytest.mark.parametrize("whole", [True, False])
def test_the_state_at_the_end_is_as_whole_as_the_broker_asks_for(whole: bool) -> None:
    asked = FromBroker(SendState(JOB, ATTEMPT, whole))
    assert run(*READY, FromBroker(Begin(JOB, ATTEMPT)), asked)[1][-1] == GiveState(whole)


def test_a_worker_that_lost_a_link_applies_the_step_that_was_decided() -> None:
    finished = (*READY, FromBroker(Begin(JOB, ATTEMPT)), UnitFinished(KEY, 0, SHARES))
    state, done = run(*finished, PeerLost("a", "reset"), FromBroker(Decide(JOB, ATTEMPT, 0, 0.5, keep=True)))
    assert (state.phase, state.unit, done[-2:]) == ("broken", 1, [Apply(0, 0.5), CopyState(0, keep=True)])


def test_a_refusal_frees_the_worker() -> None:
    state, done = run(FromBroker(load()), Verified(KEY, "op aten.evil is not in the opset"))
    assert state == State("b")
    assert done[-2:] == [
        Tell(Refused(JOB, ATTEMPT, "op aten.evil is not in the opset")),
        Drop("op aten.evil is not in the opset"),
    ]


def test_a_refusal_says_that_copies_lack_a_part_of_the_state() -> None:
    _, done = run(FromBroker(load()), Verified(KEY, "the copies lack 'bias'", lacks=True))
    assert Tell(Refused(JOB, ATTEMPT, "the copies lack 'bias'", lacks=True)) in done


def test_a_lost_link_breaks_the_attempt_once() -> None:
    lost = PeerLost("a", "connection reset")
    state, done = run(*READY, FromBroker(Begin(JOB, ATTEMPT)), lost, PeerLost("c", "too"))
    assert state.phase == "broken"
    reason = "lost the link to worker a: connection reset"
    assert [c for c in done if isinstance(c, Tell)][1:] == [Tell(Broken(JOB, ATTEMPT, reason, "a"))]
    assert run(*READY, FromBroker(Begin(JOB, ATTEMPT)), lost, FromBroker(Stop(JOB, ATTEMPT, "over")))[0] == (
        State("b")
    )


def test_neighbours_may_leave_while_the_state_is_sent_home() -> None:
    giving = (*READY, FromBroker(Begin(JOB, ATTEMPT)), FromBroker(SendState(JOB, ATTEMPT)))
    state, done = run(*giving, PeerLost("a", "closed"))
    assert (state.phase, done[-2:]) == ("collecting", [EndTraining(), GiveState()])
    assert run(*giving, PeerLost("desk", "closed"))[0].phase == "collecting"


def test_a_worker_that_runs_waits_for_a_submitter_whose_link_is_lost() -> None:
    lost = PeerLost("desk", "connection reset")
    state, done = run(*READY, FromBroker(Begin(JOB, ATTEMPT)), lost, UnitFinished(KEY, 0, SHARES))
    assert state.phase == "running" and isinstance(done[-1], Tell) and isinstance(done[-1].message, UnitReady)
    state, done = run(*READY[:2], lost)
    reason = "lost the link to the submitter: connection reset"
    assert state.phase == "broken" and done[-1] == Tell(Broken(JOB, ATTEMPT, reason, "desk"))


def test_a_worker_that_loses_its_broker_keeps_the_job_and_says_what_it_holds() -> None:
    state, done = run(*READY)
    assert state.standing == Standing(JOB, ATTEMPT, 0, "loaded")
    state, done = run(*READY, FromBroker(Begin(JOB, ATTEMPT)), BrokerLost("connection reset"))
    assert done[-1] == Start()
    assert state.standing == Standing(JOB, ATTEMPT, 0, "running")
    state, done = machine.step(state, UnitFinished((JOB, ATTEMPT), 0, SHARES))
    assert not done and state.ready is not None
    state, done = machine.step(state, FromBroker(Registered("b", 5, b"seal")))
    assert done[-1] == Tell(state.ready) and (state.generation, state.seal) == (5, b"seal")
    state, done = machine.step(state, FromBroker(Decide(JOB, ATTEMPT, 0, 1.0)))
    assert state.standing == Standing(JOB, ATTEMPT, 1, "running")
    assert not machine.step(state, FromBroker(Decide(JOB, ATTEMPT, 0, 1.0)))[1]


def test_what_a_worker_cannot_say_without_a_broker_it_says_when_it_is_back() -> None:
    loading, _ = run(*READY[:-1], BrokerLost("gone"))
    state, done = machine.step(loading, READY[-1])
    assert not done and state.standing == Standing(JOB, ATTEMPT, 0, "loaded")
    assert machine.step(state, FromBroker(Registered("b")))[1][-1] == Tell(Loaded(JOB, ATTEMPT))
    running, _ = run(*READY, FromBroker(Begin(JOB, ATTEMPT)), BrokerLost("gone"))
    state, done = machine.step(running, ComputeFailed((JOB, ATTEMPT), "out of memory"))
    assert all(isinstance(command, Note) for command in done) and state.phase == "broken"
    _, done = machine.step(state, FromBroker(Registered("b")))
    assert done[-1] == Tell(Broken(JOB, ATTEMPT, "out of memory"))


def test_a_worker_lets_go_of_a_job_if_no_broker_comes_or_one_stops_it() -> None:
    away, _ = run(*READY, FromBroker(Begin(JOB, ATTEMPT)), BrokerLost("gone"))
    state, done = machine.step(away, Orphaned(600.0))
    assert state.load is None and done[0] == Drop("the broker has been away for 600 s")
    back, _ = machine.step(away, FromBroker(Registered("b")))
    assert machine.step(back, Orphaned(600.0)) == (back, [])
    state, done = machine.step(away, FromBroker(Stop(JOB, ATTEMPT + 1, "this broker has no such job")))
    assert state.load is None and isinstance(done[0], Drop)


def test_a_worker_refuses_a_broker_of_an_earlier_generation() -> None:
    state, _ = run(FromBroker(Registered("b", 5, b"seal")), BrokerLost("gone"))
    after, (command,) = machine.step(state, FromBroker(Registered("b", 4, b"other")))
    assert after == state and isinstance(command, HangUp)
    assert "generation 4, but one of generation 5 has taken over the fleet" in command.reason


def test_events_of_another_attempt_change_nothing() -> None:
    running, _ = run(*READY, FromBroker(Begin(JOB, ATTEMPT)))
    for event in (
        FromBroker(Decide(JOB, 4, 0, 1.0)),
        FromBroker(Stop(JOB, 4, "old")),
        FromBroker(Stop("job-2", ATTEMPT, "other")),
        UnitFinished((JOB, 4), 0, SHARES),
        ComputeFailed((JOB, 4), "old"),
        Verified((JOB, 4), "old"),
        ComputeFailed(("job-0", ATTEMPT), "a job that is over, whose attempts count from 1 as well"),
    ):
        assert machine.step(running, event) == (running, [])


EVENTS = st.sampled_from(
    [
        *READY,
        FromBroker(load(6)),
        FromBroker(Begin(JOB, ATTEMPT)),
        FromBroker(Decide(JOB, ATTEMPT, 0, 1.0, keep=True)),
        FromBroker(Decide(JOB, ATTEMPT, 1, 1.0)),
        FromBroker(SendState(JOB, ATTEMPT, whole=True)),
        FromBroker(Stop(JOB, ATTEMPT, "over")),
        UnitFinished(KEY, 0, SHARES),
        UnitFinished(KEY, 1, SHARES),
        PeerLost("a", "reset"),
        PeerLost("desk", "reset"),
        ComputeFailed(KEY, "boom"),
        BrokerLost("gone"),
        BrokerBack(),
        Verified(KEY, "bad"),
    ]
)


BEGUN = [*READY, FromBroker(Begin(JOB, ATTEMPT)), UnitFinished(KEY, 0, SHARES)]


@settings(max_examples=200)
@example([*BEGUN, PeerLost("a", "reset"), FromBroker(Decide(JOB, ATTEMPT, 0, 1.0))])
@example([*BEGUN, FromBroker(SendState(JOB, ATTEMPT)), FromBroker(Decide(JOB, ATTEMPT, 0, 1.0))])
@given(st.lists(EVENTS, max_size=40))
def test_invariants_hold_after_any_events(events: list[events.Event]) -> None:
    """Reported units are applied, in order and once; a dropped job leaves an idle worker."""
    state = State("b")
    applied = -1
    for event in events:
        before = state
        state, commands = machine.step(state, event)
        for command in commands:
            if isinstance(command, Prepare):
                applied = -1
            elif isinstance(command, Apply):
                assert before.ready is not None and before.ready.unit == command.unit == applied + 1
                assert before.phase in ("running", "broken", "collecting")  # a decided step is finished
                applied = command.unit
            elif isinstance(command, CopyState):
                assert applied == command.unit and Apply(command.unit, 1.0) in commands
            elif isinstance(command, Drop):
                assert state.load is None or state.phase == "loading"
            elif isinstance(command, Start | EndTraining | GiveState):
                assert before.phase in ("loading", "running")
        assert (state.load is None) == (state.phase == "idle")


def test_a_worker_asks_to_leave_and_ends_once_it_is_released() -> None:
    _, done = run(Leave(600), Leave(600), FromBroker(Released("it left in good order")))
    assert done == [Tell(Leaving(600)), Exit("it left in good order")]


def test_a_worker_without_a_broker_leaves_at_once_unless_it_has_a_share() -> None:
    late = Released("it left with its share of job-1", in_order=False)
    assert run(Leave(600), FromBroker(late))[1][-1] == Exit("it left with its share of job-1", False)
    assert run(BrokerLost("gone"), Leave(600))[1] == [Exit("it held no share of a job")]
    assert run(Leave(600), BrokerLost("gone"))[1] == [Tell(Leaving(600)), Exit("it held no share of a job")]
    assert run(*ONE_UNIT, BrokerLost("gone"), Leave(600), Orphaned(600))[1][-1] == Exit(
        "it held no share of a job"
    )
    state, done = run(*ONE_UNIT, BrokerLost("gone"), Leave(600))
    assert state.leaving and not isinstance(done[-1], Exit)
    _, (note,) = machine.step(run(*ONE_UNIT, BrokerLost("gone"))[0], Leave(600))
    assert isinstance(note, Note) and note.text == (
        f"leaving: its share of {JOB} goes to another worker, within 10 minutes, once the broker is back; "
        "a second signal ends it at once"
    )
    assert isinstance(machine.step(state, LeftBehind())[1][0], Exit)
