"""Which weights a run leaves in its folder, and that no two saves of them write at the same time."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import farflung
from farflung.client.capture.check import capture_job
from farflung.client.capture.prepared import Prepared
from farflung.client.output.checkpoints.store import CheckpointStore
from farflung.client.output.progress import Observer
from farflung.client.output.recorder import Recorder
from farflung.client.output.records import Claim
from farflung.client.output.result import save_result, step_of_best
from farflung.client.output.run_folder import RunFolder
from farflung.client.output.tensor_file import read_tensors
from farflung.client.output.weights import save_weights
from farflung.client.run import state_saver
from farflung.client.run.attempt import Attempt
from farflung.client.run.checkpointing import Checkpointing, CheckpointPolicy
from farflung.client.run.checkpoints import RunCheckpoints
from farflung.client.run.state_collector import ReceivedState
from farflung.client.run.state_saver import StateSaver
from farflung.errors import RunFailed
from farflung.plans import Edge, Placement, Plan
from farflung.protocol.messages import Kept, Message, Planned
from farflung.runtime.monitoring import Monitored
from farflung.runtime.state import StateKey
from farflung.transport.timeouts import Timeouts

EVERY = 10
"""Steps between two evaluations."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return functional.mse_loss(self.layer(x), x)


def job(**changes: Any) -> farflung.Job:
    items = [{"x": torch.ones(2)}] * 4
    fields: dict[str, Any] = {
        "model": Net(),
        "data": items,
        "validation": items,
        "optimizer": farflung.SGD(lr=0.1),
        "batch": 2,
        "microbatches": 1,
        "steps": 4 * EVERY,
        "validate_every": EVERY,
        "keep_best": True,
    }
    return farflung.Job(**{**fields, **changes})


class _Sends(Attempt):
    """An attempt whose workers send tensors that are filled with the number of the run's step."""

    def __init__(self, prepared: Prepared, recorder: Recorder) -> None:
        plan = Plan([Placement(0, ["a"], 1, 8, 3)], [], microbatches=1, window=1)
        self.planned = Planned("job-1", 1, plan, [["layer.weight", "layer.bias"]], {})
        self._state, self._metrics = prepared.state, recorder.metrics

    async def copied_state(self, unit: int) -> ReceivedState:
        return await self.trained_state(True)

    async def trained_state(self, updated: bool) -> ReceivedState:
        filled = float(self._metrics.steps)
        return ReceivedState(
            {StateKey(name): torch.full_like(one, filled) for name, one in self._state.items()}, {}
        )


class _Warnings(Observer):
    def __init__(self) -> None:
        self.words: list[str] = []

    def warned(self, words: str) -> None:
        self.words.append(words)


class Submitting:
    """A submitter's part of a run in `folder` that saves what its monitor finds best, and `checkpointing`."""

    def __init__(self, folder: Path, checkpointing: Checkpointing | None = None, **changes: Any) -> None:
        made = job(**changes)
        self.prepared = Prepared(made, capture_job(made).graph, b"", made.model.state_dict(), ())
        self.observer = _Warnings()
        self.recorder = Recorder(made, RunFolder.create(folder), self.observer)
        self.sent: list[Message] = []
        training = self.prepared.training
        self.checkpoints = RunCheckpoints(checkpointing, self.prepared, training, self.sent.append)
        self.attempt = _Sends(self.prepared, self.recorder)

    def saver(self, step: int, best: int | None) -> StateSaver:
        """Saves the state of this step, at which the best evaluation is that of the weights of `best`."""
        self.recorder.metrics.steps = step
        found = Monitored() if best is None else Monitored(1.0 / best, best)
        self.recorder.metrics.monitored = (found,)
        attempt, timeouts = self.attempt, Timeouts()
        return StateSaver(
            self.prepared, attempt, self.checkpoints, self.recorder, timeouts, lambda saved: None
        )

    async def copied(self, step: int) -> None:
        """The best weights so far are those of this step, and come home."""
        await self.saver(step, step).save_copy(step)

    async def ended(self, step: int, best: int | None) -> tuple[int | None, float]:
        """The run ends at this step: the step in the metadata of its weights, and the number in them."""
        await self.saver(step, best).collect(step, 0)
        await self.checkpoints.close()
        tensors, named = read_tensors(self.recorder.folder.model_path)
        assert named == self.recorder.metrics.weights_step
        return named, tensors["layer.bias"][0].item()


def test_the_best_weights_stay_if_the_last_ones_are_worse(tmp_path: Path) -> None:
    async def ends() -> None:
        run = Submitting(tmp_path / "run")
        await run.copied(20)
        assert await run.ended(35, best=20) == (20, 20.0)
        assert not run.observer.words and step_of_best(run.recorder.folder, "loss") == 20

    asyncio.run(ends())


def test_the_last_weights_are_saved_if_they_are_the_best_or_no_others_are_kept(tmp_path: Path) -> None:
    async def ends() -> None:
        better = Submitting(tmp_path / "better")
        await better.copied(20)
        assert await better.ended(40, best=40) == (40, 40.0)
        assert await Submitting(tmp_path / "early").ended(5, best=None) == (5, 5.0)
        all_lost = Submitting(tmp_path / "lost")
        assert await all_lost.ended(35, best=20) == (35, 35.0)
        assert "those of step 35 are saved instead" in all_lost.observer.words[0]

    asyncio.run(ends())


def test_best_weights_stay_though_the_broker_names_better_ones_that_did_not_come_home(
    tmp_path: Path,
) -> None:
    async def ends() -> None:
        run = Submitting(tmp_path / "run")
        await run.copied(20)
        assert await run.ended(45, best=40) == (20, 20.0)
        (words,) = run.observer.words
        assert (
            words == "the weights of step 40, the best ones, did not come home: those of step 20 stay instead"
        )

    asyncio.run(ends())


