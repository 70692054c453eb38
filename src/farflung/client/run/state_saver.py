"""Take in the state that an attempt's workers send, and save it as weights and as checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from farflung.client.capture.prepared import Prepared
from farflung.client.output.recorder import Recorder
from farflung.client.output.result import save_result, step_of_result
from farflung.client.run.attempt import Attempt
from farflung.client.run.checkpoints import RunCheckpoints, Version
from farflung.client.run.events import WeightsSaved
from farflung.client.run.state_collector import ReceivedState
from farflung.runtime.optimizers.slots import EMA


class StateSaver:
    """Saves the state after the newest step that is applied when this is made; then calls `saved`."""

    def __init__(
        self,
        prepared: Prepared,
        attempt: Attempt,
        checkpoints: RunCheckpoints,
        recorder: Recorder,
        saved: Callable[[WeightsSaved], None],
    ) -> None:
        self._prepared = prepared
        self._attempt = attempt
        self._checkpoints = checkpoints
        self._recorder = recorder
        self._saved = saved
        metrics = recorder.metrics
        self._version = Version(
            metrics.steps, metrics.train_loss, attempt.planned, metrics.monitored, metrics.is_evaluated
        )
        best = metrics.best
        self._is_best = best is not None and best.step == metrics.steps

    async def collect(self, step: int, began_at: int) -> None:
        """Receive the state at the end, after `step` steps, and save weights and checkpoint.

        An attempt that began at this step leaves the checkpoint as it is.
        """
        state = await self._attempt.trained_state(updated=step > 0)
        if not self._prepared.emulated:
            await self._save_last(state, step)
        if self._checkpoints.policy.end and step > began_at:
            await self._checkpoints.save(self._version, state, self._recorder)
        self._saved(WeightsSaved(self._version.planned.attempt, step))

    async def save_copy(self, unit: int) -> None:
        """Receive the copy after `unit`, and save it as a checkpoint."""
        state = self._copied(unit)
        await self._checkpoints.save_copy(state, unit, self._version, self._recorder)

    async def _copied(self, unit: int) -> ReceivedState:
        """The copy after `unit`. If its weights are the best ones, they become the run's result."""
        state = await self._attempt.copied_state(unit)
        if self._is_best:
            await self._save_weights(state, self._version.step)
        return state

    async def _save_last(self, state: ReceivedState, step: int) -> None:
        """Save the last weights, unless better ones of an earlier step are to stay."""
        metrics, folder = self._recorder.metrics, self._recorder.folder
        if (best := metrics.best) is None or best.step == step:
            await self._save_weights(state, step)
        elif await asyncio.to_thread(step_of_result, folder) == best.step:
            metrics.weights_step = best.step
        else:
            self._recorder.observer.warned(
                f"the weights of step {best.step}, the best ones, did not come home: those of step {step} are"
                f" saved instead"
            )
            await self._save_weights(state, step)

    async def _save_weights(self, state: ReceivedState, step: int) -> None:
        weights = {key.name: tensor for key, tensor in state.tensors.items() if not key.slot}
        best = self._recorder.metrics.best
        note = "" if best is None or best.step != step else f"{best.metric} {best.value!r}"
        averages = {key.name: tensor for key, tensor in state.tensors.items() if key.slot == EMA}
        folder, prepared = self._recorder.folder, self._prepared
        await asyncio.to_thread(save_result, folder, prepared, weights, step, note, averages)
        self._recorder.metrics.weights_step = step
