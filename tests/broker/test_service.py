from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.broker.scenario import plan_over, training
from tests.support.broker_fleet import DEVICE, TIMEOUTS, Member, PretendedWorker, broker, identity

from farflung.broker.arrivals import Arrival
from farflung.broker.core import facts
from farflung.broker.core.events import (
    PlanFailed,
    PlanMade,
    RunPlanner,
    WorkerLeaves,
)
from farflung.broker.core.state import replay
from farflung.broker.core.training.loads import load_of
from farflung.broker.planning import client
from farflung.broker.planning.messages import PlanResult, Searched
from farflung.broker.service import BrokerService, serve
from farflung.broker.storage.ownership import LOCK_FILE
from farflung.broker.storage.store import STORE_FILE, Store
from farflung.errors import ConnectionFailed, FarflungError, StoreError
from farflung.plans import connected_part
from farflung.protocol import messages
from farflung.protocol.messages import (
    Accepted,
    Ask,
    Broken,
    Cancel,
    Collected,
    Collecting,
    Decide,
    Denied,
    Ended,
    Keep,
    Load,
    Loaded,
    Planned,
    Register,
    Registered,
    Renew,
    Renewed,
    Return,
    RolledBack,
    Running,
    SendState,
    Status,
    Stop,
    Submit,
    UnitDone,
)
from farflung.protocol.probing import AskTopology, FleetTopology
from farflung.protocol.worker import SegmentProgram
from farflung.transport.net.addresses import parse_address
from farflung.transport.security.certificates import certificate_from_pem
from farflung.transport.timeouts import Timeouts

STEPS = 3


