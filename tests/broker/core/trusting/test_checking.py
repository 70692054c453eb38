"""Idle workers run members' shares again before a version is stable: by whom and when."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from tests.broker.core.test_protection import job_of, spread
from tests.broker.core.test_replaying import KERNELS
from tests.broker.scenario import Scenario, digest_of, sent, told, training

from farflung.broker.core import events, facts
from farflung.broker.core.events import Reply, SendLoad
from farflung.broker.core.protecting.checks import drawn
from farflung.broker.core.state import durable, replay
from farflung.protocol.checks import CheckedUnit, PieceDigest
from farflung.protocol.copies import StateVersion
from farflung.protocol.messages import (
    Accepted,
    CheckBegun,
    Checked,
    CheckSaid,
    Collecting,
    Denied,
    Ended,
    FeedCheck,
    Load,
    Return,
    RolledBack,
    SendState,
    ServeCheck,
    Stop,
    Submit,
)

FALSE = b"other"


def place(idle: str = "de", **changes: object) -> Scenario:
    """Workers a, b and c run job-1, of which all is checked; all have the same kernels."""
    story = Scenario()
    for worker in f"abc{idle}":
        story.join(worker, device=KERNELS, disk_bytes=10**9)
    story.logged_from = 0
    story.running(3, **{"steps": 3, "verify": 1.0, **changes})
    return story


def after_the_next_version(idle: str = "def") -> Scenario:
    """The second version of three shares waits for the check of a's, which begins with the first one."""
    story = place(idle, steps=20)
    story.all_ready(0)
    spread(story, 0)
    for _ in range(3):
        check(story)
    unit = 1
    while job_of(story).versions.under_way is None:
        story.all_ready(unit)
        unit += 1
    spread(story, unit - 1)
    return story


def load(story: Scenario) -> Load:
    """What the checker of the moment was told to load."""
    found = [one for one in story.commands if isinstance(one, SendLoad) and one.load.checks]
    assert job_of(story).checks.running is not None
    assert found[-1].worker == job_of(story).checks.running.checker
    return found[-1].load


def found(story: Scenario, false: Mapping[int, bytes] = {}, state: bytes = b"") -> Checked:
    """What an honest checker of the moment finds; or what it says of units, or of the state after them."""
    job, given = job_of(story), load(story)
    running, version, stable = job.checks.running, job.versions.under_way, job.versions.stable
    assert running is not None and version is not None
    past = job.history.since(given.unit).units[: len(given.history)]
    segments = given.plan.segments_of(running.checker)
    units = [
        CheckedUnit(
            unit,
            {segment: false.get(unit, one.digests[segment]) for segment in segments},
            {segment: one.received.get(segment, {}) for segment in segments},
        )
        for unit, one in enumerate(past, given.unit)
    ]
    return Checked(
        "job-1",
        job.attempt,
        running.number,
        running.share,
        units,
        b"" if stable is None else stable.digests[running.share],
        state or digest_of(version.name.unit, running.share),
        [
            PieceDigest(segment, f"weight-{segment}", bytes([segment]) * 32, slot)
            for segment in segments
            for slot in ("", "momentum")
        ]
        if given.pieces
        else [],
    )


def check(story: Scenario, **otherwise: object) -> None:
    """The checker of the moment loads, is served, and says what it found."""
    running = job_of(story).checks.running
    assert running is not None
    say(story, CheckBegun("job-1", job_of(story).attempt, number(story), running.share))
    say(story, found(story, **otherwise))  # type: ignore[arg-type]


def number(story: Scenario) -> int:
    """That of the check of the moment."""
    running = job_of(story).checks.running
    assert running is not None
    return running.number


def say(story: Scenario, message: CheckBegun | Checked) -> None:
    running = job_of(story).checks.running
    assert running is not None
    story.feed(events.WorkerMessage(story.now, running.checker, message))


def said(story: Scenario) -> list[CheckSaid]:
    return [one for one in told(story.commands) if isinstance(one, CheckSaid)]


def waits(story: Scenario) -> Accepted:
    """What the submitter last heard that its job waits for."""
    return [one for one in told(story.commands) if isinstance(one, Accepted)][-1]


def is_replayable(story: Scenario) -> bool:
    log = [facts.encode(fact) for fact in story.facts if isinstance(fact, facts.Decision)]
    return replay(map(facts.decode, log)) == durable(story.state)


