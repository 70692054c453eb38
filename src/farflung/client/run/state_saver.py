"""Take in the state that an attempt's workers send, and save it as weights and as checkpoints."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial

from farflung.client.capture.prepared import Prepared
from farflung.client.output.recorder import Recorder
from farflung.client.output.result import save_result, step_of_best
from farflung.client.run.attempt import Attempt
from farflung.client.run.checkpoints import RunCheckpoints, Version
from farflung.client.run.events import WeightsSaved
from farflung.client.run.home_losses import is_partly_evaluated, losses_at_home
from farflung.client.run.result_check import compared_loss, require_checked, require_finite
from farflung.client.run.state_collector import ReceivedState
from farflung.runtime.optimizers.slots import EMA
from farflung.runtime.state import StateKey
from farflung.schedule import Unit
from farflung.transport.timeouts import Timeouts


class StateSaver:
    """Saves the state after the newest step that is applied when this is made; then calls `saved`."""

    def __init__(
        self,
        prepared: Prepared,
        attempt: Attempt,
        checkpoints: RunCheckpoints,
        recorder: Recorder,
        timeouts: Timeouts,
        saved: Callable[[WeightsSaved], None],
    ) -> None:
        self._prepared = prepared
        self._attempt = attempt
        self._checkpoints = checkpoints
        self._recorder = recorder
        self._timeouts = timeouts
        self._saved = saved
        metrics = recorder.metrics
        self._version = Version(
            metrics.steps,
            metrics.train_loss,
            attempt.planned,
            metrics.monitored,
            metrics.is_evaluated,
            metrics.is_merged,
        )
        best = metrics.best
        self._is_best = best is not None and best.step == metrics.steps

    async def collect(
        self, step: int, began_at: int, checked: Mapping[tuple[int, StateKey], bytes] = {}
    ) -> None:
        """Receive the state at the end, after `step` steps, and save weights and checkpoint.

        Pieces of the state were `checked` to have these SHA-256, as in `require_checked`.

        An attempt that began at this step leaves the checkpoint as it is.
        """
        state = await self._attempt.trained_state(updated=step > 0)
        first_seconds = 0.0
        if not self._prepared.emulated:
            is_all, planned = self._prepared.job.verify == 1, self._attempt.planned
            await asyncio.to_thread(require_checked, self._prepared, planned, state, checked, is_all)
            first_seconds = await self._check(state, step)
            await self._save_last(state, step)
        if self._checkpoints.policy.end and step > began_at:
            await self._checkpoints.save(self._version, state, self._recorder)
        if not self._prepared.emulated:  # last: the run's result does not depend on it
            await self._evaluate(state, step, first_seconds)
        self._saved(WeightsSaved(self._version.planned.attempt, step))

    async def save_copy(self, unit: int) -> None:
        """Receive the copy after `unit`, and save it as a checkpoint."""
        state = self._copied(unit)
        await self._checkpoints.save_copy(state, unit, self._version, self._recorder)

    async def _copied(self, unit: int) -> ReceivedState:
        """The copy after `unit`. If its weights are the best ones, they become the run's result."""
        state = await self._attempt.copied_state(unit)
        if not self._prepared.emulated:
            await asyncio.to_thread(require_finite, self._prepared, self._attempt.planned, state)
        if self._is_best:
            await self._save_weights(state, self._version.step)
        return state

    async def _check(self, state: ReceivedState, step: int) -> float:
        """Check the state at the end; RunFailed if a worker sent false numbers.

        Returns the seconds that evaluating one microbatch took, 0 if none was evaluated.
        """
        prepared, planned, recorder = self._prepared, self._attempt.planned, self._recorder
        await asyncio.to_thread(require_finite, prepared, planned, state)
        claim = recorder.metrics.claim
        training = self._checkpoints.start.training
        if claim is None or claim.unit.step != step or not self._computes_alike(claim.unit):
            return 0.0
        began = time.monotonic()
        run_seconds, timeouts = recorder.metrics.elapsed(began), self._timeouts
        earlier = partial(self._checkpoints.earlier, step)  # a copy at the end may be saved already
        recorder.observer.evaluating("comparing the weights' loss with the reported one")
        found = await asyncio.to_thread(
            compared_loss, prepared, training, planned, state, claim, run_seconds, timeouts, earlier
        )
        if found.loss is None:
            recorder.observer.noted(
                f"the weights' loss was not compared with the reported one: {found.reason}"
            )
        await recorder.checked(step, claim.loss, found.loss, time.monotonic() - began)
        return found.first_seconds

    async def _evaluate(self, state: ReceivedState, step: int, first_seconds: float) -> None:
        """Evaluate the weights on more microbatches than the fleet did, if it has left some out.

        One took `first_seconds` here before; 0 if none was evaluated.
        """
        prepared, metrics, start = self._prepared, self._recorder.metrics, self._checkpoints.start
        claim, training = metrics.claim, start.training
        if claim is None or claim.unit.step != step:
            return
        if not is_partly_evaluated(prepared, training, self._attempt.planned):
            return
        self._recorder.observer.evaluating("evaluating the weights on more of the validation set")
        seconds, timeouts, is_fresh = metrics.elapsed(time.monotonic()), self._timeouts, not start.step
        losses = await asyncio.to_thread(
            losses_at_home,
            prepared,
            training,
            state,
            claim.unit,
            seconds,
            timeouts,
            is_fresh,
            first_seconds,
        )
        if losses is not None:
            await self._recorder.evaluated_at_home(step, losses)

    def _computes_alike(self, unit: Unit) -> bool:
        """Whether one process computes what the fleet did: no codecs or noise on links, no replicas.

        Replicas have buffers of their own, such as the statistics of batch norms, and share an evaluation.
        """
        training, plan = self._checkpoints.start.training, self._attempt.planned.plan
        is_exact = (unit.plain or not training.codecs) and not (training.home_noise and plan.leaves_home())
        return is_exact and len(plan.pipelines) <= 1

    async def _save_last(self, state: ReceivedState, step: int) -> None:
        """Save the last weights, unless the best ones of an earlier step are to stay."""
        metrics, warned = self._recorder.metrics, self._recorder.observer.warned
        best, kept = metrics.best, None
        if metrics.kept_by and (best is None or best.step != step):
            kept = await self._checkpoints.after_others(
                partial(step_of_best, self._recorder.folder, metrics.kept_by)
            )
        if kept is None:
            await self._save_weights(state, step)
        else:
            metrics.weights_step = kept
        if best is not None and best.step not in (step, kept):
            instead = f"those of step {step} are saved" if kept is None else f"those of step {kept} stay"
            warned(f"the weights of step {best.step}, the best ones, did not come home: {instead} instead")

    async def _save_weights(self, state: ReceivedState, step: int) -> None:
        weights = {key.name: tensor for key, tensor in state.tensors.items() if not key.slot}
        best = self._recorder.metrics.best
        note = "" if best is None or best.step != step else f"{best.metric} {best.value!r}"
        averages = {key.name: tensor for key, tensor in state.tensors.items() if key.slot == EMA}
        folder, prepared = self._recorder.folder, self._prepared
        await self._checkpoints.after_others(
            partial(save_result, folder, prepared, weights, step, note, averages)
        )
        self._recorder.metrics.weights_step = step