@pytest.fixture(autouse=True)
def planner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans a chain without a graph; a graph that says so cannot be planned."""

    async def plan(
        command: RunPlanner,
        graph: bytes,
        measured: object,
        timeouts: Timeouts,
        clock: Callable[[], float],
        hear: Callable[[Searched], None],
    ) -> PlanMade | PlanFailed:
        if graph == b"long":
            hear(Searched(1234.5, None))
            hear(Searched(2000.0, 0.25))
        if graph == b"bad":
            return PlanFailed(clock(), command.job, command.attempt, "the graph is bad")
        made = plan_over(list(command.workers[: command.count or None]))
        programs = [
            SegmentProgram(part.segment, b"program of %d" % part.segment, {"weight": 4})
            for part in made.placements
        ]
        owned = [[f"weight-{part.segment}"] for part in made.placements]
        return PlanMade(clock(), command.job, command.attempt, PlanResult(made, programs, owned, None))

    monkeypatch.setattr("farflung.broker.dispatcher.plan", plan)
    assert client.plan is not plan


def story(tmp_path: Path, scene: Callable[[BrokerService, Path], Awaitable[None]]) -> None:
    """Play a scene with a broker; no task outlives it."""

    async def play() -> None:
        folder = tmp_path / "broker"
        async with broker(folder) as service:
            await scene(service, folder)
        left = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
        assert not left

    asyncio.run(play())


async def registered(service: BrokerService, folder: Path, *ids: str) -> list[PretendedWorker]:
    workers = []
    for id in ids:
        workers.append(await PretendedWorker.join(service, folder, id))
        assert (await workers[-1].hear(Registered)).worker == id
    return workers


async def submitter(service: BrokerService, folder: Path, id: str = "ana") -> Member:
    return await Member.dial(service, await identity(service, folder, id, "submitter"))


def job(workers: int = 2, graph: bytes = b"graph", **changes: Any) -> Submit:
    return Submit("gpt", graph, training(steps=STEPS, **changes), workers)


async def running(service: BrokerService, folder: Path) -> tuple[Member, list[PretendedWorker]]:
    """A job of two workers at its first unit."""
    workers = await registered(service, folder, "lab-1", "lab-2")
    ana = await submitter(service, folder)
    ana.say(job())
    await ana.hear(Accepted)
    await asyncio.gather(*(worker.prepare() for worker in workers))
    await ana.hear(Planned)
    await ana.hear(Running)
    return ana, workers


async def status(service: BrokerService, folder: Path) -> Status:
    viewer = await Member.dial(service, await identity(service, folder, "eye", "viewer"))
    viewer.say(Ask())
    answer = await viewer.hear(Status)
    await viewer.link.close("seen")
    return answer


def test_a_job_runs_over_real_connections(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        workers = await registered(service, folder, "lab-1", "lab-2")
        ana = await submitter(service, folder)
        ana.say(job())
        assert await ana.hear(Accepted) == Accepted("job-1", "planning for 2 workers")
        working = asyncio.gather(*(worker.work(STEPS) for worker in workers))
        planned = await ana.hear(Planned)
        assert planned.addresses == {"lab-1": ["127.0.0.1:7001"], "lab-2": ["127.0.0.1:7001"]}
        assert await ana.hear(Running) == Running("job-1", 1)
        for unit in range(STEPS):
            done = await ana.hear(UnitDone)
            assert (done.unit, done.loss, done.bytes_sent) == (unit, 0.75, 200)
            assert done.gradient_norm == math.sqrt(3.0)
        assert await ana.hear(Collecting) == Collecting("job-1", 1, STEPS, "done", "")
        await working
        ana.say(Collected("job-1", 1))
        assert await ana.hear(Ended) == Ended("job-1", "done", "")
        assert [(await worker.hear(Stop)).reason for worker in workers] == ["done", "done"]
        assert (await status(service, folder)).backup_pool == ["lab-1", "lab-2"]

    story(tmp_path, scene)


def test_a_job_waits_until_workers_have_joined(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        await registered(service, folder, "lab-1")
        ana = await submitter(service, folder)
        ana.say(job())
        assert "waiting for 1 more worker (have 1, the job needs 2)" in (await ana.hear(Accepted)).state
        await registered(service, folder, "lab-2")
        assert "planning" in (await ana.hear(Accepted)).state
        await ana.hear(Planned)

    story(tmp_path, scene)


def test_how_far_a_search_is_is_told_in_words_that_go_on(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        for name in ("lab-1", "lab-2"):
            await registered(service, folder, name)
        ana = await submitter(service, folder)
        ana.say(job(1, b"long"))
        words = "planning for 1 of 2 workers"
        for so_far in ("", ": 1,234 plans looked at", ": 2,000 plans looked at, the best 250 ms a step"):
            assert await ana.hear(Accepted) == Accepted("job-1", words + so_far)
        await ana.hear(Planned)

    story(tmp_path, scene)


def test_a_plan_that_fails_is_told_to_the_submitter(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        await registered(service, folder, "lab-1")
        ana = await submitter(service, folder)
        ana.say(job(1, b"bad"))
        await ana.hear(Accepted)
        assert await ana.hear(Ended) == Ended("job-1", "failed", "the graph is bad")

    story(tmp_path, scene)


def test_two_that_could_not_link_up_twice_are_planned_apart_until_one_registers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []

    async def plan(command: RunPlanner, graph: bytes, measured: Any, *others: Any) -> PlanMade:
        """A chain over workers that can all reach one another."""
        found.append(measured)
        names = command.workers if measured is None else connected_part(measured.topology)[0].ids
        made = plan_over(sorted(names)[: command.count])
        programs = [SegmentProgram(part.segment, b"program", {"weight": 4}) for part in made.placements]
        owned = [[f"weight-{part.segment}"] for part in made.placements]
        return PlanMade(time.time(), command.job, command.attempt, PlanResult(made, programs, owned, None))

    monkeypatch.setattr("farflung.broker.dispatcher.plan", plan)

    async def scene(service: BrokerService, folder: Path) -> None:
        a, *_ = await registered(service, folder, "lab-1", "lab-2", "lab-3")
        ana = await submitter(service, folder)
        ana.say(job())
        for attempt in (1, 2):
            await ana.hear(Accepted)
            assert (await ana.hear(Planned)).plan.workers() == ["lab-1", "lab-2"]
            load = await a.hear(Load)
            assert load.attempt == attempt
            a.say(Broken("job-1", attempt, "lost the link to worker lab-2: no route", "lab-2"))
            assert "no route" in (await ana.hear(RolledBack)).reason
            await a.hear(Stop)
        await ana.hear(Accepted)
        planned = await ana.hear(Planned)
        assert found[:2] == [None, None] and len(planned.plan.workers()) == 2
        assert "lab-3" in planned.plan.workers()
        viewer = await Member.dial(service, await identity(service, folder, "eye", "viewer"))
        viewer.say(AskTopology())
        links = (await viewer.hear(FleetTopology)).measured
        assert {(link.sender, link.receiver, link.state, link.source) for link in links} == {
            ("lab-1", "lab-2", "unreachable", "job"),
            ("lab-2", "lab-1", "unreachable", "job"),
        }
        ana.say(Cancel("job-1", "enough", False))
        await ana.hear(Ended)
        await registered(service, folder, "lab-2")
        viewer.say(AskTopology())
        assert not (await viewer.hear(FleetTopology)).measured

    story(tmp_path, scene)


def test_a_worker_whose_link_drops_mid_run_ends_the_attempt(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        ana, (first, second) = await running(service, folder)
        first.ready(0)
        second.drop()
        back = await ana.hear(RolledBack)
        assert back.unit == 0 and "worker lab-2 was lost at step 1" in back.reason
        assert (await first.hear(Stop)).reason == back.reason
        found = await status(service, folder)
        assert {worker.worker: (worker.state, worker.is_lost) for worker in found.workers} == {
            "lab-1": ("ready", False),
            "lab-2": ("left", True),
        }
        assert found.jobs[0].reason.startswith("waiting for 1 more worker")
        # The survivor serves again, and so does the lost worker's next process.
        again = await PretendedWorker.join(service, folder, "lab-2", "boot-2")
        await again.hear(Registered)
        for worker in (first, again):
            assert (await worker.hear(Load)).attempt == 2
        for words in ("waiting for 1 more worker", "planning for 2 workers"):
            assert words in (await ana.hear(Accepted)).state
        assert (await ana.hear(Planned)).attempt == 2

    story(tmp_path, scene)


def test_a_job_whose_submitter_is_lost_goes_on_with_another_process_of_it(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        ana, workers = await running(service, folder)
        ana.drop()
        again = await submitter(service, folder)
        while not (await status(service, folder)).jobs[0].reason:
            pass
        for worker in workers:
            worker.ready(0)
        again.say(Return("job-1", 1, 0))
        assert (await again.hear(Accepted)).job == "job-1"
        while (await again.hear(UnitDone)).unit != 0:
            pass
        another = await submitter(service, folder)
        another.say(Return("job-1", 1, 1))
        assert "another process is the submitter of job-1" in (await another.hear(Denied)).reason
        another.say(Keep("job-1", 1))
        assert "another process is the submitter of job-1" in (await another.hear(Denied)).reason

    story(tmp_path, scene)


def test_a_second_link_of_the_same_submitter_ends_nothing_when_it_closes(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        ana, workers = await running(service, folder)
        other = await submitter(service, folder)
        other.say(Ask())
        assert (await other.hear(Status)).jobs[0].state == "running"
        await other.link.close("seen")
        ana.say(Cancel("job-1", "Ctrl-C", collect=True))
        assert (await ana.hear(Collecting)).state == "cancelled"
        for worker in workers:
            await worker.hear(SendState)

    story(tmp_path, scene)


def test_a_loss_that_is_not_a_number_keeps_the_last_good_weights(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        ana, (first, second) = await running(service, folder)
        first.ready(0)
        second.ready(0, loss=math.nan, finite=False)
        collecting = await ana.hear(Collecting)
        assert (collecting.step, collecting.state) == (0, "failed")
        assert "the loss became NaN at step 1" in collecting.reason
        ana.say(Collected("job-1", 1))
        assert (await ana.hear(Ended)).state == "failed"

    story(tmp_path, scene)


def test_a_worker_that_breaks_the_protocol_is_cut_off_and_told_why(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        ana, (first, second) = await running(service, folder)
        second.ready(1)
        assert "expected unit 0" in await second.lost()
        assert "worker lab-2 was lost" in (await ana.hear(RolledBack)).reason
        await first.hear(Stop)

    story(tmp_path, scene)


def test_a_worker_that_says_again_that_it_is_ready_keeps_its_session(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        ana, (first, second) = await running(service, folder)
        for _ in range(2):
            first.ready(0)
        second.ready(0)
        decision = await first.hear(Decide)
        first.ready(0)
        assert await first.hear(Decide) == decision
        assert (await ana.hear(UnitDone)).unit == 0
        assert not first.gone.done()

    story(tmp_path, scene)


@pytest.mark.parametrize("role", ["worker", "submitter", "viewer"])
def test_a_role_may_not_say_what_is_another_roles(tmp_path: Path, role: Any) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        member = await Member.dial(service, await identity(service, folder, "eve", role))
        member.say(job() if role != "submitter" else Loaded("job-1", 1))
        assert "refused" in await member.lost()

    story(tmp_path, scene)


def test_a_worker_must_register_first(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        member = await Member.dial(service, await identity(service, folder, "lab-1", "worker"))
        member.say(Loaded("job-1", 1))
        assert "must register" in await member.lost()

    story(tmp_path, scene)


def test_a_second_process_with_the_same_identity_is_refused(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        (first,) = await registered(service, folder, "lab-1")
        second = await PretendedWorker.join(service, folder, "lab-1", "boot-2")
        denied = await second.hear(Denied)
        assert "connected already" in denied.reason and denied.for_now
        assert "connected already" in await second.lost()
        assert (await status(service, folder)).backup_pool == ["lab-1"]
        assert not first.gone.done()

    story(tmp_path, scene)


def test_the_same_process_on_a_new_link_replaces_the_old_one(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        (first,) = await registered(service, folder, "lab-1")
        (second,) = await registered(service, folder, "lab-1")
        assert "newer link" in await first.lost()
        assert (await status(service, folder)).backup_pool == ["lab-1"]
        assert not second.gone.done()

    story(tmp_path, scene)


def test_a_broker_restarted_on_its_folder_knows_its_workers_and_jobs(tmp_path: Path) -> None:
    folder = tmp_path / "broker"

    async def scene() -> None:
        async with broker(folder) as service:
            ana, workers = await running(service, folder)
            for worker in workers:
                worker.ready(0)
            await ana.hear(UnitDone)
        for member in (ana, *workers):
            assert "the broker is shutting down" in await member.lost()
        async with broker(folder) as service:
            found = await status(service, folder)
            assert [(worker.worker, worker.state) for worker in found.workers] == [
                ("lab-1", "suspect"),
                ("lab-2", "suspect"),
            ]
            assert [(each.job, each.state, each.step) for each in found.jobs] == [("job-1", "running", 1)]
            assert found.jobs[0].reason == "waiting for lab-1, lab-2 to return"
            await registered(service, folder, "lab-2")  # another process, which holds nothing
            found = await status(service, folder)
            assert found.jobs[0].state == "queued"
            assert found.jobs[0].reason.startswith("its submitter is away")
            assert found.backup_pool == ["lab-2"]

    asyncio.run(scene())


def test_what_workers_loaded_can_be_made_again_from_the_log_and_the_blobs_beside_it(tmp_path: Path) -> None:
    async def scene() -> list[PretendedWorker]:
        async with broker(tmp_path / "broker") as service:
            _, workers = await running(service, tmp_path / "broker")
            return workers

    workers = asyncio.run(scene())
    with Store(tmp_path / "broker") as store:
        state = replay(map(facts.decode, store.events()))
        job = state.jobs["job-1"]
        assert job.blobs.graph is not None and store.blobs([job.blobs.graph]) == {job.blobs.graph: b"graph"}
        for worker in workers:
            command = load_of(state, job, worker.id)
            again = command.message(store.blobs(command.programs))
            assert messages.encode(again) == messages.encode(worker.load)


def test_blobs_of_jobs_that_are_over_are_deleted_and_others_stay(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        ana, _ = await running(service, folder)
        for submitted in (job(5), job(6, b"another graph")):
            ana.say(submitted)
            await ana.hear(Accepted)
        assert len(service._dispatcher.state.blobs()) == len(stored(folder)) > 2
        for over in ("job-3", "job-1"):
            ana.say(Cancel(over, "Ctrl-C", collect=False))
            assert (await ana.hear(Ended)).job == over
        assert stored(folder) == [b"graph"]

    def stored(folder: Path) -> list[bytes]:
        with closing(sqlite3.connect(folder / STORE_FILE)) as connection:
            return [body for (body,) in connection.execute("SELECT body FROM blobs")]

    story(tmp_path, scene)


def test_a_plan_whose_attempt_ends_at_once_is_sent_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*arguments: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("farflung.broker.dispatcher.plan", never)

    async def scene(service: BrokerService, folder: Path) -> None:
        worker, _ = await registered(service, folder, "lab-1", "lab-2")
        ana = await submitter(service, folder)
        ana.say(job(2))
        await ana.hear(Accepted)
        plan = plan_over(["lab-1", "lab-2"])
        result = PlanResult(plan, [SegmentProgram(0, b"program")], [["weight"]], None)
        service._dispatcher.put(Arrival(None, PlanMade(service._clock(), "job-1", 1, result)))
        service._dispatcher.put(Arrival(None, WorkerLeaves(0.0, "lab-2", "gone")))
        assert "gone" in (await worker.hear(Stop)).reason

    story(tmp_path, scene)


def test_the_status_shows_where_workers_are(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        await registered(service, folder, "lab-1")
        found = await status(service, folder)
        (worker,) = found.workers
        assert worker.address.startswith("127.0.0.1:")
        assert 0.0 <= worker.last_seen_seconds < 10.0
        assert (worker.site, worker.device) == ("lab", "pretended")
        assert found.timeouts["lease_seconds"] == 10.0

    story(tmp_path, scene)


def test_a_certificate_is_renewed_for_its_holder_only(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        mine = await identity(service, folder, "ana", "submitter")
        other = await identity(service, folder, "bo", "submitter")
        ana = await submitter(service, folder)
        ana.say(Renew(mine.renewal_request()))
        fresh = certificate_from_pem((await ana.hear(Renewed)).certificate)
        assert fresh.serial_number != mine.certificate.serial_number
        ana.say(Renew(other.renewal_request()))
        assert "not renewed" in await ana.lost()

    story(tmp_path, scene)


def test_a_decision_that_cannot_be_stored_stops_the_broker(tmp_path: Path) -> None:
    class FullStore(Store):
        full = False

        def append(self, *given: Any) -> None:
            if self.full:
                raise StoreError("the disk is full")
            super().append(*given)

    async def scene() -> None:
        folder = tmp_path / "broker"
        with FullStore(folder) as store:
            service = BrokerService(folder, store, TIMEOUTS)
            await service.start("127.0.0.1:0")
            run = asyncio.create_task(service.run())
            await registered(service, folder, "lab-1")
            store.full = True
            late = await PretendedWorker.join(service, folder, "lab-2")
            with pytest.raises(StoreError, match="disk is full"):
                await asyncio.wait_for(run, 60)
            await service.stop()
            # Nothing follows from what was not stored: the worker was never told that it is registered.
            assert "shutting down" in await late.lost()
            assert late.silent

    asyncio.run(scene())


def test_a_worker_that_falls_silent_is_lost_when_its_lease_is_over(tmp_path: Path) -> None:
    async def scene() -> None:
        folder = tmp_path / "broker"
        async with broker(folder, Timeouts(3.0)) as service:
            ana, (first, second) = await running(service, folder)
            second.freeze()
            reason = (await ana.hear(RolledBack)).reason
            assert "worker lab-2 was lost at step 1: nothing heard from worker lab-2 for 3 s" in reason
            assert (await first.hear(Stop)).reason == reason
            second.drop()

    asyncio.run(scene())


def test_serving_makes_the_folder_and_ends_when_cancelled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "farflung.broker")

    async def scene() -> None:
        folder = tmp_path / "new" / "broker"
        served = asyncio.create_task(serve(folder, "127.0.0.1:0", 10.0))
        while "the broker listens on 127.0.0.1:" not in caplog.text:
            assert not served.done()
            await asyncio.sleep(0.01)
        with pytest.raises(StoreError, match="another broker"):
            await serve(folder, "127.0.0.1:0", 10.0)
        served.cancel()
        with pytest.raises(asyncio.CancelledError):
            await served
        async with broker(folder) as service:
            assert (await status(service, folder)).workers == []

    asyncio.run(scene())


def test_a_port_in_use_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        port = parse_address(service.address)[1]
        words = rf"port {port} is in use on 127\.0\.0\.1:{port}: .* such as --listen '127\.0\.0\.1:\d+'"
        with pytest.raises(ConnectionFailed, match=words):
            await serve(tmp_path / "other", service.address, 10.0)
        assert not (tmp_path / "other").exists()

    story(tmp_path, scene)


def test_a_worker_with_a_wrong_address_is_cut_off(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        for addresses, words in ([], "no address"), (["no port:x"], "address was refused"):
            member = await Member.dial(service, await identity(service, folder, "lab-1", "worker"))
            member.say(Register(DEVICE, "lab", addresses, "boot-1"))
            assert words in await member.lost()

    story(tmp_path, scene)


def test_a_broker_whose_store_another_one_took_over_tells_nobody_anything_and_ends(tmp_path: Path) -> None:
    folder = tmp_path / "broker"

    async def scene() -> None:
        async with broker(folder) as service:
            await registered(service, folder, "lab-1")
        with Store(folder) as store:
            service = BrokerService(folder, store, TIMEOUTS)
            await service.start("127.0.0.1:0")
            run = asyncio.create_task(service.run())
            (worker,) = await registered(service, folder, "lab-1")
            (folder / LOCK_FILE).unlink()
            with Store(folder) as other:
                before = list(other.events())
                late = await PretendedWorker.join(service, folder, "lab-1")
                with pytest.raises(StoreError, match="was taken over by another broker"):
                    await asyncio.wait_for(run, 60)
                await service.stop()
                for member in (late, worker):
                    assert "shutting down" in await member.lost()
                assert late.silent
                assert list(other.events()) == before

    asyncio.run(scene())


def test_a_broker_that_stops_amid_a_commit_lets_it_reach_the_disk(tmp_path: Path) -> None:
    class SlowStore(Store):
        writing = threading.Event()
        allowed = threading.Event()

        def append(self, *given: Any) -> None:
            self.writing.set()
            assert self.allowed.wait(60)
            super().append(*given)

    async def scene() -> None:
        folder = tmp_path / "broker"
        with SlowStore(folder) as store:
            service = BrokerService(folder, store, TIMEOUTS)
            await service.start("127.0.0.1:0")
            run = asyncio.create_task(service.run())
            worker = await PretendedWorker.join(service, folder, "lab-1")
            assert await asyncio.to_thread(store.writing.wait, 60)
            run.cancel()
            await asyncio.sleep(0.05)
            assert not run.done()
            store.allowed.set()
            with pytest.raises(asyncio.CancelledError):
                await run
            await service.stop()
            await worker.lost()
            assert len(list(store.events())) == 1

    asyncio.run(scene())


def test_a_broker_that_was_replaced_ends_with_one_line(tmp_path: Path) -> None:
    async def scene() -> None:
        folder = tmp_path / "broker"
        with Store(folder) as store:
            service = BrokerService(folder, store, TIMEOUTS)
            await service.start("127.0.0.1:0")
            run = asyncio.create_task(service.run())
            liar = await PretendedWorker.join(service, folder, "lab-1", generation=7, seal=b"made up")
            assert "names generation 7 of the broker, but cannot show it" in await liar.lost()
            worker = await PretendedWorker.join(service, folder, "lab-1")
            assert (await worker.hear(Registered)).generation == store.epoch == 1
            seal = service._authority.seal(7)  # as another broker with this authority has told it
            await PretendedWorker.join(service, folder, "lab-2", generation=7, seal=seal)
            words = (
                "another broker has taken over this fleet: worker lab-2 has heard generation 7, this one is 1"
            )
            with pytest.raises(FarflungError, match=words):
                await asyncio.wait_for(run, 60)
            await service.stop()

    asyncio.run(scene())
