"""A submitter that loses its broker or its links finds back to its job; broker and workers are pretended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from farflung.client.api.job import Job
from farflung.client.capture.prepared import Prepared, prepare
from farflung.client.output.checkpoints.store import CheckpointStore
from farflung.client.output.history import Recorded, effective_rows
from farflung.client.output.progress import Observer
from farflung.client.output.records import NO_BASE, Summary
from farflung.client.output.run_folder import RunFolder
from farflung.client.output.run_record import RunOptions, RunRecord, read_record
from farflung.client.run.broker_client import Lost
from farflung.client.run.checkpointing import NEVER, Checkpointing, Place
from farflung.client.run.connection import Connection
from farflung.client.run.events import AttemptLost
from farflung.client.run.returns import MOST_DENIED, MOST_IN_VAIN, PlaceGone, RunLeft
from farflung.client.run.submitter import Submitter
from farflung.errors import ConnectionFailed, JobRefused
from farflung.plans import Placement, Plan
from farflung.protocol.messages import (
    Accepted,
    Cancel,
    Collected,
    Collecting,
    Denied,
    Ended,
    Message,
    Planned,
    Return,
    Running,
    Stalled,
    Submit,
    UnitDone,
)
from farflung.runtime.optimizers.declared import SGD
from farflung.transport.timeouts import Timeouts

LEASE_SECONDS = 0.2
STEPS = 4


class Items:
    """Eight fixed items."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.full((2,), float(index))}


class Net(nn.Module):
    """One weight matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).square().mean()


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    torch.manual_seed(1)
    return prepare(
        Job(model=Net(), data=Items(), batch=4, microbatches=2, steps=STEPS, optimizer=SGD(lr=0.1))
    )


class Broker:
    """Stands for the connection to a broker: keeps what is said to it, and can be away."""

    address = "127.0.0.1:7700"
    routes = None
    timeouts = Timeouts(LEASE_SECONDS)

    def __init__(self, hear: Callable[[Any], None]) -> None:
        self.say = hear
        self.heard: asyncio.Queue[Message] = asyncio.Queue()
        self.is_open = False
        self.comes_back = asyncio.Event()
        self.sessions = 0

    async def open(self) -> None:
        self.is_open = True
        self.sessions += 1

    def send(self, message: Message) -> None:
        if self.is_open:
            self.heard.put_nowait(message)

    def introduce(self, message: Message) -> None:
        """See `Connection`."""
        self.is_open = True
        self.send(message)

    def lost(self, is_known: bool) -> bool:
        self.is_open = False
        return True

    async def reopen(self, patience_seconds: float) -> None:
        try:
            async with asyncio.timeout(patience_seconds):
                await self.comes_back.wait()
        except TimeoutError:
            raise ConnectionFailed("127.0.0.1:7700 refused the connection") from None
        self.comes_back.clear()
        self.sessions += 1

    async def close(self, reason: str) -> None:
        self.is_open = False

    async def hears(self, kind: type[Message]) -> Any:
        """The next message that is said to it, which must be of this kind."""
        message = await asyncio.wait_for(self.heard.get(), 20)
        assert isinstance(message, kind), message
        return message


class Links:
    """Stands for an attempt: reaches all workers at once and never ends to feed them."""

    made: list[Links]

    def __init__(self, prepared: Prepared, planned: Planned, start: Any, *_: Any) -> None:
        self.planned, self.start = planned, start
        self.is_linked, self.is_fed, self.bytes_sent, self.base_bytes = True, False, 0, NO_BASE
        self.is_feeding, self.is_closed = False, False
        self.made.append(self)

    async def watch_loading(self, timeouts: Timeouts, say: Callable[[Stalled], None]) -> None:
        pass

    async def load(self, routes: None) -> None:
        pass

    async def feed(self) -> None:
        self.is_feeding = True
        try:
            await asyncio.Event().wait()
        finally:
            self.is_feeding = False

    async def trained_state(self, updated: bool) -> Any:
        await asyncio.Event().wait()

    async def close(self, reason: str) -> None:
        self.is_closed = True


class Words(Observer):
    """Keeps what the user is shown."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warned(self, words: str) -> None:
        self.warnings.append(words)


