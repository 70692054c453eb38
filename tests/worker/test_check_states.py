"""A worker that checks another one's share, and the members that serve it, event by event."""

from __future__ import annotations

import msgspec
import pytest
from tests.worker.loads import load
from tests.worker.test_state import KEY, READY, run

from farflung.protocol.messages import Begin, CheckBegun, Checked, Registered, ServeCheck, Standbys, Stop
from farflung.protocol.worker import PastUnit
from farflung.worker import state as machine
from farflung.worker.events import (
    AssistCheck,
    ChangeStandbys,
    CheckEnded,
    Drop,
    EndCheck,
    FromBroker,
    Note,
    PeerLinked,
    PeerLost,
    Prepare,
    Tell,
    Verified,
)
from farflung.worker.records import State

CHECK = msgspec.structs.replace(load(), history=[PastUnit(1.0)] * 2, replayers=["b"], check=7)
CHECK_KEY = (*KEY, 7)
SERVE = ServeCheck(*KEY, 1, "z", "c", ["z.example:1"], 3, 5)


def trouble(why: str) -> Tell:
    return Tell(Checked(*CHECK_KEY, 1, trouble=why))


def test_a_checker_dials_nobody_and_says_that_it_can_be_dialled() -> None:
    state, done = run(FromBroker(CHECK))
    assert done == [Prepare(CHECK, ()), Tell(CheckBegun(*CHECK_KEY, 1))]
    assert state.admitted == {"a", "c", "desk"} and state.standing is None


def test_a_checker_says_what_it_found_and_drops_all() -> None:
    found = Checked(*CHECK_KEY, 1, sha256=b"found")
    state, done = run(FromBroker(CHECK), Verified(CHECK_KEY, None), CheckEnded(CHECK_KEY, found))
    assert done[2:] == [Tell(found), Drop("the check is over")] and state.phase == "idle"


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("", f"job {KEY[0]}: ran a share of another worker again to check it; idle"),
        ("too large", f"job {KEY[0]}: a share of another worker could not be checked here: too large; idle"),
    ],
)
def test_a_checker_says_one_line_of_each_check(trouble: str, words: str) -> None:
    state, commands = machine.step(State("b"), FromBroker(CHECK))
    notes = [*commands]
    end = CheckEnded(CHECK_KEY, Checked(*CHECK_KEY, 1, trouble=trouble))
    for event in (Verified(CHECK_KEY, None), end):
        state, commands = machine.step(state, event)
        notes += commands
    assert [one.text for one in notes if isinstance(one, Note)] == [words]


def test_a_checker_that_is_refused_its_program_says_so_and_no_job_fails() -> None:
    state, done = run(FromBroker(CHECK), Verified(CHECK_KEY, "too large"))
    assert done[2] == trouble("too large") and state.load is None


def test_a_checker_names_the_copy_with_which_it_cannot_begin() -> None:
    lacking = Verified(CHECK_KEY, "it lacks a part", lacks=True, begun=b"copy")
    state, done = run(FromBroker(CHECK), lacking)
    found = Checked(*CHECK_KEY, 1, begun=b"copy", trouble="it lacks a part", unfit=True)
    assert done[2] == Tell(found) and state.phase == "idle"


def test_a_checker_waits_once_for_another_link() -> None:
    linked = (FromBroker(CHECK), PeerLinked("a"), PeerLost("a", "closed"))
    assert run(*linked)[0].phase == "loading"
    assert run(*linked, PeerLinked("a"))[0].phase == "loading"
    state, done = run(*linked, PeerLost("a", "it did not come"))
    assert done[2] == trouble("lost the link to worker a: it did not come") and state.phase == "idle"


def test_what_a_worker_found_in_an_earlier_check_of_the_attempt_counts_for_nothing() -> None:
    again = msgspec.structs.replace(CHECK, check=8)
    both = (FromBroker(CHECK), FromBroker(Stop(*KEY, "over")), FromBroker(again))
    late = Checked(*CHECK_KEY, 1, sha256=b"found")
    state, done = run(*both, Verified(CHECK_KEY, "too large"), CheckEnded(CHECK_KEY, late))
    assert state.phase == "loading" and not state.verified
    assert done[-1] == Tell(CheckBegun(*KEY, 8, 1))


def test_a_checker_is_stopped_and_a_broker_that_is_back_knows_nothing_of_it() -> None:
    assert run(FromBroker(CHECK), FromBroker(Stop(*KEY, "over")))[0].phase == "idle"
    assert run(FromBroker(CHECK), FromBroker(Registered("b", 0)))[0].phase == "idle"


def test_a_member_admits_a_checker_while_the_check_lasts() -> None:
    begun = (*READY, FromBroker(Begin(*KEY)))
    state, done = run(*begun, FromBroker(SERVE))
    assert done[-1] == AssistCheck(SERVE) and "z" in state.admitted and "z" not in state.needed
    state, done = run(*begun, FromBroker(SERVE), FromBroker(ServeCheck(*KEY, 1)))
    assert done[-1] == EndCheck("z") and "z" not in state.admitted
    assert run(*begun, FromBroker(SERVE), PeerLost("z", "closed"))[0].phase == "running"


def test_a_checker_that_stands_by_after_its_check_is_dialled_anew() -> None:
    """The link of the check was taken for one, so no copy could be sent there for a minute."""
    serving = (*READY, FromBroker(Begin(*KEY)), FromBroker(SERVE), PeerLinked("z"))
    standing_by = FromBroker(Standbys(*KEY, {"b": "z"}, {"z": ["z.example:1"]}))
    _, done = run(*serving, FromBroker(ServeCheck(*KEY, 1)), standing_by)
    assert done[-2:] == [EndCheck("z"), ChangeStandbys({"b": "z"}, {"z": ["z.example:1"]}, ("z",))]


def test_a_standby_that_checks_is_linked_once_the_check_has_its_own_link() -> None:
    standing_by = FromBroker(Standbys(*KEY, {"b": "z"}, {"z": ["z.example:1"]}))
    state, _ = run(*READY, FromBroker(Begin(*KEY)), standing_by, PeerLinked("z"), FromBroker(SERVE))
    assert "z" not in state.linked


def test_a_member_serves_no_check_of_another_attempt() -> None:
    other = msgspec.structs.replace(SERVE, attempt=4)
    state, done = run(*READY, FromBroker(other))
    assert state.check is None and not any(isinstance(one, AssistCheck) for one in done)
