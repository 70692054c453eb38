"""Members and checkers that are late, leave out, exchange or give up what a check needs."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tests.broker.core.test_protection import job_of, spread
from tests.broker.core.test_replaying import KERNELS
from tests.broker.core.trusting.test_checking import (
    FALSE,
    check,
    found,
    load,
    number,
    place,
    said,
    say,
    waits,
)
from tests.broker.scenario import Scenario, digest_of, sent, told

from farflung.broker.core import events
from farflung.broker.core.protecting import checks, late_versions
from farflung.broker.core.protecting.checks import drawn
from farflung.errors import ProtocolError
from farflung.protocol.checks import PieceDigest
from farflung.protocol.copies import Copied, CopyLost, HeldCopy, StateVersion
from farflung.protocol.messages import (
    Broken,
    CheckBegun,
    Checked,
    Collecting,
    Loaded,
    Return,
    RolledBack,
    Stop,
)
from farflung.protocol.registration import Standing


@pytest.mark.parametrize("segment", [1, 3, 4, 99])
@pytest.mark.parametrize("field", ["sent", "received"])
def test_a_member_names_only_segments_with_which_its_own_has_a_link(field: str, segment: int) -> None:
    story = place()
    with pytest.raises(ProtocolError, match=f"segment 1 exchanged with segment {segment}"):
        story.ready("b", 0, **{field: {segment: b"x"}})
    story.all_ready(0)
    assert job_of(story).step == 1


def give_up(story: Scenario, how: str) -> None:
    """Member b makes the version under way fail, which it can by each of these."""
    version = job_of(story).versions.under_way
    assert version is not None
    if how == "its copy is lost":
        lost = CopyLost("job-1", 1, version.name, 1, "gone")
        story.feed(events.WorkerMessage(story.now, "b", lost))
    elif how == "its disk is full":
        story.copied("b", version.name.unit, 1, trouble="no space")
    else:
        story.feed(events.WorkerMessage(story.now, "b", Broken("job-1", 1, "link lost", peer="c")))
        for name in "abc":
            story.loaded(name, attempt=2)


@pytest.mark.parametrize("how", ["its copy is lost", "its disk is full", "it lost a link"])
def test_what_was_drawn_of_a_version_is_checked_with_the_next_one_if_a_member_makes_it_fail(how: str) -> None:
    story = place(idle="def", steps=200, verify=0.3)
    story.all_ready(unit := 0)
    while True:  # to a version of which b alone is drawn
        spread(story, unit)
        if job_of(story).checks.pending == (1,):
            break
        while job_of(story).checks.running is not None:
            check(story)
        while job_of(story).versions.under_way is None:
            story.now += 30
            unit += 1
            story.all_ready(unit)
    running, first = job_of(story).checks.running, load(story).unit
    assert running is not None
    give_up(story, how)
    assert job_of(story).versions.under_way is None and job_of(story).checks.running is None
    assert any(isinstance(one, Stop) for one in sent(story.commands, running.checker))
    assert "before b was checked: that is checked with the next" in said(story)[-1].words
    while job_of(story).versions.under_way is None:
        story.now += 30
        unit += 1
        story.all_ready(unit)
    name = StateVersion(job_of(story).attempt, unit)
    spread(story, unit)
    assert set(job_of(story).checks.pending) == {1, *drawn(0, 0.3, name, range(3))}
    assert load(story).unit == first


def test_what_a_checker_says_of_an_earlier_check_counts_for_nothing() -> None:
    story = place(idle="d", steps=200)
    story.all_ready(0)
    spread(story, 0)
    say(story, CheckBegun("job-1", 1, number(story), 0))
    late = found(story)
    give_up(story, "its copy is lost")
    story.now += 20
    for unit in (1, 2):
        story.all_ready(unit)
        if job_of(story).versions.under_way is not None:
            spread(story, unit)
    running = job_of(story).checks.running
    assert running is not None and (running.checker, running.share) == ("d", 0)
    say(story, CheckBegun("job-1", 1, late.check, 0))
    say(story, late)
    assert job_of(story).checks.running == running and not said(story)[0].agrees
    for _ in range(3):
        check(story)
    assert job_of(story).versions.stable is not None and not story.state.suspicions


def test_a_restart_while_weights_are_collected_keeps_what_checkers_found() -> None:
    story = place()
    to_the_end(story)
    (before,) = [one for one in told(story.commands) if isinstance(one, Collecting)]
    story.restart()
    story.say(Return("job-1", 1, 3))
    after = [one for one in told(story.commands) if isinstance(one, Collecting)][-1]
    assert after.checked == before.checked != []


def to_the_end(story: Scenario) -> None:
    """To where weights are collected: all is checked."""
    while (unit := job_of(story).unit) is not None:
        story.all_ready(unit.number)
        if job_of(story).versions.under_way is not None:
            spread(story, unit.number)
        while job_of(story).checks.running is not None:
            check(story)


def test_a_version_fails_of_which_members_exchange_a_copy_while_others_are_checked() -> None:
    story = place(idle="defgh", steps=200)
    story.all_ready(unit := 0)
    spread(story, 0)
    for _ in range(3):
        check(story)
    while job_of(story).versions.under_way is None:  # one with standbys
        story.all_ready(unit := unit + 1)
    spread(story, unit)
    holder, standby = job_of(story).holders["b"], job_of(story).holder_of("b")
    story.copied(holder, unit, 1)
    check(story)
    check(story)
    assert job_of(story).checks.pending == (2,) and standby not in ("", holder)
    for name in (standby, "b"):  # at each moment two have the same
        other = Copied("job-1", 1, unit, 1, FALSE * 6 + b"it", 500)
        story.feed(events.WorkerMessage(story.now, name, other))
    job = job_of(story)
    assert job.versions.stable is not None and job.versions.stable.next_unit == 1
    assert job.versions.under_way is None and "is another one than when" in job.versions.trouble
    assert job.checks.carried == {1, 2}


def test_a_check_may_take_as_long_as_loading_and_twenty_times_its_units() -> None:
    story = Scenario()
    for worker in "abcde":
        story.join(worker, device=KERNELS, disk_bytes=10**9)
    story.logged_from = 0
    story.submit(3, steps=20, verify=1.0)
    story.planned()
    story.now += 600  # to load
    for worker in "abc":
        story.loaded(worker)
    story.now += 60  # for the first step
    story.all_ready(0)
    spread(story, 0)
    for unit in (1, 2):
        story.all_ready(unit)
    first = job_of(story).checks.running
    story.tick(1700)
    assert first is not None and job_of(story).checks.running == first
    story.tick(400)
    second = job_of(story).checks.running
    assert second is not None and second.checker != first.checker


def test_a_job_waits_for_a_checker_that_failed_but_is_there_and_lacks_none() -> None:
    story = place(idle="d", steps=20)
    story.all_ready(0)
    spread(story, 0)
    running = job_of(story).checks.running
    assert running is not None
    say(story, Checked("job-1", 1, running.number, 0, trouble="its disk was slow"))
    assert "a's part of step 1: the idle workers that could do so failed" in job_of(story).words
    assert not waits(story).lacking
    story.tick(11.0)
    check(story)
    assert said(story)[-1].agrees


def test_a_checker_that_failed_before_is_taken_last() -> None:
    story = place(idle="de", steps=20)
    story.all_ready(0)
    spread(story, 0)
    silent = job_of(story).checks.running
    story.tick(200.0)
    for _ in range(3):
        running = job_of(story).checks.running
        assert running is not None and silent is not None and running.checker != silent.checker
        check(story)
    assert job_of(story).versions.stable is not None


def test_a_checker_whose_copy_is_lost_counts_no_longer_as_one_that_has_it() -> None:
    story = place(idle="d", steps=200)
    story.all_ready(unit := 0)
    spread(story, 0)
    for _ in range(3):
        check(story)
    held = HeldCopy("job-1", StateVersion(1, 0), 0, digest_of(0, 0), 500)
    story.join("x", device=KERNELS, disk_bytes=10**9, held=[held])
    while job_of(story).versions.under_way is None:
        story.all_ready(unit := unit + 1)
    spread(story, unit)
    running = job_of(story).checks.running
    assert running is not None and running.checker == "x"
    lost = CopyLost("job-1", 1, StateVersion(1, 0), 0, "damaged")
    story.feed(events.WorkerMessage(story.now, "x", lost))
    assert held not in story.state.workers["x"].held
    assert "x could not check a: damaged" in [one.words for one in said(story)]


def test_the_last_version_of_a_job_that_is_checked_may_take_as_long_as_slow_lines_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(late_versions, "BYTES_PER_SECOND", 15.0)  # the state of this plan has 16,000 bytes
    story = place(steps=1)
    story.all_ready(0)
    story.tick(1000.0)
    spread(story, 0)
    while job_of(story).checks.running is not None:
        check(story)
    assert job_of(story).state == "collecting"


def test_a_job_of_which_some_is_checked_says_whose_last_units_were_drawn_in_vain() -> None:
    story = place(steps=1, verify=0.999999)
    story.all_ready(0)
    story.copied("b", 0, 1, trouble="no space")
    assert job_of(story).state == "collecting"
    last = said(story)[-3:]
    assert [one.words for one in last] == [
        f"the newest units of {name} are not checked, because b: no space" for name in "abc"
    ]
    assert [(one.worker, one.first, one.over) for one in last] == [(name, 0, 1) for name in "abc"]


def test_of_a_last_version_that_is_given_up_only_what_was_not_checked_is_named() -> None:
    story = place(steps=1, verify=0.999999)
    story.all_ready(0)
    spread(story, 0)
    check(story)  # a is checked
    give_up(story, "its copy is lost")
    assert job_of(story).state == "collecting"
    unchecked = [one.worker for one in said(story) if one.worker and not one.checker]
    assert unchecked == ["b", "c"]


def test_last_units_that_a_restart_leaves_unchecked_are_named() -> None:
    story = place(steps=1, verify=0.999999)
    story.all_ready(0)
    story.restart()
    for worker in "abcde":
        standing = Standing("job-1", 1, 1, "running") if worker in job_of(story).members else None
        story.join(worker, device=KERNELS, disk_bytes=10**9, standing=standing)
    assert job_of(story).state == "collecting"
    for name, one in zip("abc", said(story)[-3:], strict=True):
        assert f"units of {name} are not checked, because the broker was restarted" in one.words
        assert one.worker == name


def test_a_member_that_makes_no_copies_is_replaced_if_all_is_to_be_checked() -> None:
    story = Scenario()
    for worker in "abcde":
        story.join(worker, device=KERNELS, disk_bytes=10**9)
    story.submit(3, steps=20, verify=1.0)
    story.planned()
    story.feed(events.WorkerMessage(story.now, "b", Loaded("job-1", 1, "no memory here")))
    job = job_of(story)
    assert not job.over and set(job.blamed) == {"b"} and "b" not in job.members
    assert job.blamed["b"].reason == "no memory here" and job.blamed["b"].excused


def test_a_job_of_which_all_is_checked_begins_again_rather_than_on_another_plan() -> None:
    story = place(idle="d", steps=20)
    story.all_ready(0)
    spread(story, 0)
    for _ in range(3):
        check(story)
    assert job_of(story).versions.stable is not None
    story.leave("d")
    story.leave("b")
    for worker in "xy":  # they compute otherwise, so none can take the place of b
        others = msgspec.structs.replace(KERNELS, kernels="others")
        story.join(worker, device=others, disk_bytes=10**9)
    for _ in range(2000):
        story.tick(100.0)
        if job_of(story).versions.stable is None or job_of(story).over:
            break
    job = job_of(story)
    assert not job.over and (job.next_unit, job.step) == (0, 0)
    assert any(isinstance(one, RolledBack) and one.unit == 0 for one in told(story.commands))


def test_only_the_last_checks_keep_digests_and_only_those_of_the_owners_segments() -> None:
    story = place()
    for unit in range(3):
        story.all_ready(unit)
        if job_of(story).versions.under_way is not None:
            spread(story, unit)
        while (running := job_of(story).checks.running) is not None:
            say(story, CheckBegun("job-1", 1, number(story), running.share))
            strange = [PieceDigest(segment, f"weight-{segment}", FALSE * 6 + b"it") for segment in range(5)]
            one = found(story)
            say(story, msgspec.structs.replace(one, pieces=[*strange, *one.pieces]))
            assert job_of(story).unit is None or not job_of(story).checks.pieces
    (message,) = [one for one in told(story.commands) if isinstance(one, Collecting)]
    assert message.checked == [
        PieceDigest(segment, f"weight-{segment}", bytes([segment]) * 32, slot)
        for segment in (0, 3, 1, 2)
        for slot in ("", "momentum")
    ]


def refuted(pieces: Callable[[list[PieceDigest]], list[PieceDigest]]) -> Scenario:
    """A job whose first checker of its last units names these pieces, and so is followed by another one."""
    story = place(steps=1)
    story.all_ready(0)
    spread(story, 0)
    running = job_of(story).checks.running
    assert running is not None
    say(story, CheckBegun("job-1", 1, number(story), running.share))
    one = found(story)
    say(story, msgspec.structs.replace(one, pieces=pieces(one.pieces)))
    other = job_of(story).checks.running
    assert other is not None and (other.owner, other.checker != running.checker) == ("a", True)
    return story


def test_a_checker_that_leaves_out_a_parameter_has_checked_nothing() -> None:
    story = refuted(lambda pieces: [])
    assert "did not say what each parameter is" in said(story)[-1].words


def test_a_checker_that_names_slots_without_end_has_checked_nothing() -> None:
    def endless(pieces: list[PieceDigest]) -> list[PieceDigest]:
        return [*pieces, *(msgspec.structs.replace(pieces[0], slot=f"slot-{at}") for at in range(1000))]

    assert not job_of(refuted(endless)).checks.pieces


def test_a_share_is_always_drawn_if_all_are_to_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_number", lambda *parts: 1.0)  # as a float it can round up to that
    assert drawn(7, 1.0, StateVersion(1, 5), range(4)) == (0, 1, 2, 3)
    assert drawn(7, 0.5, StateVersion(1, 5), range(4)) == ()
