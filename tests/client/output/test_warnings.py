"""What a recorder says to the user while a run goes on: each thing once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.client.output.test_run_metrics import job
from tests.golden.samples import samples

from farflung.cli.render.plan import planned_lines
from farflung.client.output.progress import Observer
from farflung.client.output.recorder import Recorder
from farflung.client.output.records import Outcome
from farflung.client.output.run_folder import RunFolder
from farflung.plans import Placement, Plan, Prediction
from farflung.protocol.messages import Considered, Planned, RolledBack, UnitDone
from farflung.protocol.submitter import CheckSaid
from farflung.protocol.traffic import LinkTraffic


class Listener(Observer):
    """Remembers warnings and notes."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.notes: list[str] = []

    def noted(self, words: str) -> None:
        self.notes.append(words)

    def warned(self, words: str) -> None:
        self.heard.append(words)


def planned(attempt: int, *workers: str) -> Planned:
    placements = [Placement(segment, [worker], 1, 0, 1) for segment, worker in enumerate(workers)]
    plan = Plan(placements, [], 2, 1)
    return Planned("job-1", attempt, plan, [[] for _ in workers], {worker: [] for worker in workers})


def test_a_run_that_shrinks_to_one_worker_says_once_that_nothing_protects_it(tmp_path: Path) -> None:
    async def scene(listener: Listener) -> None:
        books = Recorder(job(), RunFolder.create(tmp_path / "run"), listener)
        await books.planned(planned(1, "a", "b"))
        assert not listener.heard
        await books.planned(planned(2, "a"))
        await books.planned(planned(3, "a"))
        books.folder.close()

    asyncio.run(scene(listener := Listener()))
    (words,) = listener.heard
    assert "goes on with a alone" in words and "newest checkpoint" in words


def test_a_slow_worker_is_named_once_and_a_move_by_the_rollback_alone(tmp_path: Path) -> None:
    considered = Considered("job-1", 1, 5, False, "stays", ["b computes 2 s a step"])

    async def scene(listener: Listener) -> None:
        books = Recorder(job(), RunFolder.create(tmp_path / "run"), listener)
        await books.considered(considered)
        await books.considered(msgspec.structs.replace(considered, slow=["b computes 3 s a step"]))
        await books.considered(msgspec.structs.replace(considered, moves=True, words="moves", slow=[]))
        await books.considered(considered)
        books.folder.close()

    asyncio.run(scene(listener := Listener()))
    assert listener.heard == ["b computes 2 s a step", "b computes 2 s a step"]  # it was as fast as before


def test_a_replay_is_told_in_steps(tmp_path: Path) -> None:
    replay = msgspec.structs.replace(
        planned(2, "a", "b"), keeps=True, reason="worker c was lost", replayers=["b"], unit=3, replay_from=0
    )

    async def scene(listener: Listener) -> None:
        books = Recorder(job(), RunFolder.create(tmp_path / "run"), listener)
        await books.regrouping(replay)
        books.folder.close()

    asyncio.run(scene(listener := Listener()))
    (words,) = listener.heard
    steps = sum(bool(unit and unit.train) for unit in map(job().training().units().at, range(3)))
    assert words.endswith(f"b runs {steps} step{'s' * (steps != 1)} again; the others keep their state")


@pytest.mark.parametrize("in_order", [True, False])
def test_only_what_went_wrong_is_a_warning(tmp_path: Path, in_order: bool) -> None:
    kept = msgspec.structs.replace(
        planned(2, "a", "b"), keeps=True, reason="worker c left", replayers=["b"], in_order=in_order
    )

    async def scene(listener: Listener) -> None:
        books = Recorder(job(), RunFolder.create(tmp_path / "run"), listener)
        await books.regrouping(kept)
        await books.rolled_back(RolledBack("job-1", 2, 0, 0, "the job moves", True, in_order))
        await books.recut(3, is_coded=not in_order)
        books.folder.close()

    asyncio.run(scene(listener := Listener()))
    said = listener.notes if in_order else listener.heard
    assert len(said) == 3 and not (listener.heard if in_order else listener.notes)


