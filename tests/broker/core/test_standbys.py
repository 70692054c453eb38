"""Idle workers hold copies of a running job, and take over without a byte of state on the wire."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from tests.broker.core.test_protection import is_copied, job_of, spread, words
from tests.broker.core.test_replaying import KERNELS, continues, load_all, loads
from tests.broker.scenario import Scenario, digest_of, sent

from farflung.broker.core import events, facts
from farflung.broker.core.log_lines import log_line
from farflung.broker.core.protecting.late_versions import (
    BYTES_PER_SECOND,
    LATE,
    LEAST_SECONDS,
    MEMBERS_SECONDS,
)
from farflung.broker.core.protecting.protection import shares_of
from farflung.broker.core.protecting.versions import FIRST_RETRY_SECONDS
from farflung.broker.core.records import State
from farflung.broker.core.state import durable, replay
from farflung.errors import ProtocolError
from farflung.protocol.copies import Retain, StateVersion
from farflung.protocol.messages import (
    AskReverse,
    Copied,
    DialBack,
    Kept,
    Message,
    PeerMoved,
    StandBy,
    Standbys,
    Stop,
)
from farflung.protocol.reachability import AskCircuit, NotReached
from farflung.protocol.registration import Device, Standing
from farflung.runtime.monitoring import Monitor


def begun(*spare: str, **changes: object) -> Scenario:
    """Workers a, b and c run job-1, and no unit is decided; the `spare` ones have joined after that."""
    story = Scenario()
    for worker in "abc":
        join(story, worker)
    story.logged_from = 0
    story.running(3, **{"steps": 2000, **changes})
    for worker in spare:
        join(story, worker)
    return story


def place(*spare: str, **changes: object) -> Scenario:
    """Workers a, b and c run job-1, and version 0 is stable; the `spare` ones have joined after that."""
    story = begun(**changes)
    assert is_copied(story, 0)
    spread(story, 0)
    for worker in spare:
        join(story, worker)
    return story


def join(story: Scenario, worker: str, device: Device = KERNELS, disk_bytes: int = 10**9) -> None:
    story.join(worker, device=device, disk_bytes=disk_bytes)


def spread_all(story: Scenario, unit: int) -> None:
    """As `spread`, also if the members have changed."""
    plan = job_of(story).plan
    assert plan is not None
    for share, owner in shares_of(plan).items():
        story.copied(owner, unit, share)
        story.copied(job_of(story).holder_of(owner), unit, share)


def next_copied(story: Scenario, unit: int) -> int:
    """The first unit from this one on whose state is copied, of the next thousand."""
    return next(one for one in range(unit, unit + 1000) if is_copied(story, one))


def standbys(story: Scenario) -> dict[str, str]:
    return dict(job_of(story).standbys)


def test_the_members_own_holders_get_the_first_version_and_standbys_the_next_one_at_once() -> None:
    story = begun("d")
    assert not standbys(story)  # members would have to link to it first
    assert is_copied(story, 0)
    spread(story, 0)
    first = job_of(story).versions.stable
    assert first is not None and set(first.holders.values()) == set("abc")
    assert words(story) == "protected up to step 1; d stands by for a, b, c"
    assert story.now < job_of(story).versions.not_before and is_copied(story, 1)
    spread(story, 1)
    assert words(story) == "protected up to step 2; d stands by for a, b, c"
    assert not is_copied(story, 2)
    join(story, "e")  # d has copies, so the next ones have time
    assert "e" in standbys(story).values() and not is_copied(story, 3)


def test_a_version_that_a_broker_breaks_off_by_its_restart_goes_to_the_members_again() -> None:
    story = begun("d")
    assert is_copied(story, 0)
    story.restart()
    job = job_of(story)
    for worker in "abcd":
        standing = None if worker == "d" else Standing("job-1", job.attempt, 1, "running")
        story.join(worker, device=KERNELS, disk_bytes=10**9, standing=standing)
    assert not standbys(story) and is_copied(story, 1)


def test_where_no_version_can_be_made_on_members_an_idle_worker_stands_by() -> None:
    story = begun("d")
    assert is_copied(story, 0)
    story.copied("a", 0, 0, trouble="the disk is full")
    assert set(standbys(story).values()) == {"d"}


def test_a_worker_that_joins_stands_by_for_a_job_that_runs_and_the_run_goes_on() -> None:
    story = place()
    before = len(story.commands)
    join(story, "d")
    assert standbys(story) == dict.fromkeys("abc", "d")
    job, commands = job_of(story), story.commands[before:]
    assert (job.state, job.attempt) == ("running", 1) and story.state.standing_by() == {"d": "job-1"}
    (order,) = [message for message in sent(commands, "d") if isinstance(message, StandBy)]
    assert (order.plan, order.attempt, order.standbys) == (job.plan, 1, standbys(story))
    assert order.addresses == {owner: [f"{owner}.example:7000"] for owner in "abc"}
    for owner in "abc":
        assert sent(commands, owner) == [Standbys("job-1", 1, {owner: "d"}, {"d": ["d.example:7000"]})]
    assert story.state.backup_pool() == ["d"] and is_copied(story, 1)
    spread(story, 1)
    assert words(story) == "protected up to step 2; d stands by for a, b, c"
    version = job_of(story).versions.stable
    assert version is not None and version.holders == {0: "d", 1: "d", 2: "d"}
    log = [fact for fact in story.facts if isinstance(fact, facts.Decision)]
    assert replay(log) == durable(story.state)


def test_a_standby_takes_over_with_its_own_copy_and_a_new_copy_is_made() -> None:
    story = place("d", "e")
    assert is_copied(story, 1)
    spread(story, 1)
    story.all_ready(2)
    lost, by = "b", standbys(story)["b"]
    story.leave(lost)
    job = job_of(story)
    assert (job.replayers, job.donors, job.standbys) == ((by,), {}, {})
    (load,) = [one.load for one in story.commands if hasattr(one, "load") and one.worker == by]
    assert (load.version, load.donors, len(load.history)) == (StateVersion(1, 1), {}, 1)
    assert f"{by} alone has its part of step 2" in words(story)
    assert sorted(continues(story)) == sorted({"a", "b", "c"} - {lost})
    load_all(story)
    assert not standbys(story)  # first the members' own holders get copies
    assert is_copied(story, 3)
    spread_all(story, 3)
    (other,) = {"d", "e"} - {by}
    assert standbys(story) == dict.fromkeys(("a", by, "c"), other) and is_copied(story, 4)


def test_two_standbys_share_the_copies() -> None:
    story = place("d", "e")
    assert sorted(standbys(story)) == ["a", "b", "c"] and set(standbys(story).values()) == {"d", "e"}
    story = place("d", "e", "f", "g")
    assert len(set(standbys(story).values())) == 3


def test_a_standby_holds_one_share_where_several_would_take_long() -> None:
    story = place("d")
    assert is_copied(story, 1)
    story.now += 25  # for three copies
    spread(story, 1)
    assert len(standbys(story)) == 1
    owner = next(iter(standbys(story)))
    unit = next_copied(story, 2)
    story.now += 9
    spread(story, unit)
    assert standbys(story) == {owner: "d"}  # three would take 45 s
    spread(story, next_copied(story, unit + 1))  # in 6 s
    assert standbys(story) == dict.fromkeys("abc", "d")


def test_a_standby_holds_one_share_until_it_is_known_how_long_that_takes() -> None:
    story = begun("d")
    assert is_copied(story, 0)
    story.copied("a", 0, 0, trouble="the disk is full")
    assert len(standbys(story)) == 1
    spread(story, next_copied(story, 1))
    assert standbys(story) == dict.fromkeys("abc", "d")


def test_a_lost_standby_costs_the_version_under_way_and_the_members_hold_again() -> None:
    story = place("d")
    assert is_copied(story, 1)
    before = len(story.commands)
    story.leave("d")
    commands = story.commands[before:]
    assert not standbys(story) and job_of(story).state == "running" and job_of(story).attempt == 1
    for owner in "abc":
        assert Standbys("job-1", 1, {}, {}) in sent(commands, owner)
    assert job_of(story).versions.under_way is None and "d, which held a copy, was lost" in words(story)
    assert not is_copied(story, 2)
    story.now += FIRST_RETRY_SECONDS
    assert is_copied(story, 3)
    spread(story, 3)
    assert words(story) == "protected up to step 4"


def test_a_standby_that_is_lost_twice_stands_by_no_more_in_this_attempt() -> None:
    story = place("d")
    story.leave("d")
    join(story, "d")
    assert standbys(story) == dict.fromkeys("abc", "d")
    join(story, "d")  # the session before is lost
    assert not standbys(story)
    join(story, "e")
    assert standbys(story) == dict.fromkeys("abc", "e")
    spread(story, next_copied(story, 1))
    story.leave("c")
    load_all(story)
    spread_all(story, next_copied(story, job_of(story).next_unit))
    assert set(standbys(story).values()) == {"d"}


def test_a_standby_that_stays_silent_is_let_go_and_the_members_hold_again() -> None:
    story = place("d")
    assert is_copied(story, 1)
    spread(story, 1)
    took = job_of(story).versions.took
    unit = next_copied(story, 2)
    for share, owner in enumerate("abc"):
        story.copied(owner, unit, share)
    story.tick(LEAST_SECONDS - 10)
    assert standbys(story) == dict.fromkeys("abc", "d")
    story.tick(max(20.0, LATE * took))
    assert not standbys(story) and job_of(story).versions.under_way is None
    assert job_of(story).unfit_standbys.workers == {"d"}
    assert "no copies came to the disks of d within" in words(story)
    assert any("no copies came to the disks of d" in log_line(fact) for fact in story.facts)
    story.now += FIRST_RETRY_SECONDS
    unit = next_copied(story, unit + 1)
    spread(story, unit)
    assert words(story) == f"protected up to step {unit + 1}"


def test_a_standby_that_lacks_the_bases_has_the_time_that_they_need_once() -> None:
    story = begun()
    story.base_bytes = 6 * 10**7
    assert is_copied(story, 0)
    spread(story, 0)
    join(story, "d")
    assert standbys(story) == dict.fromkeys("abc", "d")
    unit = next_copied(story, 1)
    for share, owner in enumerate("abc"):
        story.copied(owner, unit, share)
    began, needed = story.now, 3 * story.base_bytes / BYTES_PER_SECOND
    while story.now < began + needed:
        story.tick(100)
        unit += 1
        story.all_ready(unit)
    assert standbys(story) == dict.fromkeys("abc", "d") and job_of(story).versions.under_way is not None
    for share in range(3):
        story.copied("d", job_of(story).versions.under_way.name.unit, share)
    assert job_of(story).versions.took < 1 < needed <= job_of(story).versions.base_seconds
    unit = next_copied(story, unit + 1)
    for share, owner in enumerate("abc"):
        story.copied(owner, unit, share)
    story.tick(LEAST_SECONDS + 10)
    assert not standbys(story)  # it has the bases, and is silent


def test_a_disk_needs_room_for_two_versions_and_one_base_of_each_share() -> None:
    needed = 3 * (2 * 500 + 10**6)
    for size, found in ((needed, dict.fromkeys("abc", "d")), (needed - 1, 2)):
        story = begun()
        story.base_bytes = 10**6
        assert is_copied(story, 0)
        spread(story, 0)
        join(story, "d", disk_bytes=size)
        assert standbys(story) == found or len(standbys(story)) == found


def test_a_version_that_members_do_not_finish_is_given_up_and_their_standby_stays() -> None:
    story = place("d")
    assert is_copied(story, 1)
    for unit in range(2, 1 + int(MEMBERS_SECONDS) // 200):
        story.tick(195)
        assert job_of(story).versions.under_way is not None
        story.all_ready(unit)
    story.tick(250)
    assert job_of(story).versions.under_way is None and standbys(story) == dict.fromkeys("abc", "d")
    assert "no copies came to the disks of a, b, c within" in words(story)


def test_a_version_whose_memory_the_best_weights_wait_for_is_given_up_sooner() -> None:
    story = begun(validate_every=1, validation_microbatches=1, monitors=(Monitor(keeps=True),))
    for number in range(40):
        if job_of(story).versions.under_way is not None:
            break
        story.tick(20)
        story.all_ready(number, loss=1.0)
        if job_of(story).copies.under_way is not None:
            story.say(Kept("job-1", 1, number))
    waiting = job_of(story).unit
    assert waiting is not None and not waiting.train
    story.tick(2 * LEAST_SECONDS)  # the version is old, but nothing has waited for it
    story.all_ready(waiting.number, loss=0.01)  # the best so far
    story.tick(0)
    assert job_of(story).unit == waiting and job_of(story).versions.under_way is not None
    story.tick(LEAST_SECONDS - 5)
    assert job_of(story).unit == waiting
    story.tick(10)
    assert job_of(story).unit != waiting and job_of(story).versions.under_way is None
    assert "no copies came to the disks of a, b, c within" in words(story)


def test_a_version_is_complete_although_its_standby_was_taken_by_another_job() -> None:
    story = place("d")
    is_copied(story, 1)
    for share in range(3):
        story.copied("d", 1, share)
    for share, owner in enumerate("ab"):
        story.copied(owner, 1, share)
    story.submit(1, submitter="bob")
    assert not standbys(story)
    story.copied("c", 1, 2)
    stable = job_of(story).versions.stable
    assert stable is not None and set(stable.holders.values()) == {"d"}


def test_a_former_standby_deletes_what_counts_no_more() -> None:
    story = place("d")
    is_copied(story, 1)
    story.copied("d", 1, 0)
    before = len(story.commands)
    story.submit(1, submitter="bob")
    first = StateVersion(1, 1)
    assert sent(story.commands[before:], "d")[-1] == Retain("job-1", [], first)
    late = story.copied("d", 1, 1)  # it was on its way when the job let go of it
    assert sent(late.commands, "d") == [Retain("job-1", [], first)] and not story.state.workers["d"].held
    story.leave("c")
    late = story.feed(events.WorkerMessage(story.now, "d", Copied("job-1", 1, 1, 2, digest_of(1, 2), 500)))
    assert job_of(story).attempt > 1 or job_of(story).state == "queued"
    assert sent(late.commands, "d") == [Retain("job-1", [], first)]


def test_many_idle_workers_are_sorted_once_for_each_job(monkeypatch: pytest.MonkeyPatch) -> None:
    story = place()
    for number in range(10):
        join(story, f"s{number}", disk_bytes=0)
    calls = []
    idle_for = State.idle_for
    monkeypatch.setattr(State, "idle_for", lambda state, job: calls.append(job) or idle_for(state, job))
    join(story, "t")
    assert len(calls) <= 2


def test_a_standby_that_another_job_takes_leaves_its_copies_to_the_members() -> None:
    story = place("d")
    is_copied(story, 1)
    spread(story, 1)
    before = len(story.commands)
    story.submit(1, submitter="bob")
    assert story.state.workers["d"].job == "job-2" and not standbys(story)
    (stop,) = [message for message in sent(story.commands[before:], "d") if isinstance(message, Stop)]
    assert (stop.job, stop.attempt, stop.over) == ("job-1", 1, False)
    spread(story, next_copied(story, job_of(story).next_unit))
    story.feed(events.PlanFailed(story.now, "job-2", 1, "it does not fit"))
    assert standbys(story) == dict.fromkeys("abc", "d")


def test_no_one_gets_another_share_while_a_version_is_under_way() -> None:
    story = place("d")
    assert is_copied(story, 1)
    join(story, "e")
    assert set(standbys(story).values()) == {"d"}
    spread(story, 1)
    assert set(standbys(story).values()) == {"d", "e"}


def test_who_could_not_take_over_does_not_stand_by() -> None:
    small = msgspec.structs.replace(KERNELS, memory_bytes=2**20)
    other = msgspec.structs.replace(KERNELS, kernels="other kernels")
    story = place()
    for name, device in (("d", small), ("e", other)):
        join(story, name, device)
    join(story, "f", disk_bytes=0)
    assert not standbys(story)
    named = place(on=("a", "b", "c"))
    join(named, "d")
    assert not standbys(named)


def test_a_disk_holds_as_many_copies_as_fit() -> None:
    story = place()
    # Each share takes 500 bytes, and so does the next version of it.
    join(story, "d", disk_bytes=2000)
    assert sorted(standbys(story).values()) == ["d", "d"]


def test_a_standby_that_cannot_hold_a_copy_is_not_asked_again_in_this_attempt() -> None:
    story = place("d")
    is_copied(story, 1)
    story.copied("b", 1, 1)
    story.copied("d", 1, 1, trouble="the disk is full")
    assert not standbys(story) and job_of(story).unfit_standbys.workers == {"d"}
    story.now += FIRST_RETRY_SECONDS
    assert "d: the disk is full" in words(story) and is_copied(story, 2)


def test_an_owner_without_a_link_to_its_standby_costs_the_others_nothing() -> None:
    story = place("d")
    is_copied(story, 1)
    story.copied("b", 1, 1)
    story.copied("b", 1, 1, trouble="there is no link")
    assert standbys(story) == dict.fromkeys("ac", "d") and "b: there is no link" in words(story)
    join(story, "e")
    assert standbys(story)["b"] == "e"


def test_the_members_own_trouble_is_not_the_standbys() -> None:
    story = place("d")
    is_copied(story, 1)
    story.copied("b", 1, 1, trouble="the disk is full")
    assert standbys(story) == dict.fromkeys("abc", "d") and not is_copied(story, 2)


def test_a_standby_is_helped_to_its_links_and_heard_no_more_once_it_stands_by_no_longer() -> None:
    story = place("d")
    ask = AskReverse(1, "job-1", 1, "a", 7000)
    outcome = story.feed(events.WorkerMessage(story.now, "d", ask))
    assert [message.peer for message in sent(outcome.commands, "a") if isinstance(message, DialBack)] == ["d"]
    moved = story.feed(events.WorkerMoves(story.now, "d", story.state.workers["a"].where))
    assert [type(message) for message in sent(moved.commands, "b")] == [PeerMoved]
    story.leave("d")
    join(story, "e")
    back = msgspec.structs.replace(ask, peer="d")
    assert not story.feed(events.WorkerMessage(story.now, "a", back)).commands
    assert not story.feed(events.WorkerMessage(story.now, "d", ask)).commands


@pytest.mark.parametrize(
    "late",
    [
        AskReverse(1, "job-1", 1, "a", 7000),
        AskCircuit(1, "job-1", 1, "a", []),
        NotReached(1, "job-1", 1, "a", "refused"),
    ],
)
def test_a_standby_may_still_speak_of_a_member_that_another_one_stands_by_for_now(late: Message) -> None:
    story = place("d", "e")
    by = {**standbys(story), "a": "e", "b": "d"}
    story.take(facts.StandbysChanged("job-1", by))
    assert not story.feed(events.WorkerMessage(story.now, "d", late)).commands
    if isinstance(late, AskReverse):  # of members, the broker expects better
        with pytest.raises(ProtocolError, match="no such link"):
            story.feed(events.WorkerMessage(story.now, "b", msgspec.structs.replace(late, peer="b")))


def test_an_attempt_that_ends_lets_its_standbys_go_and_the_next_one_takes_them_again() -> None:
    story = place("d")
    is_copied(story, 1)
    spread(story, 1)
    before = len(story.commands)
    story.cancel(collect=False)
    stops = [message for message in sent(story.commands[before:], "d") if isinstance(message, Stop)]
    assert [stop.over for stop in stops] == [True] and Retain("job-1", []) in sent(story.commands, "d")
    assert not standbys(story) and loads(story) == []


def test_a_standby_that_may_get_a_part_in_the_next_plan_stands_by_no_longer() -> None:
    story = begun("d")
    assert is_copied(story, 0)
    story.copied("a", 0, 0, trouble="the disk is full")
    assert set(standbys(story).values()) == {"d"}
    before = len(story.commands)
    story.leave("c")
    assert job_of(story).state == "planning" and "d" in job_of(story).members
    (stop,) = [message for message in sent(story.commands[before:], "d") if isinstance(message, Stop)]
    assert (stop.job, stop.attempt) == ("job-1", 1)


def test_a_worker_that_begins_a_new_session_stands_by_anew() -> None:
    story = place("d")
    before = len(story.commands)
    join(story, "d")
    assert standbys(story) == dict.fromkeys("abc", "d")
    assert any(isinstance(message, StandBy) for message in sent(story.commands[before:], "d"))


def test_after_a_restart_of_the_broker_members_hear_who_stands_by() -> None:
    story = place("d")
    is_copied(story, 1)
    spread(story, 1)
    held = {name: story.state.workers[name].held for name in "abcd"}
    story.restart()
    before = len(story.commands)
    for worker in "abcd":
        standing = None if worker == "d" else Standing("job-1", 1, 2, "running")
        story.join(worker, device=KERNELS, disk_bytes=10**9, held=held[worker], standing=standing)
    assert standbys(story) == dict.fromkeys("abc", "d")
    for owner in "abc":
        assert Standbys("job-1", 1, {owner: "d"}, {"d": ["d.example:7000"]}) in sent(
            story.commands[before:], owner
        )


def test_a_standby_at_the_owners_site_holds_nothing_while_a_holder_is_elsewhere() -> None:
    story = place()
    for worker, site in (("a", "lab"), ("b", "home"), ("c", "home")):
        story.state = story.state.with_worker(replace(story.state.workers[worker], site=site))
    join(story, "d")  # in the lab
    assert story.state.workers["d"].site == "lab" and sorted(standbys(story)) == ["b", "c"]
