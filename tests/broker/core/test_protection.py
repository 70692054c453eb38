"""Copies on workers' disks: when one is taken, when a version is stable, and who deletes what."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.scenario import EMULATED_DEVICE, Scenario, digest_of, sent

from farflung.broker.core import facts
from farflung.broker.core.protecting.protection import protection
from farflung.broker.core.protecting.versions import (
    COSTS,
    FIRST_RETRY_SECONDS,
    FREE_SECONDS,
    RETRY_SECONDS,
    WEAR,
    Version,
    Versions,
)
from farflung.broker.core.records import Job
from farflung.broker.core.state import durable, replay
from farflung.errors import ProtocolError
from farflung.protocol.copies import HeldCopy, Retain, StateVersion
from farflung.protocol.messages import Decide, Kept, Stop
from farflung.schedule import Unit

HOLDERS = {"a": "c", "b": "a", "c": "b"}
FIRST = StateVersion(1, 0)


def place(**changes: object) -> Scenario:
    """Three workers with disks run job-1; worker a has segments 0 and 3 of the four."""
    story = Scenario()
    for worker in "abc":
        story.join(worker, disk_bytes=10**9)
    story.running(3, **{"steps": 2000, **changes})
    return story


def job_of(story: Scenario) -> Job:
    return story.state.jobs["job-1"]


def words(story: Scenario) -> str:
    return protection(story.state, job_of(story))


def is_copied(story: Scenario, unit: int) -> bool:
    story.all_ready(unit)
    decisions = [fact for fact in story.facts if isinstance(fact, facts.UnitDecided)]
    assert decisions[-1].unit == unit
    return decisions[-1].copy


def spread(story: Scenario, unit: int) -> None:
    """Every share of a version arrives on both disks."""
    plan = job_of(story).plan
    assert plan is not None
    for share, owner in enumerate(plan.workers()):
        story.copied(owner, unit, share)
        story.copied(job_of(story).holder_of(owner), unit, share)


def test_the_first_step_is_copied_and_the_version_is_stable_once_each_share_is_on_two_disks() -> None:
    story = place()
    assert loads_of(story)["a"].holders == dict(job_of(story).holders)
    assert sorted(job_of(story).holders) == sorted(job_of(story).holders.values()) == ["a", "b", "c"]
    assert words(story) == "not protected: the first copy is not complete"
    assert is_copied(story, 0)
    assert any(isinstance(one, Decide) and one.copy for one in sent(story.commands, "b"))
    for share, owner in enumerate("abc"):
        assert job_of(story).versions.stable is None
        story.copied(owner, 0, share)
        outcome = story.copied(job_of(story).holder_of(owner), 0, share)
    assert sent(outcome.commands, "a") == [Retain("job-1", [FIRST], FIRST)]
    assert words(story) == "protected up to step 1"
    stable = job_of(story).versions.stable
    assert stable is not None and stable.digests == {share: digest_of(0, share) for share in range(3)}


def loads_of(story: Scenario) -> dict[str, object]:
    return {command.worker: command.load for command in story.commands if hasattr(command, "load")}


def test_no_second_version_is_under_way_and_the_next_one_waits_for_a_multiple_of_what_the_last_one_took() -> (
    None
):
    story = place()
    story.all_ready(0)
    decided = story.now
    assert not is_copied(story, 1)
    spread(story, 0)
    took = story.now - decided
    unit = 2
    while not is_copied(story, unit):
        unit += 1
    took -= FREE_SECONDS
    assert COSTS * took - 5 <= story.now - decided <= COSTS * took + 10


def test_a_base_counts_once_toward_the_pause_between_versions() -> None:
    story = place()
    story.base_bytes = 500 * 999
    assert is_copied(story, 0)
    decided = story.now
    story.now += 1000
    spread(story, 0)
    versions, took = job_of(story).versions, story.now - decided
    assert versions.took == pytest.approx(took / 1000, rel=0.01)
    assert versions.base_seconds == pytest.approx(took, rel=0.01)
    (stable,) = [fact for fact in story.facts if isinstance(fact, facts.VersionStable)]
    assert stable.largest_bytes == 500 and stable.written_bytes == 1000
    assert is_copied(story, 1)  # without the base it would take less than `FREE_SECONDS`
    story.now += 20
    spread(story, 1)
    after = job_of(story).versions
    assert after.stable is not None and after.took == story.now - 1 - after.stable.at > 20
    assert after.base_seconds == versions.base_seconds
    decisions = [fact for fact in story.facts if isinstance(fact, facts.Decision)]
    assert replay(decisions).jobs["job-1"].versions == after


def test_one_worker_alone_and_emulated_devices_make_no_copies() -> None:
    alone = Scenario()
    alone.join("a", disk_bytes=10**9)
    alone.running(1)
    assert not is_copied(alone, 0) and words(alone) == "not protected: one worker alone has all of it"
    emulated = Scenario()
    for worker in "ab":
        emulated.join(worker, device=EMULATED_DEVICE, disk_bytes=10**9)
    emulated.running(2, emulated=True)
    assert not is_copied(emulated, 0)


def test_a_worker_without_disk_leaves_the_job_unprotected() -> None:
    story = Scenario()
    story.join("a", disk_bytes=10**9)
    story.join("b")
    story.running(2)
    assert not is_copied(story, 0) and not job_of(story).holders
    assert words(story) == "not protected: b holds no copies (`farflung join --disk`)"


def test_a_full_disk_leaves_the_version_before_and_another_one_is_tried_later() -> None:
    story = place()
    story.all_ready(0)
    spread(story, 0)
    unit = 1
    while not is_copied(story, unit):
        unit += 1
    name, at = StateVersion(1, unit), story.now
    outcome = story.copied("b", unit, 1, trouble="the disk is full")
    assert sent(outcome.commands, "a") == [Retain("job-1", [FIRST], name)]
    assert words(story) == "protected up to step 1; no newer copy: b: the disk is full"
    assert not story.copied("a", unit, 0).facts  # it comes too late
    assert next_copied(story, unit + 1) - unit < 10 and story.now - at <= FIRST_RETRY_SECONDS + 10


def next_copied(story: Scenario, unit: int) -> int:
    """The first unit from this one on whose state is copied."""
    while not is_copied(story, unit):
        unit += 1
    return unit


def test_a_version_that_fails_is_tried_again_soon_and_then_ever_more_seldom() -> None:
    story = place()
    story.all_ready(0)
    spread(story, 0)
    unit = next_copied(story, 1)
    for due in (FIRST_RETRY_SECONDS, 20, 40, 80, 160, RETRY_SECONDS, RETRY_SECONDS):
        at = story.now
        story.copied("b", unit, 1, trouble="the disk is full")
        story.now = at + due - 9
        unit = next_copied(story, unit + 1)
        assert due <= story.now - at <= due + 10
    spread(story, unit)
    assert job_of(story).versions.failures == 0
    unit, at = next_copied(story, unit + 1), story.now
    story.copied("b", unit, 1, trouble="the link was lost")
    next_copied(story, unit + 1)
    assert story.now - at <= FIRST_RETRY_SECONDS + 10


def test_a_version_that_fails_late_is_not_tried_again_sooner_than_a_multiple_of_that() -> None:
    story = place()
    story.all_ready(0)
    spread(story, 0)
    unit = next_copied(story, 1)
    story.now += 20
    at = story.now
    story.copied("b", unit, 1, trouble="the link was lost")
    next_copied(story, unit + 1)
    assert COSTS * 18 <= story.now - at <= COSTS * 22


def test_a_job_without_a_version_tries_another_one_soon() -> None:
    story = place()
    assert is_copied(story, 0)
    at, unit = story.now, 1
    story.copied("b", 0, 1, trouble="the link was lost")
    while not is_copied(story, unit):
        unit += 1
    assert FIRST_RETRY_SECONDS <= story.now - at <= FIRST_RETRY_SECONDS + 10


def test_a_broker_that_was_restarted_while_a_version_was_made_takes_the_next_one_at_once() -> None:
    story = place()
    assert is_copied(story, 0)
    story.restart()
    versions = job_of(story).versions
    assert versions.under_way is None and versions.takes(Unit(1, True, 1, 4), story.now)


def test_copies_that_differ_do_not_count() -> None:
    story = place()
    story.all_ready(0)
    held = HeldCopy("job-1", FIRST, 1, b"\x07" * 32, 500)
    story.state = story.state.with_worker(replace(story.state.workers["b"], held=(held,)))
    for share, owner in ((0, "a"), (2, "c")):
        story.copied(owner, 0, share)
        story.copied(job_of(story).holder_of(owner), 0, share)
    story.copied(job_of(story).holders["b"], 0, 1)
    assert job_of(story).versions.stable is None


def test_a_worker_that_neither_owns_a_share_nor_holds_it_may_not_say_so() -> None:
    story = place()
    story.all_ready(0)
    (other,) = {"a", "b", "c"} - {"a", job_of(story).holders["a"]}
    with pytest.raises(ProtocolError, match="not for it"):
        story.copied(other, 0, 0)


def test_a_copy_for_the_submitter_waits_until_the_memory_of_a_version_is_free() -> None:
    story = place(checkpoint_every=1)
    story.all_ready(0)
    assert job_of(story).copies.under_way == 0 and job_of(story).versions.under_way is not None
    story.say(Kept("job-1", 1, 0))
    story.all_ready(1)
    assert job_of(story).copies.under_way is None and job_of(story).copies.due
    for share, owner in enumerate("abc"):
        story.copied(owner, 0, share)
    story.all_ready(2)
    assert job_of(story).copies.under_way == 2


def test_the_end_of_a_job_deletes_its_copies_everywhere() -> None:
    story = place()
    story.all_ready(0)
    spread(story, 0)
    story.join("d", held=story.state.workers["a"].held)
    outcome = story.cancel(collect=False)
    assert sent(outcome.commands, "a") == [Stop("job-1", 1, "Ctrl-C", over=True)]
    assert sent(outcome.commands, "d") == [Retain("job-1", [])]
    assert not any(worker.held for worker in story.state.workers.values())


def test_a_worker_that_comes_back_keeps_what_counts() -> None:
    story = place()
    story.all_ready(0)
    spread(story, 0)
    kept = list(story.state.workers["a"].held)
    other = [
        HeldCopy("job-1", StateVersion(1, 7), 0, b"\1" * 32, 1),
        HeldCopy("job-9", FIRST, 0, b"\1" * 32, 1),
    ]
    outcome = story.join("e", held=[*kept, *other], disk_bytes=1)
    assert sent(outcome.commands, "e")[1:] == [Retain("job-1", [FIRST], FIRST), Retain("job-9", [])]
    assert list(story.state.workers["e"].held) == kept
    foreign = [HeldCopy("job-1", FIRST, 0, b"\1" * 32, 1)]
    story.join("f", held=foreign, disk_bytes=1)
    assert not story.state.workers["f"].held


def test_versions_are_in_the_log_and_what_workers_hold_is_not() -> None:
    story = place()
    story.all_ready(0)
    spread(story, 0)
    decisions = [fact for fact in story.facts if isinstance(fact, facts.Decision)]
    again = replay(decisions)
    assert again == durable(story.state) and again.jobs["job-1"].versions == job_of(story).versions
    assert not any(worker.held for worker in again.workers.values())


@given(took=st.floats(0, 1e5), size=st.integers(0, 10**12), later=st.floats(0, 1e7))
def test_copies_take_a_small_share_of_time_and_wear(took: float, size: int, later: float) -> None:
    unit = Unit(5, True, 5, 2)
    first = Versions().decided(Version(FIRST, 100.0, 1)).became_stable({}, size, 100.0 + took)
    if first.takes(unit, 100.0 + later):
        assert later >= COSTS * (took - FREE_SECONDS) - 1e-3 and size <= WEAR * later + 1e3