def test_best_weights_stay_if_better_ones_could_not_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: Any) -> None:
        raise RunFailed("the disk is full")

    async def ends() -> None:
        run = Submitting(tmp_path / "run")
        await run.copied(20)
        with monkeypatch.context() as patch:
            patch.setattr(state_saver, "save_result", refused)
            await run.copied(40)
        assert [one for one in run.sent if isinstance(one, Kept)][-1].unit == 40
        assert await run.ended(45, best=40) == (20, 20.0)

    asyncio.run(ends())


def test_a_job_that_keeps_its_last_weights_replaces_the_best_ones_of_the_run_it_resumes(
    tmp_path: Path,
) -> None:
    async def ends() -> None:
        run = Submitting(tmp_path / "run", keep_best=False)
        save_weights(run.recorder.folder.model_path, run.prepared.job.model, {}, {}, 20, "loss 1.0")
        run.saver(30, None)
        assert await run.ended(40, best=None) == (40, 40.0)

    asyncio.run(ends())


def test_no_two_saves_write_the_weights_at_once_if_the_first_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_began, second_began, under_way, most = threading.Event(), threading.Event(), 0, 0

    def slow(folder: RunFolder, *others: Any) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if first_began.is_set():
            second_began.set()
        first_began.set()
        second_began.wait(0.3)  # does not come where one save follows the other
        save_result(folder, *others)
        under_way -= 1

    async def ends() -> None:
        monkeypatch.setattr(state_saver, "save_result", slow)
        run = Submitting(tmp_path / "run")
        saving = asyncio.create_task(run.copied(20))
        await asyncio.to_thread(first_began.wait)
        saving.cancel()
        assert await run.ended(40, best=40) == (40, 40.0)

    asyncio.run(ends())
    assert most == 1


def test_weights_that_no_checker_has_seen_are_not_saved_where_all_is_checked(tmp_path: Path) -> None:
    async def ends() -> None:
        run = Submitting(tmp_path / "run", verify=1.0, keep_best=False)
        with pytest.raises(RunFailed, match="were not checked"):
            await run.ended(40, best=None)
        assert not run.recorder.folder.model_path.exists()
        run.recorder.metrics.steps = 40
        assert run.recorder.unchecked_note().endswith("(verify=1): train again")
        run.recorder.metrics.checkpoint_step = 20
        assert "go on from the checkpoint of step 20 (--resume)" in run.recorder.stored_note()

    asyncio.run(ends())


def test_the_weights_are_saved_before_this_machine_evaluates_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[bool, float]] = []

    def losses(*given: Any) -> None:
        asked.append((run.recorder.folder.model_path.exists(), given[-1]))

    async def ends() -> None:
        monkeypatch.setattr(state_saver, "losses_at_home", losses)
        *_, last = run.prepared.training.units()
        # Weights and bias of 40 make 120 of ones.
        run.recorder.metrics.claim = Claim(last._replace(microbatches=1), 119.0**2, 1.0)
        assert await run.ended(40, best=None) == (40, 40.0)

    run = Submitting(tmp_path / "run", keep_best=False)
    run.attempt.planned = msgspec.structs.replace(run.attempt.planned, validation_microbatches=1)
    asyncio.run(ends())
    ((is_saved, first_seconds),) = asked
    assert is_saved and first_seconds > 0  # as measured when the weights' loss was compared


@pytest.mark.parametrize(("noise", "home"), [(0.0, [0]), (0.5, [0]), (0.5, [0, 1])])
def test_a_loss_with_noise_in_it_is_not_held_against_the_weights(
    tmp_path: Path, noise: float, home: list[int]
) -> None:
    """There is none where no stranger takes part."""

    async def ends() -> None:
        *_, last = run.prepared.training.units()
        run.recorder.metrics.claim = Claim(last._replace(microbatches=1), 119.0**2 * 1.1, 1.0)
        if noise and len(home) < 2:
            assert await run.ended(40, best=None) == (40, 40.0)
        else:
            with pytest.raises(RunFailed, match="the weights that came home have a loss of"):
                await run.ended(40, best=None)

    run = Submitting(tmp_path / "run", keep_best=False, keep_home=["inputs"], home_noise=noise)
    planned = run.attempt.planned
    plan = msgspec.structs.replace(
        planned.plan,
        placements=[*planned.plan.placements[:1], Placement(1, ["another"], 1, 0, 1)],
        edges=[Edge(1, 0, 1, 8, True)],
        home=home,
    )
    run.attempt.planned = msgspec.structs.replace(planned, plan=plan)
    asyncio.run(ends())


def test_what_is_compared_with_the_end_is_a_checkpoint_from_before_it(tmp_path: Path) -> None:
    """A copy that was made at the end is as false as the weights that came home."""
    store = CheckpointStore.open(tmp_path / "checkpoints")

    async def found() -> list[tuple[str, float]]:
        run = Submitting(tmp_path / "run", Checkpointing(CheckpointPolicy(steps=20), store, "r"))
        for step in (20, 40):
            await run.copied(step)
        read = [await asyncio.to_thread(run.checkpoints.earlier, step) for step in (20, 40, 41)]
        await run.checkpoints.close()
        return [(one.words, one.state[StateKey("layer.bias")][0].item()) for one in read]

    (first, start), *later = asyncio.run(found())
    assert first == "at step 0" and start < 1
    assert later == [("in the checkpoint of step 20", 20.0), ("in the checkpoint of step 40", 40.0)]
