"""A job goes back to the newest version on workers' disks, with lost workers replaced."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from tests.broker.core.test_protection import is_copied, job_of, spread, words
from tests.broker.scenario import DEVICE, Scenario, loads, sent, told

from farflung.broker.core import events, facts
from farflung.broker.core.records import LOADING, PLANNING, QUEUED, RUNNING
from farflung.broker.core.state import Outcome, durable, replay
from farflung.plans import LinkCodec
from farflung.protocol.copies import CopyLost, StateVersion
from farflung.protocol.messages import Kept, Loaded, Planned, Refused, Retain, RolledBack, Stop
from farflung.protocol.registration import Standing

FIRST = StateVersion(1, 0)


def place(*spare: str, **changes: object) -> Scenario:
    """Workers a, b and c run job-1 and have copied its first step; two other steps are done since."""
    story = Scenario()
    for worker in ("a", "b", "c"):
        story.join(worker, disk_bytes=10**9)
    story.running(3, **{"steps": 2000, **changes})
    story.all_ready(0)
    spread(story, 0)
    for unit in (1, 2):
        story.all_ready(unit)
    for worker in spare:
        story.join(worker, disk_bytes=10**9)
    return story


def tick(story: Scenario, seconds: float = 0.0) -> None:
    story.now += seconds
    story.feed(events.Tick(story.now, 900.0))


def test_an_idle_worker_takes_the_place_of_a_lost_one_at_once_and_no_planner_runs() -> None:
    story = place("d")
    before = job_of(story)
    outcome = story.leave("b")
    job = job_of(story)
    assert (job.state, job.attempt, job.step, job.members) == (LOADING, 2, 1, ("a", "d", "c"))
    assert [part.worker for part in job.plan.placements] == ["a", "d", "c", "a"]  # type: ignore[union-attr]
    found = loads(with_blobs(outcome, story))
    donor = before.holders["b"]
    assert found.keys() == {"a", "c", "d"}
    for load in found.values():
        assert (load.version, load.donors, load.unit) == (FIRST, {"d": donor}, 1)
        assert sorted(load.holders) == sorted(load.holders.values()) == ["a", "c", "d"]
    assert donor in found["d"].addresses and "d" in found[donor].addresses
    back, planned = told(outcome.commands)
    assert isinstance(back, RolledBack) and (back.unit, back.step, back.held) == (1, 1, True)
    assert isinstance(planned, Planned) and (planned.unit, planned.keeps) == (1, True)
    for survivor in "ac":
        (stop,) = sent(outcome.commands, survivor)
        assert isinstance(stop, Stop) and not stop.over


def with_blobs(outcome: Outcome, story: Scenario) -> Outcome:
    """The outcome with the programs, which came earlier."""
    return replace(outcome, blobs=story.blobs)


def test_the_next_attempt_begins_after_the_version_and_its_first_step_is_copied_again() -> None:
    story = place("d")
    story.leave("b")
    assert "alone has its part of step 1" in words(story)
    for worker in "acd":
        story.loaded(worker, attempt=2)
    job = job_of(story)
    assert job.state == RUNNING and job.unit is not None and job.unit.number == 1
    assert is_copied(story, 1)
    assert words(story).startswith("not protected: ")
    for share, owner in enumerate("adc"):
        story.copied(owner, 1, share)
        story.copied(job.holders[owner], 1, share)
    assert words(story) == "protected up to step 2"


@pytest.mark.parametrize(
    "device",
    [
        msgspec.structs.replace(DEVICE, framework="jax 0.10.0"),
        msgspec.structs.replace(DEVICE, memory_bytes=2**29),
        msgspec.structs.replace(DEVICE, lacks=("aten.sin.default",)),
        msgspec.structs.replace(DEVICE, kernels="other"),
    ],
)
def test_a_worker_that_may_give_other_bits_or_lacks_something_takes_no_place(device: object) -> None:
    story = place()
    known = story.state.workers["b"]
    story.state = story.state.with_worker(
        replace(known, device=msgspec.structs.replace(known.device, kernels="bits"))
    )
    story.join("d", device=device, disk_bytes=10**9)  # type: ignore[arg-type]
    story.leave("b")
    assert job_of(story).state == QUEUED
    words = (
        "waiting for b, or another one like it, to go on at step 2 (or without, after 1 minute),"
        " at most until 1970-01-02 00:17 UTC"
    )
    assert job_of(story).words == words


def test_a_worker_with_too_little_memory_for_the_lost_offer_is_fit_if_the_part_needs_less() -> None:
    story = place()
    story.take(facts.WorkerLoaded("job-1", "b", needs_bytes=2**28))
    story.join("d", device=msgspec.structs.replace(DEVICE, memory_bytes=2**29), disk_bytes=10**9)
    story.leave("b")
    assert job_of(story).members == ("a", "d", "c")


def test_without_a_replacement_the_job_waits_for_the_lost_worker_by_name_and_goes_on_with_it() -> None:
    story = place()
    held = list(story.state.workers["b"].held)
    story.leave("b")
    assert job_of(story).state == QUEUED
    tick(story, 50)
    outcome = story.join("b", boot="boot-2", held=held, disk_bytes=10**9)
    job = job_of(story)
    assert (job.state, job.members) == (LOADING, ("a", "b", "c"))
    assert all(load.donors == {} for load in loads(with_blobs(outcome, story)).values())


def test_a_worker_that_comes_back_with_an_empty_disk_gets_its_share_from_its_holder() -> None:
    story = place()
    story.leave("b")
    outcome = story.join("b", boot="boot-2", disk_bytes=10**9)
    donors = {tuple(load.donors.items()) for load in loads(with_blobs(outcome, story)).values()}
    assert donors == {(("b", holder_of_b(story)),)}


def holder_of_b(story: Scenario) -> str:
    loading = [fact for fact in story.facts if isinstance(fact, facts.JobLoading)]
    return loading[0].holders["b"]


def test_all_workers_may_restart_and_the_job_goes_on_from_their_disks() -> None:
    story = place()
    disks = {name: list(story.state.workers[name].held) for name in "abc"}
    for name in "abc":
        story.leave(name)
    tick(story, 500)
    for name in "abc":
        assert job_of(story).state == QUEUED
        story.join(name, boot="boot-2", held=disks[name], disk_bytes=10**9)
    assert (job_of(story).state, job_of(story).step) == (LOADING, 1)


def test_after_a_while_the_job_is_planned_anew_from_what_the_submitter_has() -> None:
    story = place(checkpoint_every=1)
    story.say(Kept("job-1", 1, 0))  # the submitter has step 1, too
    story.join("e")  # without a disk
    story.join("f")
    story.leave("b")
    story.leave("a")  # the last one that had b's share
    tick(story, 40)
    assert job_of(story).state == QUEUED
    tick(story, 40)
    job = job_of(story)
    assert (job.state, job.step, job.attempt) == (PLANNING, 1, 2)
    backs = [one for one in told(story.commands) if isinstance(one, RolledBack)]
    assert [(one.unit, one.held, one.attempt) for one in backs] == [(1, True, 1), (1, False, 1)]
    assert not any(worker.held for worker in story.state.workers.values())
    assert any(isinstance(one, Retain) and not one.versions for one in sent(story.commands, "c"))


def test_the_job_waits_at_least_as_long_as_the_lost_steps_would_take() -> None:
    story = place()
    speed = job_of(story).pace.samples_per_second
    assert speed
    story.state = story.state.with_job(
        replace(job_of(story), pace=replace(job_of(story).pace, samples_per_second=8 / 1000))
    )
    story.join("e")
    story.join("f")
    story.leave("b")
    story.leave("a")
    tick(story, 900)
    assert job_of(story).state == QUEUED
    tick(story, 200)
    assert job_of(story).state == PLANNING


def test_a_newer_checkpoint_of_the_submitter_is_preferred() -> None:
    story = place("d", checkpoint_every=2)
    story.say(Kept("job-1", 1, 1))
    story.leave("b")
    assert (job_of(story).state, job_of(story).step) == (PLANNING, 2)
    assert any(isinstance(one, Retain) and not one.versions for one in sent(story.commands, "a"))


def test_a_damaged_copy_is_replaced_by_the_one_of_the_holder() -> None:
    story = place("d")
    survivor, holder = next(pair for pair in job_of(story).holders.items() if "b" not in pair)
    story.leave("b")
    lost = CopyLost("job-1", 2, FIRST, "abc".index(survivor), "the copy is damaged: its SHA-256 differs")
    story.feed(events.WorkerMessage(story.now, survivor, lost))
    job = job_of(story)
    assert (job.state, job.attempt, job.donors[survivor]) == (LOADING, 3, holder)


def test_a_copy_that_is_gone_is_noticed_though_the_broker_died_as_its_worker_said_so() -> None:
    story = place("d")
    survivor, _ = next(pair for pair in job_of(story).holders.items() if "b" not in pair)
    story.leave("b")
    share = "abc".index(survivor)
    kept = {name: list(story.state.workers[name].held) for name in job_of(story).members}
    story.restart()
    for name, held in kept.items():
        left = [copy for copy in held if name != survivor or copy.share != share]
        phase = Standing("job-1", 2, job_of(story).next_unit, "loading")
        story.join(name, held=left, disk_bytes=10**9, standing=phase)
    job = job_of(story)
    assert job.state == QUEUED  # until its submitter is back
    assert job.reason == f"the copy of share {share} on worker {survivor} is lost: it is not on its disk"
    assert job.recovery.last == 2


def test_if_the_other_copy_is_on_a_lost_worker_the_job_waits_for_that_one() -> None:
    story = place("d")
    survivor = next(owner for owner, holder in job_of(story).holders.items() if holder == "b")
    held = list(story.state.workers["b"].held)
    story.leave("b")
    lost = CopyLost("job-1", 2, FIRST, "abc".index(survivor), "the copy is damaged: its SHA-256 differs")
    story.feed(events.WorkerMessage(story.now, survivor, lost))
    assert job_of(story).state == QUEUED and "workers that have a copy of its state" in job_of(story).words
    story.join("b", boot="boot-2", held=held, disk_bytes=10**9)
    assert job_of(story).state == LOADING and "b" in job_of(story).members
    assert survivor not in job_of(story).members and not job_of(story).donors.keys() & {"b"}


def test_if_the_last_copy_is_damaged_the_job_begins_again_at_once() -> None:
    story = place("d")
    holder = job_of(story).holders["b"]
    story.leave("b")
    story.join("b", boot="boot-2", disk_bytes=10**9)
    share = 1
    lost = CopyLost("job-1", 2, FIRST, share, "the copy is damaged: its SHA-256 differs")
    story.feed(events.WorkerMessage(story.now, holder, lost))
    assert (job_of(story).state, job_of(story).step) == (PLANNING, 0)


def test_a_replacement_that_refuses_the_plan_makes_the_job_be_planned_anew_without_it() -> None:
    story = place("d")
    story.leave("b")
    story.feed(events.WorkerMessage(story.now, "d", Refused("job-1", 2, "it needs more memory")))
    job = job_of(story)
    assert (job.state, job.step, job.members) == (PLANNING, 1, ("a", "c"))
    assert "d" in job.unable


def test_a_replacement_that_cannot_take_the_copy_is_left_out_at_once() -> None:
    story = place("d")
    story.leave("b")
    assert job_of(story).members == ("a", "d", "c")
    lost = CopyLost("job-1", 2, FIRST, 1, "copies take 4 GB: raise --disk")
    story.feed(events.WorkerMessage(story.now, "d", lost))
    job = job_of(story)
    assert (job.state, job.step, job.attempt, job.members) == (PLANNING, 1, 3, ("a", "c"))
    assert "raise --disk" in job.unable["d"]


def test_codecs_of_the_plan_follow_the_replacement() -> None:
    story = place("d")
    job = job_of(story)
    assert job.versions.stable is not None
    stable = replace(job.versions.stable, codecs=(LinkCodec("a", "b", "int8", 4.0),))
    story.state = story.state.with_job(replace(job, versions=replace(job.versions, stable=stable)))
    story.leave("b")
    assert [(one.source, one.target) for one in job_of(story).codecs] == [("a", "d")]
    story.join("e", disk_bytes=10**9)
    story.leave("d")  # a second loss, while the job loads
    assert [(one.source, one.target) for one in job_of(story).codecs] == [("a", "e")]


def test_what_was_decided_of_versions_is_in_the_log() -> None:
    story = place("d")
    story.leave("b")
    decisions = [fact for fact in story.facts if isinstance(fact, facts.Decision)]
    assert replay(decisions) == durable(story.state)
    story.feed(events.WorkerMessage(story.now, "d", Loaded("job-1", 2)))
    assert story.state.workers["d"].held[0].version == FIRST
