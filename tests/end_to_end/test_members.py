"""Operators remove workers and submitters of a running fleet, and end jobs, each with real processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from tests.support.processes import Machines, eventually, machines, train

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.faults]


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with machines(tmp_path_factory.mktemp("members")) as started:
        broker = started.broker()
        yield started
        broker.stop()


def test_a_removed_worker_loses_its_share_to_another_and_is_refused_until_it_is_allowed(on: Machines) -> None:
    token = on.token("worker", "--uses", "9")
    workers = {name: on.worker(name, token) for name in "abc"}
    for worker in workers.values():
        worker.says("idle in the backup pool")
    submitter = ["--token", on.token("submitter"), "--broker", on.address]
    run = train(on, "removed", "--workers", "2", *submitter)
    run.reaches(3)
    victim = run.workers[1]

    answer = on.document("hub", "member", "remove", victim, "--reason", "it returns nonsense")
    assert (answer["member"], answer["role"], answer["removed"]) == (victim, "worker", True)
    assert "its share of job-1 goes to others" in answer["words"]
    assert "the token it joined with lets 6 more join: `farflung token revoke " in answer["words"]
    assert workers[victim].code() != 0
    (line,) = workers[victim].errors
    assert f"the broker refused this worker: worker {victim} was removed by operator " in line
    back = f"; it may come back once an operator runs farflung member allow {victim}"
    assert line.endswith(f": it returns nonsense{back}")
    run.reaches(len(run.rows) + 3)
    listed = {one["member"]: one for one in on.document("hub", "member", "list")["members"]}
    assert (
        listed[victim]["removed"].startswith("was removed by operator ") and not listed[victim]["connected"]
    )
    assert listed["desk" if "desk" in listed else run.workers[0]]["connected"]
    (left,) = [one for one in on.status()["workers"] if one["worker"] == victim]
    assert (left["state"], left["is_lost"]) == ("left", False) and "it returns nonsense" in left["reason"]

    again = on.worker(victim)  # a new process with the same certificate
    again.says(f"worker {victim} was removed by operator", f"farflung member allow {victim}; trying again")
    answer = on.document("hub", "member", "allow", victim)
    assert answer["words"] == "it may connect again"
    again.says("idle in the backup pool")
    run.stops()
    on.idle(*"abc")
    workers[victim] = again

    listing = on.document("hub", "job", "list")["jobs"]
    assert [(one["job"], one["state"]) for one in listing] == [("job-1", "cancelled")]
    for worker in workers.values():
        worker.stop()


@pytest.mark.full
def test_a_job_is_ended_from_another_terminal_and_goes_on_from_its_checkpoint(on: Machines) -> None:
    worker = on.worker("d", on.token("worker"))
    worker.says("idle in the backup pool")
    run = train(on, "cancelled", "--workers", "1", "--steps", "100000", "--checkpoint-every", "2s")
    run.reaches(3)
    job = on.document("desk", "job", "list")["jobs"][-1]
    found = on.document("hub", "job", "cancel", job["job"], "--reason", "the fleet is needed")
    assert found["state"] == "cancelled" and found["reason"].endswith("cancelled it: the fleet is needed")
    run.command.code()
    assert (run.summary["state"], run.summary["weights_step"]) == ("cancelled", len(run.rows))
    assert run.summary["reason"].endswith("cancelled it: the fleet is needed")
    assert run.events("checkpoint")[-1]["step"] == len(run.rows)
    on.idle("d")

    # Its submitter may, too, from another terminal; then nothing comes home first.
    resumed = train(on, "again", "--workers", "1")
    resumed.reaches(2)
    found = on.document("desk", "job", "cancel", "job-3", "--now")
    assert found["reason"] == "its submitter, from another terminal, cancelled it"
    resumed.command.code()
    assert resumed.summary["state"] == "cancelled" and resumed.summary["weights_step"] is None
    assert "job-3 is over: cancelled" in on.fails("desk", "job", "cancel", "job-3")
    assert "has no job job-77 here" in on.fails("desk", "job", "cancel", "job-77")
    worker.stop()


def test_what_cannot_be_done_is_one_line(on: Machines) -> None:
    assert "no member nobody has joined this broker" in on.fails("hub", "member", "remove", "nobody")
    assert "no member nobody has joined this broker" in on.fails("hub", "member", "allow", "nobody")
    token = on.token("viewer")
    fails = on.fails("elsewhere", "member", "list", "--broker", on.address, "--token", token)
    assert "the token is for a viewer, not for an operator" in fails
    assert "no identity of an operator" in on.fails("elsewhere", "member", "list")


def test_a_removed_submitter_loses_its_run_at_once(on: Machines) -> None:
    worker = on.worker("e", on.token("worker"))
    worker.says("idle in the backup pool")
    run = train(on, "thrown-out", "--workers", "1")
    run.reaches(3)
    members = on.document("hub", "member", "list")["members"]
    (submitter,) = [one for one in members if one["role"] == "submitter"]
    assert submitter["connected"] and len(submitter["jobs"]) == 1
    watching = on.start("desk", "attach", submitter["jobs"][0])
    eventually("the job is watched", lambda: "step" in watching.out)
    on.document("hub", "member", "remove", submitter["member"], "--reason", "it mines coins")
    assert run.command.code() != 0
    assert "was removed by operator" in run.summary["reason"] and "it mines coins" in run.summary["reason"]
    eventually("the worker is free", lambda: "e" in on.document("hub", "status")["backup_pool"], 0.4)
    assert "was removed by operator" in on.fails("desk", "status")
    assert watching.code() == 2 and "was removed by operator" in watching.errors[0]
    worker.signal(signal.SIGINT)
    worker.code()