class Scene:
    """A submitter, and the broker that it speaks with."""

    def __init__(self, submitter: Submitter, observer: Words) -> None:
        self.submitter = submitter
        self.observer = observer
        self.running: asyncio.Task[Summary]

    @property
    def broker(self) -> Broker:
        """What the submitter takes for its connection."""
        return self.submitter._connection  # type: ignore[return-value]

    def feeds(self) -> bool:
        """Whether the newest attempt is fed."""
        return bool(Links.made) and Links.made[-1].is_feeding

    def done(self, *units: int, attempt: int = 1) -> None:
        """Decide these units."""
        for unit in units:
            self.broker.say(UnitDone("job-1", attempt, unit, float(unit), 1.0, 10))

    async def begins(self) -> None:
        """Accept the job, plan it and let it run."""
        submit = await self.broker.hears(Submit)
        assert submit.run and submit.patience_seconds
        for message in (Accepted("job-1", "planning"), planned(1), Running("job-1", 1)):
            self.broker.say(message)

    async def loses_broker(self) -> None:
        """End the session, and wait until the submitter knows."""
        self.broker.say(Lost("broker", "the process at the other end may have died"))
        await self.eventually(lambda: not self.broker.is_open)

    async def eventually(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    @property
    def rows(self) -> list[tuple[int, int]]:
        """Step and attempt of each row that counts."""
        found = effective_rows(self.submitter.recorder.folder.path)
        return [(row.step, row.attempt) for row in found]

    def events(self) -> list[str]:
        path = self.submitter.recorder.folder.path / "events.jsonl"
        return [json.loads(line)["event"] for line in path.read_text().splitlines()]


def planned(attempt: int, unit: int = 0, keeps: bool = False) -> Planned:
    plan = Plan(placements=[Placement(0, ["a"], 1.0, 1, 24)], edges=[], microbatches=2, window=1)
    return Planned("job-1", attempt, plan, [[]], {"a": []}, unit=unit, keeps=keeps, reason="links were lost")


def play(
    prepared: Prepared,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    scenario: Callable[[Scene], Awaitable[None]],
    place: Place | None = None,
    **options: Any,
) -> None:
    """Run a submitter and `scenario` beside it."""
    monkeypatch.setattr("farflung.client.run.submitter.Connection", lambda identity, hear: Broker(hear))
    monkeypatch.setattr("farflung.client.run.attempts.Attempt", Links)
    Links.made = []

    async def run() -> None:
        made = RunFolder.reopen(folder) if (folder / "events.jsonl").exists() else RunFolder.create(folder)
        if not (folder / "run.json").exists():
            made.write_record(RunRecord.of(Path("job.py"), RunOptions()))
        store = CheckpointStore.open(folder / "checkpoints")
        checkpointing = Checkpointing(NEVER, store, "a-run", place=place)
        observer = Words()
        submitter = Submitter(prepared, None, made, observer, checkpointing=checkpointing, **options)  # type: ignore[arg-type]
        scene = Scene(submitter, observer)
        scene.running = asyncio.create_task(submitter.run())
        try:
            await scenario(scene)
        finally:
            scene.running.cancel()
            await asyncio.gather(scene.running, return_exceptions=True)
            made.close()

    asyncio.run(run())


@pytest.fixture
def played(prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def with_scenario(scenario: Callable[[Scene], Awaitable[None]], **options: Any) -> None:
        play(prepared, tmp_path / "run", monkeypatch, scenario, **options)

    return with_scenario


def test_a_broker_that_comes_back_finds_its_submitter_still_feeding(played: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.begins()
        scene.done(0)
        await scene.eventually(lambda: len(scene.rows) == 1)
        await scene.loses_broker()
        assert scene.feeds() and scene.submitter.waits_for_broker
        scene.broker.comes_back.set()
        assert await scene.broker.hears(Return) == Return("job-1", 1, 1)
        scene.broker.say(Accepted("job-1", "running"))
        scene.done(1)
        scene.broker.say(Running("job-1", 1))
        scene.done(2)
        await scene.eventually(lambda: len(scene.rows) == 3)
        assert scene.feeds() and len(Links.made) == 1
        assert scene.rows == [(1, 1), (2, 1), (3, 1)]
        seconds = [row.seconds for row in effective_rows(scene.submitter.recorder.folder.path)]
        assert seconds[0] is not None and seconds[1:] == [None, None]
        (warning,) = scene.observer.warnings
        assert "the broker at 127.0.0.1:7700 was lost" in warning and "at most 1 day" in warning
        assert {"broker lost", "returned"} <= set(scene.events())

    played(scenario)


def test_a_job_that_no_broker_accepted_is_submitted_again(played: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        first = await scene.broker.hears(Submit)
        await scene.loses_broker()
        scene.broker.comes_back.set()
        assert await scene.broker.hears(Submit) == first

    played(scenario)


def test_a_broker_that_stays_away_ends_the_run_when_patience_is_over(played: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.begins()
        await scene.loses_broker()
        summary = await scene.running
        assert summary.state == "failed"
        assert "the broker did not come back within" in summary.reason and "refused" in summary.reason

    played(scenario, patience_seconds=0.05)


def test_the_broker_of_a_local_fleet_is_not_awaited(played: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.begins()
        scene.broker.say(Lost("broker", "killed"))
        summary = await scene.running
        assert (summary.state, summary.reason) == ("failed", "the broker at 127.0.0.1:7700 was lost: killed")

    played(scenario, closed=True)


@pytest.mark.parametrize("steps", [0, 1])
def test_a_stop_before_the_first_step_collects_no_weights(played: Callable[..., None], steps: int) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.begins()
        for unit in range(steps):
            scene.done(unit)
        await scene.eventually(lambda: len(scene.rows) == steps)
        scene.submitter.stop("stopped by the user")
        assert (await scene.broker.hears(Cancel)).collect is bool(steps)
        scene.broker.say(Ended("job-1", "cancelled", "stopped by the user"))
        summary = await scene.running
        assert (summary.state, summary.steps, summary.weights_step) == ("cancelled", steps, None)

    played(scenario)


def test_a_stop_is_said_again_to_a_broker_that_was_away(played: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.begins()
        await scene.loses_broker()
        scene.submitter.stop("stopped by the user")
        scene.broker.comes_back.set()
        await scene.broker.hears(Return)
        scene.broker.say(Accepted("job-1", "running"))
        assert (await scene.broker.hears(Cancel)).collect
        scene.broker.say(Ended("job-1", "cancelled", "stopped by the user"))
        assert (await scene.running).state == "cancelled"

    played(scenario)


def test_lost_links_are_made_anew_and_what_was_on_its_way_counts_once(played: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.begins()
        scene.done(0)
        await scene.eventually(lambda: len(scene.rows) == 1)
        scene.broker.say(AttemptLost(1, "worker a was lost: no other link to it"))
        assert await scene.broker.hears(Return) == Return("job-1", 0, 1)
        assert scene.broker.sessions == 1 and Links.made[0].is_closed
        scene.done(1)
        for message in (Running("job-1", 1), Accepted("job-1", "running")):
            scene.broker.say(message)
        scene.done(1)
        for message in (planned(2, unit=2, keeps=True), Running("job-1", 2)):
            scene.broker.say(message)
        scene.done(2, attempt=2)
        await scene.eventually(lambda: len(scene.rows) == 3)
        assert scene.rows == [(1, 1), (2, 1), (3, 2)]
        assert len(Links.made) == 2 and scene.feeds()

    played(scenario)


def test_workers_that_are_lost_again_and_again_end_the_run(played: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.begins()
        for attempt in range(1, MOST_IN_VAIN + 2):
            await scene.eventually(scene.feeds)
            scene.broker.say(AttemptLost(attempt, "worker a was lost: no other link to it"))
            if attempt > MOST_IN_VAIN:
                break
            await scene.broker.hears(Return)
            new = attempt + 1
            for message in (Accepted("job-1", ""), planned(new, keeps=True), Running("job-1", new)):
                scene.broker.say(message)
        summary = await scene.running
        assert summary.state == "failed" and summary.reason.startswith("worker a was lost")

    played(scenario)


def test_a_worker_that_the_broker_lost_too_costs_no_return(played: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.begins()
        await scene.eventually(scene.feeds)
        scene.broker.say(AttemptLost(1, "worker a was lost"))
        scene.broker.say(planned(2, keeps=True))
        await asyncio.sleep(2 * LEASE_SECONDS)
        assert scene.broker.heard.empty()

    played(scenario)


def test_a_worker_that_the_broker_waits_for_is_no_second_failure(played: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.begins()
        await scene.eventually(scene.feeds)
        scene.broker.say(Accepted("job-1", "waiting for a to return with its disk", away=["a"]))
        scene.broker.say(AttemptLost(1, "worker a was lost: no other link to it", "a"))
        await asyncio.sleep(3 * LEASE_SECONDS)
        assert scene.broker.heard.empty() and not scene.observer.warnings and scene.feeds()
        scene.broker.say(Accepted("job-1", "running"))  # it is back, and only its link to here is lost
        assert await scene.broker.hears(Return) == Return("job-1", 0, 0)
        (warning,) = scene.observer.warnings
        assert "Asking the broker for new links" in warning

    played(scenario)


PLACE = Place("job-1", Recorded(2, 2, 1.5))


def test_a_new_process_takes_its_place_and_repeats_no_step(played: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        assert await scene.broker.hears(Return) == Return("job-1", 0, 2)
        scene.broker.say(Accepted("job-1", "running"))
        scene.done(2)
        scene.broker.say(planned(2, unit=3, keeps=True))
        scene.broker.say(Running("job-1", 2))
        scene.done(3, attempt=2)
        scene.broker.say(Collecting("job-1", 2, 4, "done", ""))
        await scene.eventually(lambda: len(scene.rows) == 2)
        assert scene.rows == [(3, 1), (4, 2)]
        scene.broker.say(Ended("job-1", "done", ""))
        summary = await scene.running
        assert (summary.state, summary.steps, summary.job) == ("done", 4, "job-1")

    played(scenario, place=PLACE)


@pytest.mark.parametrize(
    "answer", [Ended("job-1", "failed", "too few workers"), Denied("me has no job job-1 here")]
)
def test_a_place_that_is_gone_is_not_taken_and_nothing_is_written(
    played: Callable[..., None], answer: Message, tmp_path: Path
) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.broker.hears(Return)
        scene.broker.say(answer)
        with pytest.raises(PlaceGone, match="job-1"):
            await scene.running
        assert scene.broker.heard.empty() and scene.events() == []
        assert not (tmp_path / "run" / "summary.json").exists()

    played(scenario, place=PLACE)


def test_a_place_that_another_process_holds_is_asked_for_a_few_times(played: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        for _ in range(MOST_DENIED):
            await scene.broker.hears(Return)
            scene.broker.say(Denied("another process is the submitter of job-1", for_now=True))
        summary = await scene.running
        assert (
            summary.reason
            == "the broker refused this process as submitter: another process is the submitter of job-1"
        )
        assert scene.broker.heard.empty()  # and the other one's job goes on

    played(scenario, place=PLACE)


def test_a_job_that_the_broker_does_not_take_is_an_error(played: Callable[..., None], tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.broker.hears(Submit)
        scene.broker.say(Denied("ana has 100 jobs here"))
        with pytest.raises(JobRefused, match="the broker refused the job: ana has 100 jobs"):
            await scene.running
        assert scene.broker.heard.empty() and scene.events() == ["submitted", "ended"]

    played(scenario)


def test_who_leaves_leaves_the_job_to_the_broker(played: Callable[..., None], tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.begins()
        await scene.eventually(scene.feeds)
        scene.submitter.leave("the terminal was closed")
        with pytest.raises(RunLeft, match="the terminal was closed"):
            await scene.running
        assert scene.broker.heard.empty() and scene.events()[-1] == "left"
        assert not (tmp_path / "run" / "summary.json").exists()

    played(scenario)


def test_the_folder_knows_the_job_once_it_is_accepted(played: Callable[..., None], tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        assert read_record(tmp_path / "run").submitted is None
        await scene.begins()
        await scene.eventually(lambda: bool(Links.made))
        submitted = read_record(tmp_path / "run").submitted
        assert submitted is not None
        assert (submitted.job, submitted.broker) == ("job-1", "127.0.0.1:7700")
        assert submitted.identity.training.steps == STEPS

    played(scenario)


def test_collected_weights_are_said_again(played: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.begins()
        await scene.eventually(scene.feeds)
        scene.submitter._has_weights, scene.submitter._collected = True, Collected("job-1", 1)
        await scene.loses_broker()
        scene.broker.comes_back.set()
        await scene.broker.hears(Return)
        scene.broker.say(Accepted("job-1", "collecting"))
        assert await scene.broker.hears(Collected) == Collected("job-1", 1)

    played(scenario)


def test_nothing_is_said_to_a_new_session_before_the_return() -> None:
    """The broker holds the job until then, and denies everything else."""

    class Session:
        """Stands for the session with the broker."""

        timeouts = Timeouts(LEASE_SECONDS)

        def __init__(self) -> None:
            self.sent: list[Message] = []

        def send(self, message: Message) -> None:
            self.sent.append(message)

    async def scenario() -> None:
        connection = Connection(None, lambda message: None)  # type: ignore[arg-type]
        sessions: list[Session] = []

        async def opened(*_: object) -> Session:
            sessions.append(Session())
            return sessions[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("farflung.client.run.connection.open_broker_session", opened)
            await connection.reopen(1.0)
        connection.send(Cancel("job-1", "", True))
        connection.introduce(Return("job-1", 1, 1))
        connection.send(Cancel("job-1", "", True))
        assert sessions[0].sent == [Return("job-1", 1, 1), Cancel("job-1", "", True)]
        assert connection.lost(is_known=True) and not connection.is_open

    asyncio.run(scenario())