def test_a_run_keeps_its_prediction_and_its_links_when_a_worker_is_replaced(tmp_path: Path) -> None:
    prediction = Prediction("auto", 0.5, "device a, busy 90%")

    async def scene() -> None:
        books = Recorder(job(validation=None), RunFolder.create(tmp_path / "run"), Observer())
        await books.planned(msgspec.structs.replace(planned(1, "a", "b"), prediction=prediction))
        await books.running(0)
        first = UnitDone("job-1", 1, 0, 1.0, 1.0, 9, links=[LinkTraffic("a", "b", 400, 100)])
        await books.unit_done(first, 0)
        await books.planned(msgspec.structs.replace(planned(2, "a", "c"), keeps=True, replayers=["c"]))
        await books.running(0)
        second = UnitDone("job-1", 2, 1, 1.0, 1.0, 9, links=[LinkTraffic("a", "c", 400, 100)])
        await books.unit_done(second, 0)
        summary = books.metrics.summary("done", "", "job-1", 1.0)
        assert (summary.predicted_step_seconds, summary.scheduler, summary.ratio) == (0.5, "auto", 4.0)
        assert [(link.source, link.target) for link in summary.links] == [("a", "b"), ("a", "c")]
        await books.planned(msgspec.structs.replace(planned(3, "a", "d"), keeps=True, recut=True))
        assert books.metrics.prediction is None  # it was of another cut
        books.folder.close()

    asyncio.run(scene())


def test_steps_that_ended_while_the_submitter_was_away_are_counted(tmp_path: Path) -> None:
    async def scene(listener: Listener) -> None:
        books = Recorder(job(steps=9, validation=None), RunFolder.create(tmp_path / "run"), listener)
        await books.goes_on_at(3)
        books.folder.close()

    asyncio.run(scene(listener := Listener()))
    assert listener.heard == [
        "this process was away while 3 steps ended, up to step 3: the run's metrics lack them"
    ]


def test_an_attempt_on_the_plan_of_before_says_nothing_of_predictions() -> None:
    first = msgspec.structs.replace(samples(Planned)[0], attempt=1, prediction=None)
    assert any("not measured yet" in line for line in planned_lines(first))
    again = msgspec.structs.replace(first, attempt=2)
    assert not any("not measured yet" in line for line in planned_lines(again))


def agreed(first: int, worker: str = "a") -> CheckSaid:
    return CheckSaid("job-1", 1, "checked", worker, "d", first=first, over=first + 2, agrees=True)


def unchecked(first: int, words: str = "a's part is not checked, because none is idle") -> CheckSaid:
    return CheckSaid("job-1", 1, words, "a", first=first, over=first + 2)


def heard(folder: RunFolder, *messages: CheckSaid) -> list[str]:
    """What a part of a run that hears these of its checks, and is stopped, says."""

    async def scene(listener: Listener) -> None:
        books = Recorder(job(), folder, listener)
        for message in messages:
            await books.check_said(message)
        books.close(Outcome("cancelled", "Ctrl-C"))
        folder.close()

    asyncio.run(scene(listener := Listener()))
    return listener.notes


def test_checks_are_heard_of_at_the_end_also_of_a_run_that_is_stopped(tmp_path: Path) -> None:
    said = heard(RunFolder.create(tmp_path / "run"), agreed(0), agreed(2))
    assert said == ["2 intervals of workers ran again on others, which found the same"]
    assert heard(RunFolder.create(tmp_path / "other")) == []


def test_what_is_not_checked_is_heard_of_once_and_counted_at_the_end(tmp_path: Path) -> None:
    drawn = (agreed(0), unchecked(2), agreed(0, "b"), unchecked(4), unchecked(6))
    said = heard(RunFolder.create(tmp_path / "run"), *drawn)
    assert said == [
        unchecked(2).words,
        "2 of 5 drawn intervals of workers ran again on others, which found the same, 3 were not checked"
        " (see events.jsonl)",
    ]


def test_a_resumed_run_counts_what_its_earlier_parts_heard_of_checks(tmp_path: Path) -> None:
    """A check that a first checker could not make is still made, and so is that of a step done again."""
    heard(RunFolder.create(tmp_path / "run"), agreed(0), unchecked(2), unchecked(4))
    other = CheckSaid("job-1", 2, "d found other work", "b", "d", first=4, over=6)
    general = CheckSaid("job-1", 2, "nothing is checked, because none is idle")
    said = heard(RunFolder.reopen(tmp_path / "run"), agreed(4), other, general)
    assert said[-1] == (
        "2 of 4 drawn intervals of workers ran again on others, which found the same,"
        " others found other work in 1, 1 was not checked (see events.jsonl)"
    )
