"""Take in the state that an attempt's workers send, and save it as weights and as checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from farflung.client.capture.prepared import Prepared
from farflung.client.output.recorder import Recorder
from farflung.client.output.result import save_result
from farflung.client.run.attempt import Attempt
from farflung.client.run.checkpoints import RunCheckpoints, Version
from farflung.client.run.events import WeightsSaved


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
        self._version = Version(metrics.steps, metrics.train_loss, attempt.planned)

    async def collect(self, step: int, began_at: int) -> None:
        """Receive the state at the end, after `step` steps, and save weights and checkpoint.

        An attempt that began at this step leaves the checkpoint as it is.
        """
        state = await self._attempt.trained_state(updated=step > 0)
        prepared = self._prepared
        if not prepared.emulated:
            weights = {key.name: tensor for key, tensor in state.tensors.items() if not key.slot}
            await asyncio.to_thread(save_result, self._recorder.folder, prepared, weights, step)
            self._recorder.metrics.weights_step = step
        if self._checkpoints.policy.end and step > began_at:
            await self._checkpoints.save(self._version, state, self._recorder)
        self._saved(WeightsSaved(self._version.planned.attempt, step))

    async def save_copy(self, unit: int) -> None:
        """Receive the copy after `unit`, and save it as a checkpoint."""
        await self._checkpoints.save_copy(self._attempt, unit, self._version, self._recorder)