def test_a_version_is_stable_only_once_each_share_of_it_has_been_run_again() -> None:
    story = place()
    story.all_ready(0)
    spread(story, 0)
    for share, owner in enumerate("abc"):
        assert job_of(story).versions.stable is None
        running = job_of(story).checks.running
        assert running is not None and (running.share, running.owner) == (share, owner)
        given = load(story)
        assert (given.unit, given.version, len(given.history)) == (0, None, 1)
        assert given.history[0].digests == {} and given.plan.segments_of(running.checker)
        check(story)
    stable = job_of(story).versions.stable
    assert stable is not None and stable.name == StateVersion(1, 0)
    assert [one.agrees for one in said(story)] == [True] * 3
    assert is_replayable(story)


def test_neighbours_donor_and_submitter_are_linked_to_a_checker_once_it_has_loaded() -> None:
    story = place()
    story.all_ready(0)
    spread(story, 0)
    running = job_of(story).checks.running
    assert running is not None and running.owner == "a"
    assert not [one for one in told(story.commands) if isinstance(one, FeedCheck)]
    say(story, CheckBegun("job-1", 1, number(story), 0))
    asked = {worker: sent(story.commands, worker)[-1] for worker in "bc"}
    for message in asked.values():  # b and c are neighbours of a, which has the first and the last segment
        assert isinstance(message, ServeCheck)
        assert (message.checker, message.owner, message.first, message.over) == (running.checker, "a", 0, 1)
    feed = told(story.commands)[-1]
    assert isinstance(feed, FeedCheck) and feed.start and feed.plan is not None
    assert feed.plan.worker_of(0) == running.checker
    say(story, found(story))
    over = {worker: [m for m in sent(story.commands, worker) if isinstance(m, ServeCheck)] for worker in "bc"}
    assert all(messages[1].checker is None for messages in over.values())


def test_the_next_check_begins_with_the_copies_of_the_version_before() -> None:
    story = after_the_next_version(idle="de")
    given = load(story)
    due = given.unit + len(given.history)
    assert (given.unit, given.version, due) == (1, StateVersion(1, 0), job_of(story).next_unit)


def test_no_weights_are_handed_out_before_the_last_version_is_checked() -> None:
    story = place()
    for unit in range(3):
        story.all_ready(unit)
        if job_of(story).versions.under_way is not None:
            spread(story, unit)
        while job_of(story).checks.running is not None:
            assert job_of(story).state == "running"
            check(story)
    assert job_of(story).state == "collecting"
    stable = job_of(story).versions.stable
    assert stable is not None and stable.next_unit == 2  # to which the job goes back if a worker is lost now
    (message,) = [one for one in told(story.commands) if isinstance(one, Collecting)]
    assert {one.name for one in message.checked} == {f"weight-{segment}" for segment in range(4)}
    assert is_replayable(story)


@pytest.mark.parametrize("ends", ["cancelled", "failed"])
def test_a_job_of_which_all_is_checked_hands_out_nothing_if_it_ends_early(ends: str) -> None:
    story = place(steps=20)
    story.all_ready(0)
    if ends == "cancelled":
        story.cancel(collect=True)
    else:
        for worker in "abc":
            story.ready(worker, 1, loss=float("nan"))
    (over,) = [one for one in told(story.commands) if isinstance(one, Ended)]
    assert over.state == ends and "are kept" not in over.reason
    assert not [one for one in told(story.commands) if isinstance(one, Collecting)]
    assert not [one for worker in "abc" for one in sent(story.commands, worker) if isinstance(one, SendState)]
    assert is_replayable(story)


@pytest.mark.parametrize("ends", ["cancelled", "failed"])
def test_a_job_of_which_some_is_checked_hands_out_what_it_has(ends: str) -> None:
    story = place(steps=20, verify=0.999999)
    story.all_ready(0)
    if ends == "cancelled":
        story.cancel(collect=True)
    else:
        for worker in "abc":
            story.ready(worker, 1, loss=float("nan"))
    (message,) = [one for one in told(story.commands) if isinstance(one, Collecting)]
    assert message.state == ends and not message.checked


@pytest.mark.parametrize("verify", [1.0, 0.999999])
@pytest.mark.parametrize("collect", [True, False])
def test_who_stops_a_job_hears_what_was_drawn_and_waits_for_a_check(verify: float, collect: bool) -> None:
    story = place(steps=20, verify=verify)
    story.all_ready(0)
    spread(story, 0)
    check(story)
    story.cancel(collect=collect)
    heard = [one for one in told(story.commands) if isinstance(one, CheckSaid | Ended | Collecting)]
    *intervals, _ = heard
    found = [(one.worker, one.first, one.checker, one.agrees) for one in intervals]  # type: ignore[union-attr]
    assert found == [("a", 0, "d", True), ("b", 0, None, False), ("c", 0, None, False)]


