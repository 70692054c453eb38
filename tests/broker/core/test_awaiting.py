"""A lost worker that no other replaces is awaited with its disk, and the others keep their state."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tests.broker.core.test_protection import job_of, spread
from tests.broker.core.test_replaying import KERNELS, continues, load_all, rollbacks
from tests.broker.scenario import DEVICE, Scenario, digest_of, told

from farflung.broker.core import events, facts
from farflung.broker.core.events import SendLoad
from farflung.broker.core.recovering import awaiting
from farflung.broker.core.state import durable, replay
from farflung.protocol.copies import HeldCopy, StateVersion
from farflung.protocol.fields import shutting_down
from farflung.protocol.messages import Accepted, Broken, Cancel, Collecting, Ended, Load, Planned, Return

OTHERS = msgspec.structs.replace(DEVICE, kernels="other kernels")
PATIENCE = 900


def alone(**changes: object) -> Scenario:
    """Workers a, b and c run job-1 and no other is there; version 0 is stable, units 0 to 3 are decided."""
    story = Scenario()
    for worker in "abc":
        story.join(worker, device=KERNELS, disk_bytes=10**9)
    story.logged_from = 0
    story.running(3, **{"steps": 20, **changes})
    story.all_ready(0)
    spread(story, 0)
    for unit in range(1, 4):
        story.all_ready(unit)
    return story


def back(story: Scenario, worker: str = "b", kernels: msgspec.Struct = KERNELS) -> None:
    """A worker that was started again, with what it had on its disk."""
    share = "abc".index(worker)
    held = [HeldCopy("job-1", StateVersion(1, 0), share, digest_of(0, share), 500)]
    story.join(worker, "boot-2", device=kernels, disk_bytes=10**9, held=held)  # type: ignore[arg-type]


def loaded_by(story: Scenario, worker: str) -> list[Load]:
    return [one.load for one in story.commands if isinstance(one, SendLoad) and one.worker == worker]


def tick(story: Scenario, seconds: float) -> None:
    """So much time passes; workers count as lost after 40 s, and a job waits 60 s for them at least."""
    story.now += seconds
    story.feed(events.Tick(story.now, 900.0, 40.0, 600.0, 60.0))


def test_a_worker_that_returns_with_its_disk_replays_its_share_and_the_others_keep_their_state() -> None:
    story = alone()
    story.ready("a", 4)
    story.leave("b")
    job = job_of(story)
    assert (job.state, job.awaited, job.step, job.members) == ("loading", ("b",), 4, ("a", "b", "c"))
    said = [message for message in told(story.commands) if isinstance(message, Accepted)][-1]
    assert "waiting for b to return with its disk, or another one like it" in said.state and said.away == [
        "b"
    ]
    story.feed(events.WorkerMessage(story.now, "a", Broken("job-1", 1, "cut", "b")))
    assert job_of(story) == job and not continues(story)
    back(story)
    job = job_of(story)
    assert (job.state, job.attempt, job.replayers, job.awaited) == ("loading", 3, ("b",), ())
    load = loaded_by(story, "b")[-1]
    assert (load.attempt, load.unit, load.version, load.donors) == (3, 1, StateVersion(1, 0), {})
    assert len(load.history) == 3 and {*continues(story)} == {"a", "c"}
    planned = [message for message in told(story.commands) if isinstance(message, Planned)][-1]
    assert (planned.attempt, planned.unit, planned.replay_from) == (3, 4, 1)
    load_all(story)
    for unit in range(4, 20):
        story.all_ready(unit)
    assert job_of(story).state == "collecting" and not rollbacks(story)
    log = [facts.encode(fact) for fact in story.facts if isinstance(fact, facts.Decision)]
    assert replay(map(facts.decode, log)) == durable(story.state)


def test_one_that_is_back_before_it_was_missed_replays_at_once() -> None:
    story = alone()
    back(story)
    assert job_of(story).replayers == ("b",) and not rollbacks(story)


def test_one_whose_process_lives_replays_too() -> None:
    story = alone()
    story.leave("b", "nothing was heard for 10 s")
    story.join("b", device=KERNELS, disk_bytes=10**9, held=[*story.state.workers["b"].held])
    assert job_of(story).replayers == ("b",) and not rollbacks(story)


def test_one_that_comes_back_without_its_part_is_awaited_with_others() -> None:
    story = alone()
    story.leave("b")
    story.join("c", device=KERNELS, disk_bytes=10**9, held=[*story.state.workers["c"].held])
    assert job_of(story).awaited == ("b", "c") and story.state.workers["c"].job == "job-1"
    back(story)
    assert job_of(story).replayers == ("b", "c") and not rollbacks(story)


def test_two_are_awaited_together() -> None:
    story = alone()
    story.leave("b")
    story.leave("c")
    assert job_of(story).awaited == ("b", "c")
    back(story)
    assert job_of(story).awaited == ("b", "c") and not loaded_by(story, "b")[1:]
    back(story, "c")
    assert job_of(story).replayers == ("b", "c") and not rollbacks(story)
    assert {*continues(story)} == {"a"}


def test_another_worker_like_it_takes_its_place() -> None:
    story = alone()
    story.leave("b")
    story.join("e", device=KERNELS, disk_bytes=10**9)
    assert job_of(story).replayers == ("e",) and not rollbacks(story)
    assert story.state.workers["b"].job is None and not story.state.workers["b"].away


def test_one_that_is_lost_while_it_runs_again_is_awaited_once_more() -> None:
    story = alone()
    for boot in range(3):
        story.leave("b")
        assert job_of(story).awaited == ("b",)
        back(story)
        assert job_of(story).replayers == ("b",), boot


def other_kernels(story: Scenario) -> None:
    story.leave("b")
    back(story, kernels=OTHERS)


def left_in_order(story: Scenario) -> None:
    story.leave("b", shutting_down("b"))


def broker_restarted(story: Scenario) -> None:
    story.leave("b")
    story.restart()
    for worker in "abc":
        back(story, worker)


@pytest.mark.parametrize("why", [other_kernels, left_in_order, broker_restarted])
def test_else_all_go_back(why: Callable[[Scenario], None]) -> None:
    story = alone()
    why(story)
    assert rollbacks(story)[0].unit == 1 and not job_of(story).over and not job_of(story).awaited


def test_after_six_leases_the_job_goes_on_without_it() -> None:
    story = alone()
    story.leave("b")
    tick(story, 50)
    assert job_of(story).awaited == ("b",)
    tick(story, 20)
    assert rollbacks(story)[0].unit == 1 and (job_of(story).state, job_of(story).members) == (
        "planning",
        ("a", "c"),
    )


def test_one_that_alone_has_its_share_is_awaited_as_long_as_patience_lasts() -> None:
    story = alone(patience_seconds=PATIENCE)
    for other in ("a", "c"):
        kept = [copy for copy in story.state.workers[other].held if copy.share != 1]
        story.take(facts.WorkerHolds(other, kept))
    story.leave("b")
    tick(story, PATIENCE / 2)
    assert job_of(story).awaited == ("b",)
    tick(story, PATIENCE)
    assert job_of(story).state == "failed" and "train --resume" in job_of(story).reason


def test_a_submitter_without_links_hears_whom_the_job_waits_for() -> None:
    story = alone()
    story.leave("b")
    story.say(Return("job-1", 0, 4))
    assert job_of(story).awaited == ("b",)
    said = [message for message in told(story.commands) if isinstance(message, Accepted)][-1]
    assert "waiting for b" in said.state


def test_how_long_the_others_wait_before_they_go_on_without_it_is_said_in_advance() -> None:
    story = alone()
    story.leave("b")
    assert "(or to go on without, after 1 minute)" in awaiting.words_of(story.state, job_of(story))
    story.feed(events.Tick(story.now, 900.0, 40.0, 600.0, 90.0))  # by another lease
    assert "(or to go on without, after 90 s)" in awaiting.words_of(story.state, job_of(story))


def test_a_job_that_is_stopped_meanwhile_sends_its_weights_once_it_is_back() -> None:
    story = alone()
    story.leave("b")
    story.say(Cancel("job-1", "stopped by the user", collect=True))
    back(story)
    load_all(story)
    assert [message.step for message in told(story.commands) if isinstance(message, Collecting)] == [4]
    assert not any(isinstance(message, Ended) for message in told(story.commands))
    moved = [one for one in told(story.commands) if isinstance(one, Planned) and one.replayers]
    assert [one.reason for one in moved] == ["b was lost"]


def test_a_job_that_is_stopped_meanwhile_ends_with_each_reason_once_if_it_stays_away() -> None:
    story = alone()
    story.leave("b")
    story.say(Cancel("job-1", "stopped by the user", collect=True))
    tick(story, 1000.0)
    (ended,) = [one for one in told(story.commands) if isinstance(one, Ended)]
    assert ended.reason.startswith("stopped by the user; its weights are not complete: b did not come back")


def test_a_submitter_that_has_the_last_state_is_believed_though_members_go_back_meanwhile() -> None:
    story = alone(steps=4)
    story.leave("b")  # while the weights are collected
    assert job_of(story).awaited == ("b",)
    story.leave("c", shutting_down("c"))
    assert rollbacks(story) and not job_of(story).over
    story.collected(attempt=1)
    assert job_of(story).state == "done"
