from __future__ import annotations

import json

import msgspec
from tests.broker.core.test_protection import spread
from tests.broker.core.test_replaying import KERNELS
from tests.broker.core.trusting.test_checking import place
from tests.broker.scenario import DEVICE, Scenario

from farflung.broker.core import events, facts, log_lines
from farflung.broker.status import Sighting, status_of
from farflung.cli.render.status import job_lines
from farflung.protocol.fields import shutting_down
from farflung.protocol.messages import FromViewer, Status, ToViewer, decode, encode
from farflung.protocol.reachability import LinkReport
from farflung.protocol.viewer import LinkView


def status(story: Scenario) -> Status:
    sightings = {"a": Sighting("192.0.2.1:50000", 0.5)}
    timeouts = {"lease_seconds": 10.0, "suspect_seconds": 3.0}
    return status_of(story.state, sightings, [], "0.1.0", 12.0, timeouts, 0.0, story.now)


def test_every_state_of_a_worker_is_shown() -> None:
    story = Scenario("a", "b", "c", "d")
    story.leave("d")
    story.submit(2)
    story.planned()
    found = {worker.worker: worker for worker in status(story).workers}
    assert [found[name].state for name in "abcd"] == ["training", "training", "ready", "left"]
    assert (found["a"].address, found["a"].last_seen_seconds) == ("192.0.2.1:50000", 0.5)
    assert (found["b"].address, found["b"].last_seen_seconds) == ("b.example:7000", -1.0)
    assert found["a"].job == "job-1" and found["c"].job == ""
    assert status(story).backup_pool == ["c"]
    for worker in "ab":
        story.loaded(worker)
    assert [worker.state for worker in status(story).workers] == ["training", "training", "ready", "left"]


def test_links_of_workers_that_are_gone_are_left_out() -> None:
    story = Scenario("a", "b")
    story.running(2)
    kept = [
        LinkView(holder, "job-1", LinkReport(peer, "", 7001, None))
        for holder, peer in (("a", "b"), ("b", "a"), ("a", story.state.jobs["job-1"].submitter), ("a", "c"))
    ]

    def shown() -> list[tuple[str, str]]:
        timeouts = {"suspect_seconds": 3.0}
        found = status_of(story.state, {}, kept, "0.1.0", 12.0, timeouts, 0.0, story.now).links
        return [(view.holder, view.report.peer) for view in found]

    assert shown() == [("a", "b"), ("b", "a"), ("a", story.state.jobs["job-1"].submitter)]
    story.leave("b")
    assert ("a", "b") not in shown() and ("b", "a") not in shown()


def test_what_a_device_says_of_itself_is_shown() -> None:
    story = Scenario("a")
    story.join("b", device=msgspec.structs.replace(DEVICE, kernels="00ff"))
    assert [worker.kernels for worker in status(story).workers] == ["", "00ff"]


def test_a_worker_that_was_told_to_stop_has_left_and_was_not_lost() -> None:
    story = Scenario("a", "b")
    story.running(2)
    story.leave("b", f"worker b closed the link: {shutting_down('b')}")
    assert [worker.state for worker in status(story).workers] == ["ready", "left"] and not status(
        story
    ).workers[1].is_lost
    lines = [log_lines.log_line(fact) for fact in story.facts]
    assert lines[-3] == "worker b left" and "job-1 goes back to unit 0: worker b left at step 1" in lines[-2]


def test_where_a_worker_has_moved_to_is_logged_in_one_line_even_if_it_only_claims_it() -> None:
    moved = facts.WorkerMoved(0.0, "a", [], ["lab.example:7", "evil\nworker b left:7"], "192.0.2.1")
    assert log_lines.log_line(moved) == "worker a moved to lab.example:7, evil worker b left:7"


def test_a_job_that_stands_still_for_lack_of_a_checker_says_so_and_what_helps() -> None:
    story = place(idle="", steps=20)
    story.all_ready(0)
    spread(story, 0)
    (job,) = status(story).jobs
    assert job.state == "running" and "start another worker with `farflung join`" in job.reason
    (shown,) = [line for line in " ".join(job_lines([job])).split("  ") if "to check a's part" in line]
    assert "job-1: waiting for an idle worker to check a's part of step 1" in shown
    story.join("d", device=KERNELS, disk_bytes=10**9)
    (job,) = status(story).jobs
    assert job.reason == ""


def test_a_running_job_shows_its_step_loss_and_speed() -> None:
    story = Scenario("a")
    story.running(1)
    story.all_ready(0)
    (job,) = status(story).jobs
    assert (job.job, job.name, job.state, job.step, job.steps, job.loss) == (
        "job-1",
        "gpt",
        "running",
        1,
        3,
        1.0,
    )
    # One event a second: a step of 2 x 4 samples took one.
    assert job.samples_per_second == 8.0
    assert job.workers == ["a"]
    assert (job.step_seconds, job.computing, job.bottleneck) == (None, {}, "")  # one step says little
    story.leave("a")
    (job,) = status(story).jobs
    assert job.state == "queued" and job.reason.startswith("waiting for 1 more worker (have 0")
    assert job.samples_per_second is None


def test_a_queued_job_shows_what_it_waits_for() -> None:
    story = Scenario("a")
    story.submit(3)
    assert status(story).jobs[0].reason == "waiting for 2 more workers (have 1, the job needs 3)"


def test_a_job_that_is_held_or_waits_for_certain_workers_says_so() -> None:
    story = Scenario("a", "b")
    story.running(2)
    assert (status(story).jobs[0].held, status(story).jobs[0].waits_for) == (False, [])
    story.submit(2, on=["a", "c"])
    assert status(story).jobs[1].waits_for == ["a", "c"]
    assert "1 worker is busy with job-1" in status(story).jobs[1].reason
    story.feed(events.SubmitterLeaves(story.now, "job-1", "its terminal was closed"))
    assert status(story).jobs[0].held and status(story).jobs[0].condition == "held"


def test_a_queued_job_names_the_jobs_that_have_the_workers() -> None:
    story = Scenario("a", "b", "c")
    story.running(2)
    story.submit(3)
    assert status(story).jobs[1].reason == (
        "waiting for 2 more workers (have 1, the job needs 3; 2 workers are busy with job-1)"
    )


def test_the_status_travels_and_reads_as_json() -> None:
    story = Scenario("a")
    story.submit(1)
    travelled = decode(encode(status(story)), ToViewer)
    assert travelled == status(story)
    assert json.loads(msgspec.json.encode(travelled))["backup_pool"] == []
    assert decode(msgspec.msgpack.encode({"type": "Ask"}), FromViewer)


def test_each_event_of_a_job_is_one_line() -> None:
    story = Scenario("a", "b")
    story.running(2)
    story.all_ready(0)
    story.leave("b")
    lines = [line for line in map(log_lines.log_line, story.facts) if line]
    assert lines == [
        "worker a joined the backup pool (a small box, site lab)",
        "worker b joined the backup pool (a small box, site lab)",
        "job-1 (gpt) was submitted by ana for 2 workers",
        "job-1 is being planned on a, b (attempt 1)",
        "job-1 is loading on a, b",
        "job-1 runs",
        "worker b was lost: connection reset",
        "job-1 goes back to unit 0: worker b was lost at step 2: connection reset",
        "job-1: waiting for 1 more worker (have 1, the job needs 2), at most until 1970-01-02 00:16 UTC",
    ]
