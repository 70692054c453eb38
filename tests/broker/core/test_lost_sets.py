"""Several shares are lost: those without state run past units again, and all others keep theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.broker.core.test_protection import job_of, spread
from tests.broker.core.test_replaying import KERNELS, load_all, rollbacks
from tests.broker.scenario import Scenario, told

from farflung.broker.core import events, facts
from farflung.broker.core.events import Send, SendLoad
from farflung.broker.core.recovering import replaying
from farflung.broker.core.recovering.recovery import MOST_REPLAYED
from farflung.broker.core.state import durable, replay
from farflung.plans import Plan
from farflung.protocol.messages import Broken, Continue, Load, Planned, Stop
from farflung.protocol.registration import Standing

MEMBERS = "abcdef"


def place(idle: str = "xyz", **changes: object) -> Scenario:
    """Workers a to f run job-1 in a ring; version 0 is stable, and four units are decided."""
    story = Scenario()
    for worker in MEMBERS:
        story.join(worker, device=KERNELS, disk_bytes=10**9)
    story.logged_from = 0
    story.running(len(MEMBERS), **{"steps": 20, **changes})
    story.all_ready(0)
    spread(story, 0)
    for worker in idle:  # they stand by, and get no copy before the next version
        story.join(worker, device=KERNELS, disk_bytes=10**9)
    for unit in range(1, 4):
        story.all_ready(unit)
    return story


def since(story: Scenario, first: int) -> tuple[dict[str, Load], dict[str, Continue], dict[str, Stop]]:
    """What each worker was sent by the commands from number `first` on."""
    loads, others, stops = {}, {}, {}
    for one in story.commands[first:]:
        if isinstance(one, SendLoad):
            loads[one.worker] = one.load
        elif isinstance(one, Send) and isinstance(one.message, Continue):
            others[one.worker] = one.message
        elif isinstance(one, Send) and isinstance(one.message, Stop):
            stops[one.worker] = one.message
    return loads, others, stops


def goes_on(story: Scenario) -> None:
    """The attempt runs to its end, and the log gives the same state."""
    load_all(story)
    assert job_of(story).state == "running" and not rollbacks(story)
    for unit in range(4, 20):
        story.all_ready(unit)
    assert job_of(story).state == "collecting"
    log = [facts.encode(fact) for fact in story.facts if isinstance(fact, facts.Decision)]
    assert replay(map(facts.decode, log)) == durable(story.state)


@pytest.mark.parametrize("pair", ["bc", "be", "fa"])
def test_two_that_are_lost_a_moment_after_one_another_are_both_replayed(pair: str) -> None:
    story = place()
    story.leave(pair[0])
    first = len(story.commands)
    story.leave(pair[1])
    job = job_of(story)
    assert (job.state, job.attempt, set(job.replayers)) == ("loading", 3, {"x", "y"})
    loads, others, stops = since(story, first)
    assert loads.keys() == {"x", "y"} and others.keys() == set(MEMBERS) - set(pair)
    assert stops.keys() == {"x"} and stops["x"].attempt == 2  # it begins again
    for load in loads.values():
        assert (load.unit, len(load.history), set(load.replayers)) == (1, 3, {"x", "y"})
        assert load.version == job.versions.stable.name if job.versions.stable else False
    for message in others.values():
        assert (message.unit, set(message.replayers), message.replay_from) == (4, {"x", "y"}, 1)
    planned = [message for message in told(story.commands) if isinstance(message, Planned)][-1]
    assert (planned.keeps, planned.unit, set(planned.replayers)) == (True, 4, {"x", "y"})
    goes_on(story)


def test_one_that_has_replayed_its_share_keeps_it_when_another_is_lost_before_all_have_loaded() -> None:
    story = place()
    story.leave("b")
    story.loaded("x", attempt=2)
    first = len(story.commands)
    story.leave("c")
    loads, others, _ = since(story, first)
    assert set(job_of(story).replayers) == {"x", "y"} == loads.keys()  # its log is not known yet
    story = place()
    story.leave("b")
    story.loaded("x", attempt=2)
    first = len(story.commands)
    story.leave("e")  # which is no neighbour of x
    loads, others, _ = since(story, first)
    assert loads.keys() == {"y"} and others.keys() == {*"acdf", "x"}
    goes_on(story)


def test_a_taker_that_is_lost_is_replaced_by_another_one() -> None:
    story = place()
    story.leave("b")
    for taker, following in ("xy", "yz"):
        assert job_of(story).replayers == (taker,)
        story.leave(taker)
        assert job_of(story).replayers == (following,)
    goes_on(story)


def test_a_neighbour_that_has_not_kept_what_it_sent_runs_again_from_its_own_copy() -> None:
    story = place()
    story.logged_from = 3
    story.ready("c", 4)
    story.leave("b")
    loads, others, stops = since(story, 0)
    assert job_of(story).replayers == ("x", "c") and loads["c"].unit == 1 and "c" not in job_of(story).donors
    assert stops["c"].attempt == 1 and not stops["c"].over and others.keys() == set("adef")
    goes_on(story)


def logged(**units: int) -> dict[str, int]:
    return {**dict.fromkeys(MEMBERS, 0), **units}


@pytest.mark.parametrize(
    ("lost", "known", "expected"),
    [
        ("b", logged(), "b"),
        ("bc", logged(), "bc"),
        ("b", logged(a=2), "ab"),
        ("b", logged(a=2, f=2), "abf"),
        ("b", logged(d=9), "b"),  # it sent nothing to b
        ("bd", logged(c=9, e=9), "bcde"),
        ("b", {}, MEMBERS),  # a broker that was restarted does not know
    ],
)
def test_the_lost_set_grows_by_senders_that_lack_what_they_sent(
    lost: str, known: Mapping[str, int], expected: str
) -> None:
    job = replace(job_of(place()), logged=known)
    assert isinstance(job.plan, Plan)
    assert replaying.lost_set(job, job.plan, lost) == set(expected)


def test_if_everybody_would_run_them_again_the_job_goes_back() -> None:
    story = place()
    story.logged_from = None
    story.all_ready(4)
    story.leave("b")
    (back,) = rollbacks(story)
    assert back.unit == 1 and "no worker has kept what it sent" in back.reason


def test_a_link_that_is_lost_during_a_replay_makes_only_the_replayer_begin_again() -> None:
    story = place(idle="x")
    story.leave("b")
    first = len(story.commands)
    story.feed(events.WorkerMessage(story.now, "c", Broken("job-1", 2, "cut", "x")))
    loads, others, stops = since(story, first)
    assert job_of(story).attempt == 3 and loads.keys() == stops.keys() == {"x"}
    assert others.keys() == set("acdef")
    story.feed(events.WorkerMessage(story.now, "c", Broken("job-1", 3, "cut", "x")))
    assert [message.unit for message in rollbacks(story)] == [1]  # it does not try for ever


def test_takers_that_are_lost_again_and_again_make_the_job_go_back_at_last() -> None:
    story = place(idle="")
    for number in range(MOST_REPLAYED):
        story.join(f"x{number}", device=KERNELS, disk_bytes=10**9)
        story.leave(f"x{number - 1}" if number else "b")
        assert job_of(story).replayers == (f"x{number}",)
    story.join("late", device=KERNELS, disk_bytes=10**9)
    story.leave(f"x{number}")
    assert [message.unit for message in rollbacks(story)] == [1]


def test_a_replayer_that_only_lost_its_session_goes_on_where_it_is() -> None:
    story = place(idle="x")
    story.leave("b")
    first = len(story.commands)
    story.join("x", device=KERNELS, disk_bytes=10**9, standing=Standing("job-1", 2, 2, "loading"))
    assert job_of(story).attempt == 2 and since(story, first)[0] == {}
    story.join("x", device=KERNELS, disk_bytes=10**9)  # it has never heard of the attempt
    assert since(story, first)[0].keys() == {"x"}
    goes_on(story)


def test_a_taker_that_must_be_sent_its_share_gives_way_to_an_idle_worker_that_has_it() -> None:
    story = place(idle="x")
    held = story.state.workers["b"].held
    story.leave("b")
    assert (job_of(story).replayers, job_of(story).donors.keys()) == (("x",), {"x"})
    story.join("b", boot="boot-2", device=KERNELS, disk_bytes=10**9, held=held)  # it has returned, too late
    lost = Broken("job-1", 2, "lost the link to worker c: timed out", "c")
    story.feed(events.WorkerMessage(story.now, "x", lost))
    assert (job_of(story).replayers, job_of(story).attempt, dict(job_of(story).donors)) == (("b",), 3, {})
    goes_on(story)