def test_weights_that_are_checked_still_come_home_if_the_job_is_stopped_meanwhile() -> None:
    story = place(steps=1)
    story.all_ready(0)
    spread(story, 0)
    while job_of(story).checks.running is not None:
        check(story)
    story.cancel(collect=True)
    job = job_of(story)
    assert (job.state, job.ending) == ("collecting", "done")


def test_the_last_unit_waits_while_an_earlier_version_is_checked() -> None:
    story = place(steps=2)
    story.all_ready(0)
    spread(story, 0)
    story.all_ready(1)
    assert job_of(story).step == 1
    for _ in range(3):
        check(story)
    assert job_of(story).step == 2 and job_of(story).state == "running"


def test_a_version_under_check_holds_the_job_only_once_it_has_run_as_far_again() -> None:
    story = place(steps=20)
    story.all_ready(0)
    spread(story, 0)
    story.all_ready(1)
    assert job_of(story).step == 2
    story.all_ready(2)
    assert job_of(story).step == 2
    story.tick(5000.0)  # with a deadline of its own: one that checks too long is replaced
    assert job_of(story).state == "running"
    assert any("took too long" in one.words for one in said(story))


def without_log(idle: str, **changes: object) -> Scenario:
    """Worker b says that it no longer has what it sent."""
    story = place(idle, **changes)
    for worker in "ac":
        story.ready(worker, 0)
    story.logged_from = None
    story.ready("b", 0)
    story.logged_from = 0
    spread(story, 0)
    return story


def test_a_job_of_which_all_is_checked_goes_on_without_a_neighbour_that_has_no_log() -> None:
    """It failed, so one such worker could end each of these jobs."""
    story = without_log("de")
    (back,) = [one for one in told(story.commands) if isinstance(one, RolledBack)]
    assert "a's part of step 1 can't be checked (verify=1): b has no memory left" in back.reason
    assert set(job_of(story).blamed) == {"b"} and not story.state.suspicions
    assert "b" not in job_of(story).members and is_replayable(story)


def test_without_another_worker_the_job_ends_and_names_who_has_no_log() -> None:
    (end,) = [one for one in told(without_log("").commands) if isinstance(one, Ended)]
    assert end.state == "failed" and "b has no memory left for what it sent" in end.reason


def test_a_job_of_which_some_is_checked_goes_on_with_a_neighbour_that_has_no_log() -> None:
    story = without_log("de", verify=0.99)
    assert job_of(story).members and not job_of(story).blamed
    assert any("is not checked, because b has no memory left" in one.words for one in said(story))


def test_a_job_that_checks_all_says_at_once_that_it_needs_a_worker_and_waits_for_it() -> None:
    story = place(idle="", steps=20)
    assert "needs an idle worker with the kernels of a, b, c" in said(story)[0].words
    story.all_ready(0)
    spread(story, 0)
    what = "waiting for an idle worker to check a's part of step 1"
    none = f"{what}: no idle worker is there; start another worker with `farflung join`"
    assert waits(story) == Accepted("job-1", f"{none}, or start again with --workers 2", lacking=True)
    assert said(story)[0].lacking
    story.all_ready(1)
    story.all_ready(2)
    assert job_of(story).step == 2
    story.join("x", device=msgspec.structs.replace(KERNELS, kernels="others"), disk_bytes=10**9)
    like = "no idle worker has the same kernels as a; start another worker like it with `farflung join`"
    assert job_of(story).words == f"{what}: {like}, or start again with --workers 2"
    story.join("d", device=KERNELS, disk_bytes=10**9)
    assert waits(story) == Accepted("job-1", "running") and job_of(story).words == ""
    for _ in range(3):
        check(story)
    assert job_of(story).step == 3


def test_how_long_steps_wait_for_their_checks_is_measured() -> None:
    story = after_the_next_version()
    assert job_of(story).replanning.undecided[-1] == 0.0
    unit = job_of(story).next_unit
    while story.all_ready(unit) is None and job_of(story).next_unit > unit:  # as far as it may run ahead
        unit += 1
    story.tick(5.0)
    for _ in range(3):
        check(story)
    assert job_of(story).next_unit == unit + 1 and job_of(story).replanning.undecided[-1] > 5.0


def test_a_job_that_has_been_checked_so_far_is_not_to_start_again() -> None:
    story = after_the_next_version("d")
    story.leave("d")
    while job_of(story).versions.under_way is None:
        story.all_ready(job_of(story).next_unit)
    spread(story, job_of(story).next_unit - 1)
    words = job_of(story).words
    assert words.endswith(": no idle worker is there; start another worker with `farflung join`")


def test_a_submitter_that_returns_hears_that_its_job_waits_for_a_checker() -> None:
    story = place(idle="", steps=20)
    story.all_ready(0)
    spread(story, 0)
    before = job_of(story).words
    story.feed(events.SubmitterLeaves(story.now, "job-1", "gone"))
    assert "its submitter is away" in job_of(story).words
    story.say(Return("job-1", 1, 1))
    assert waits(story).state == job_of(story).words == before != ""


