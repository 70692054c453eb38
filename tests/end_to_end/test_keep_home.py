"""A job keeps inputs and targets with its submitter's own machine, in a fleet of strangers."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest
from tests.support.processes import JOB, Machines, Run, eventually, machines, train

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.faults]

STEPS = 12


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """A broker with two strangers, a submitter that has joined, and a job that keeps its data at home."""
    with machines(tmp_path_factory.mktemp("home")) as started:
        broker = started.broker()
        token = started.token("worker", "--uses", "9")
        strangers = [started.worker(name, token) for name in "ab"]
        for worker in strangers:
            worker.says("idle in the backup pool")
        started.document(
            "desk", "status", "--broker", started.address, "--token", started.token("submitter", home="hub")
        )
        kept = JOB.replace("steps=1_000_000", 'steps=1_000_000, keep_home=["inputs", "targets"]')
        (started.folder / "plain.py").write_text(JOB)
        (started.folder / "net.py").write_text(kept)
        yield started
        for worker in strangers:
            worker.stop()
        broker.stop()


def submitter_of(on: Machines) -> str:
    """The id of the submitter at the desk."""
    record = json.loads((on.folder / "desk" / "submitter" / "identity.json").read_text())
    return str(record["id"])


def fed(run: Run) -> set[str]:
    """The workers to which the feeder of a run sends anything."""
    plan = json.loads((run.folder / "plan.json").read_text())
    targets = {edge["target"] for edge in plan["edges"] if edge["source"] == -1}
    return {plan["placements"][at]["workers"][0] for at in targets}


def losses(run: Run) -> list[float]:
    return [row["loss"] for row in run.rows]


def test_this_machine_alone_sees_data_and_the_numbers_stay_the_same(
    on: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARFLUNG_WORKER_TOKEN", on.token("worker"))
    run = train(on, "kept", "--with-local-worker", "--workers", "3", "--steps", str(STEPS))
    assert run.command.code() == 0, run.command.err
    (home,) = fed(run)
    assert home not in "ab" and set(run.workers) == {home, "a", "b"}
    assert run.workers[0] == run.workers[-1] == home
    alone = on.start("desk", "train", "plain.py", "--local", "1", "--steps", str(STEPS), "--out", "alone")
    assert alone.code() == 0, alone.err
    assert losses(run) == losses(Run(alone, on.folder / "alone"))
    monkeypatch.delenv("FARFLUNG_WORKER_TOKEN")  # it has joined by now
    again = train(on, "again", "--with-local-worker", "--steps", "3")
    assert again.command.code() == 0 and home in fed(again)
    on.idle("a", "b")


def test_what_is_missing_to_keep_data_at_home_is_one_line(on: Machines) -> None:
    desk = ("desk", "train", "net.py", "--steps", "2", "--out", "refused")
    name = submitter_of(on)
    assert (
        "add --with-local-worker, or --home with the ids of workers that you have joined with `farflung join"
        in on.fails(*desk)
    )
    assert f"no owner says that a is at home for {name}" in on.fails(*desk, "--home", "a")
    assert "no worker z has joined this broker" in on.fails(*desk, "--home", "a,z")
    assert "the job keeps nothing at home" in on.fails("desk", "train", "plain.py", "--home", "a")


def test_no_stranger_takes_the_place_of_a_lost_home_worker(on: Machines) -> None:
    token = on.token("worker", "--uses", "2")
    arguments = ("--listen", on.listen, "--home-of", submitter_of(on))
    homes = {
        name: on.start(name, "join", on.address, "--name", name, *arguments, "--token", token)
        for name in ("h1", "h2")
    }
    for home in homes.values():
        home.says("idle in the backup pool")
    run = train(on, "lost", "--home", "h1,h2", "--workers", "3")
    run.reaches(3)
    assert fed(run) <= {"h1", "h2"} and len({*run.workers} & {"a", "b"}) == 1
    victim = run.workers[0]
    homes[victim].signal(signal.SIGKILL)
    homes[victim].code()

    def waits() -> bool:
        (job,) = [one for one in on.status()["jobs"] if one["state"] not in ("done", "cancelled", "failed")]
        return victim in json.dumps(job) and job["state"] != "running"

    eventually("the job waits for its home worker", waits)
    assert fed(run) <= {"h1", "h2"}
    homes[victim] = on.start(victim, "join", on.address, *arguments)
    run.reaches(len(run.rows) + 3)
    assert fed(run) <= {"h1", "h2"}
    run.stops()
    for home in homes.values():
        home.stop()


@pytest.mark.full
def test_a_lost_stranger_costs_no_step_though_one_machine_alone_is_home(on: Machines) -> None:
    arguments = ("--listen", on.listen, "--home-of", submitter_of(on))
    token = on.token("worker", "--uses", "2")
    home = on.start("h3", "join", on.address, "--name", "h3", *arguments, "--token", token)
    lost = on.worker("c", token)
    for worker in (home, lost):
        worker.says("idle in the backup pool")
    run = train(on, "alone", "--home", "h3", "--on", "h3,a,c")
    run.reaches(3)
    words = "h3 alone has its part of step"  # of a version that is stable
    eventually("a version is stable", lambda: words in on.status()["jobs"][-1]["protection"])
    run.reaches(len(run.rows) + 3)
    lost.signal(signal.SIGKILL)
    lost.code()
    again = on.worker("c")
    run.reaches(len(run.rows) + 3)
    assert fed(run) == {"h3"} and set(run.workers) == {"h3", "a", "c"}
    run.stops()
    assert all(event["step"] for event in run.events("rolled back"))
    for worker in (home, again):
        worker.stop()