def named(story: Scenario, verify: float, workers: int = 3) -> None:
    """Job-1 may use a, b, c and d, and so many of them get a part."""
    story.say(Submit("gpt", b"graph", training(steps=3, verify=verify), workers, list("abcd")))


def fleet(*others: str) -> Scenario:
    story = Scenario()
    for worker in ("a", "b", "c", "d", *others):
        story.join(worker, device=KERNELS, disk_bytes=10**9)
    story.logged_from = 0
    return story


def begin(story: Scenario) -> None:
    """Job-1 is planned and loaded, and its first copies are there."""
    story.planned()
    for worker in job_of(story).members:
        story.loaded(worker)
    story.all_ready(0)
    spread(story, 0)


def test_named_workers_that_all_get_a_part_cannot_check_each_other_and_the_job_is_denied() -> None:
    story = fleet("e")
    named(story, verify=1.0, workers=4)
    (reply,) = [one.message for one in story.commands if isinstance(one, Reply)]
    assert isinstance(reply, Denied) and "--on a,b,c --workers 2" in reply.reason
    assert "each worker that --on names gets a part" in reply.reason and not story.state.jobs


def test_named_workers_that_all_get_a_part_are_not_checked_and_one_note_says_so() -> None:
    story = fleet("e")
    named(story, verify=0.999999, workers=4)
    begin(story)
    assert job_of(story).versions.stable is not None
    (note,) = said(story)
    assert note.words.startswith("nothing is checked, because each worker that --on names has a part")


def test_of_named_workers_those_without_a_part_check_the_others() -> None:
    story = fleet("e")
    named(story, verify=1.0)
    begin(story)
    assert job_of(story).members == ("a", "b", "c")
    for _ in range(3):
        assert load(story).plan.workers().count("d") == 1
        check(story)
    assert job_of(story).versions.stable is not None and all(one.agrees for one in said(story))


def test_a_job_with_a_choice_of_named_workers_begins_with_as_many_as_it_asks_for() -> None:
    story = Scenario()
    named(story, verify=1.0)
    assert "waiting for 3 of a, b, c, d (have 0, the job needs 3)" in str(told(story.commands)[-1])
    for worker in "abd":
        story.join(worker, device=KERNELS, disk_bytes=10**9)
    story.logged_from = 0
    begin(story)
    assert job_of(story).members == ("a", "b", "d")
    story.join("e", device=KERNELS, disk_bytes=10**9)
    none = "none of the workers that --on names is idle; start c, or start again with --workers 2"
    assert job_of(story).words == f"waiting for an idle worker to check a's part of step 1: {none}"


def test_a_job_that_checks_some_goes_on_unchecked_and_says_why() -> None:
    story = place(idle="", verify=0.999999)
    story.all_ready(0)
    spread(story, 0)
    assert job_of(story).versions.stable is not None
    assert [one.words.partition(" is ")[2] for one in said(story)] == [
        "not checked, because no idle worker is there"
    ] * 3


def test_a_lost_checker_is_replaced_and_another_job_may_take_one() -> None:
    story = place()
    story.all_ready(0)
    spread(story, 0)
    running = job_of(story).checks.running
    assert running is not None
    story.leave(running.checker)
    second = job_of(story).checks.running
    assert second is not None and second.checker != running.checker
    story.join("y", device=KERNELS, disk_bytes=10**9)
    story.submit(2, submitter="bob")
    assert second.checker in story.state.jobs["job-2"].members
    story.tick(1.0)
    third = job_of(story).checks.running
    assert third is None or third.checker not in story.state.jobs["job-2"].members


def test_the_check_is_over_with_its_attempt() -> None:
    story = place(idle="def", steps=20)
    story.all_ready(0)
    spread(story, 0)
    running = job_of(story).checks.running
    assert running is not None
    story.leave("b")
    assert any(isinstance(one, Stop) for one in sent(story.commands, running.checker))
    assert job_of(story).checks.running is None


def test_the_draw_takes_the_asked_share_of_all_shares() -> None:
    taken = sum(len(drawn(7, 0.02, StateVersion(1, unit), range(10))) for unit in range(2000))
    assert 300 < taken < 500
    assert drawn(7, 1.0, StateVersion(1, 5), range(4)) == (0, 1, 2, 3)
    assert drawn(7, 0.0, StateVersion(1, 5), range(4)) == ()
    some = [drawn(seed, 0.5, StateVersion(1, 5), range(40)) for seed in (1, 2)]
    assert some[0] != some[1]
