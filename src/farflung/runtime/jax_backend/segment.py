"""One segment on JAX: compiled functions, a tape per microbatch, gradients in two parts, apply.

See `runtime.backend.SegmentRunner`. Call it on the compute thread only; compilation runs in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from farflung.opdag.analysis import given_gradients
from farflung.opdag.form import Form
from farflung.opdag.graph import FLOATING, Input
from farflung.opdag.segment import Segment
from farflung.runtime.jax_backend.arrays import AnyArray, constant_array, over, sendable, shape_of
from farflung.runtime.jax_backend.background_compile import BackgroundBuild
from farflung.runtime.jax_backend.compiled import EvaluationFunction, Layout, TrainingFunctions
from farflung.runtime.jax_backend.differentiated import Tape
from farflung.runtime.jax_backend.memory import NOTHING, compiled_needs
from farflung.runtime.jax_backend.optimizer import Stepper
from farflung.runtime.state import Snapshot, StateKey, require_restorable, trained_names
from farflung.runtime.sums import bit_sum
from farflung.runtime.training import Training, microbatch_seed
from farflung.schedule import Unit
from farflung.workload.footprint import Needs


def reached_from(segment: Segment, outputs: Iterable[int]) -> frozenset[int]:
    """The values that have a gradient if just these outputs have one; autograd ignores the others."""
    reached = set(outputs)
    for node in reversed(segment.nodes):
        if any(value in reached for value in node.writes()):
            reached.update(v for v in given_gradients(node) if segment.values[v].dtype in FLOATING)
    return frozenset(reached)


GradientSink = Callable[[int, Any], None]
Known = Mapping[int, Any]


@dataclass
class _MicrobatchState:
    """The state of a microbatch: its tape or, with recomputation, its inputs; later its values with a
    gradient.
    """

    tape: Tape | None
    known: Known
    seed: int
    reached: frozenset[int] = frozenset()


class JaxSegment:
    """A segment's parameters, optimizer, buffers and tapes.

    `state` maps every parameter and buffer of the segment to its array, which is read when the first
    microbatch runs and never written. With `recompute` a microbatch keeps only its inputs until its gradients
    are needed.
    """

    def __init__(
        self,
        segment: Segment,
        state: Mapping[str, AnyArray],
        training: Training,
        recompute: bool = False,
    ) -> None:
        self.segment = segment
        self._training = training
        self._recompute = recompute
        self._layout = Layout(segment)
        entries = [entry for entry in segment.inputs if entry.kind != "input"]
        self._arrays: dict[int, AnyArray] = {
            e.value: constant_array(segment.constants[e.name]) if e.kind == "constant" else state[e.name]
            for e in entries
        }
        self._values = {e.name: e.value for e in entries if e.kind != "constant"}
        self._owned = set(segment.owned)
        self._mine = [at for at, e in enumerate(self._layout.trainable) if e.name in self._owned]
        self._borrowed = [e.name for e in entries if e.kind == "parameter" and e.name not in self._owned]
        self._owners: Mapping[str, JaxSegment] = {}
        self._on_device = False
        batch = training.microbatch_size
        self._train = BackgroundBuild(
            lambda wanted: TrainingFunctions(segment.without_metrics(), batch, wanted)
        )
        self._evaluate = _evaluation(segment, batch) if training.validation_microbatches else None
        self._shapes = [shape_of(segment.values[e.value], batch) for e in self._layout.trainable]
        mine = [self._shapes[at] for at in self._mine]
        names = [self._layout.trainable[at].name for at in self._mine]
        self._stepper = Stepper(training.optimizer, mine, names) if mine else None
        self._reached = cache(lambda outputs: reached_from(segment, outputs))
        self._microbatches: dict[int, _MicrobatchState] = {}
        self._sums: list[Any] = []
        self._summed: set[str] = set()
        self._pending: dict[str, Any] = {}
        self._losses: list[tuple[float, Any]] = []
        self._metrics: list[tuple[int, Any]] = []

    def compile(self) -> Needs[float]:
        """Wait until everything is compiled; returns the memory needed. Raises XLA's errors."""
        passes = self._train.get().memory
        evaluation = NOTHING if self._evaluate is None else self._evaluate.get().memory
        update = NOTHING if self._stepper is None else self._stepper.compile()
        return compiled_needs(self.segment, self._training, passes, evaluation, update)

    def close(self) -> None:
        """Cancel compilation, and wait for the one that is running, because nothing can stop it."""
        for later in (self._train, self._evaluate, self._stepper):
            if later is not None:
                later.close()

    def forward(
        self, unit: Unit, microbatch: int, values: Mapping[int, AnyArray], bucket: int = 0
    ) -> dict[int, AnyArray]:
        """Run one microbatch on its inputs and received values by id; returns the values to send.

        There is no bucket but 0: `JaxBackend.verify` refuses others.
        """
        seed = microbatch_seed(self._training.seed, unit.train, unit.step, microbatch)
        known = self._known(values)
        if unit.train:
            made, tape = self._train.get().forward(known, seed, microbatch)
            self._microbatches[microbatch] = _MicrobatchState(None if self._recompute else tape, known, seed)
            if not self._recompute:
                self._microbatches[microbatch].known = {}
            self._pending.update((name, made[value]) for name, value in self.segment.mutations.items())
        else:
            self._evaluate = self._evaluate or _evaluation(self.segment, self._training.microbatch_size)
            made = self._evaluate.get().forward(known, seed, microbatch)
            self._metrics += [(value, made[value]) for value in self.segment.metrics]
        if self.segment.loss is not None:
            self._losses.append((1.0 / unit.microbatches, made[self.segment.loss]))
        return jax.block_until_ready({value: made[value] for value in self.segment.sends})

    def backward(
        self, unit: Unit, microbatch: int, gradients: Mapping[int, AnyArray], send: GradientSink
    ) -> None:
        """Run backward and `send` the gradient of each received value; those of parameters wait for
        `accumulate`.
        """
        state = self._microbatches[microbatch]
        functions = self._train.get()
        tape = state.tape or functions.forward(state.known, state.seed, microbatch)[1]
        arrived = set(gradients) & set(self._layout.outputs)
        if self.segment.loss is not None:
            arrived.add(self.segment.loss)
        reached = self._reached(frozenset(arrived))
        made, rest = functions.pull_inputs(tape, self._cotangents(unit, gradients))
        self._microbatches[microbatch] = _MicrobatchState(rest, {}, 0, reached)
        for value, gradient in made.items():
            if value in reached:
                send(value, jax.block_until_ready(gradient))

    def accumulate(self, unit: Unit, microbatch: int) -> None:
        """Add the gradients of parameters of a microbatch whose `backward` has run."""
        state = self._microbatches.pop(microbatch)
        names = [entry.name for entry in self._layout.trainable if entry.value in state.reached]
        if not names:
            return
        assert state.tape is not None
        self._begin_sums()
        self._sums = jax.block_until_ready(self._train.get().pull_weights(state.tape, self._sums))
        self._summed.update(names)

    def share_gradients(self, owners: Mapping[str, JaxSegment]) -> None:
        """Add the gradients of parameters that other segments of this worker own to theirs."""
        self._owners = owners
        for at, entry in enumerate(self._layout.trainable):
            if entry.name in self._summed and entry.name not in self._owned:
                owners[entry.name].add_gradient(entry.name, self._sums[at])
                self._summed.remove(entry.name)

    def add_gradient(self, name: str, gradient: Any) -> None:
        """Add another use's gradient to an owned parameter's."""
        at = next(at for at in self._mine if self._layout.trainable[at].name == name)
        self._begin_sums()
        self._sums[at] = self._sums[at] + gradient
        self._summed.add(name)

    def parameter_gradients(self) -> dict[int, Any]:
        """The gradients of owned, trained parameters by value id, if they have one."""
        entries = ((at, self._layout.trainable[at]) for at in self._mine)
        return {e.value: jax.block_until_ready(self._sums[at]) for at, e in entries if e.name in self._summed}

    def set_parameter_gradient(self, value: int, gradient: AnyArray | None) -> None:
        """Replace the gradient of an owned, trained parameter by this one."""
        at = next(at for at in self._mine if self._layout.trainable[at].value == value)
        name = self._layout.trainable[at].name
        self._summed.discard(name)
        if gradient is not None:
            self._begin_sums()
            self._sums[at] = jnp.asarray(gradient)
            self._summed.add(name)

    def square_sums(self) -> dict[int, float]:
        """The sum of squares of each owned, trained parameter's gradient by value id, in float64."""
        gradients = self.gradients()
        mine = self._trained()
        sums = {e.value: _square_sum(gradients[e.name]) for e in mine if e.name in gradients}
        return {entry.value: 0.0 for entry in mine} | {
            value: float(found) for value, found in jax.device_get(sums).items()
        }

    def bit_sums(self) -> dict[int, int]:
        """The bit sum of each gradient by its parameter's value id, on a CPU."""
        if jax.default_backend() != "cpu":
            return {}
        gradients = self.gradients()
        mine = self._trained()
        return {e.value: bit_sum(np.asarray(gradients[e.name])) for e in mine if e.name in gradients}

    def take_loss(self) -> float:
        """The float64 sum of w_m * loss_m since the last call."""
        losses, self._losses = self._losses, []
        return sum((weight * float(loss) for weight, loss in losses), 0.0)

    def take_metrics(self) -> dict[int, float]:
        """The float64 sums of the metrics' values since the last call."""
        metrics, self._metrics = self._metrics, []
        sums: dict[int, float] = {}
        for value, array in metrics:
            sums[value] = sums.get(value, 0.0) + float(array)
        return sums

    def apply(self, step: int, scale: float) -> None:
        """Update parameters and buffers with the gradients times `scale`, at the learning rate of `step`."""
        if self._stepper is not None:
            self._stepper.hold_anchors([self._arrays[entry.value] for entry in self._trained()])
        if self._stepper is not None and self._summed:
            entries = self._trained()
            updated = self._stepper.step(
                [self._arrays.pop(entry.value) for entry in entries],
                [self._sums[at] for at in self._mine],
                [entry.name in self._summed for entry in entries],
                step,
                scale,
            )
            self._arrays.update(zip((entry.value for entry in entries), updated, strict=True))
        for name, array in self._pending.items():
            self._arrays[self._values[name]] = array
        self.drop()

    def outer_gradients(self, weight: float) -> dict[int, Any]:
        """How far each owned, trained parameter has come since the last merge, times -`weight`."""
        if self._stepper is None:
            return {}
        entries = self._trained()
        found = self._stepper.outer_gradients([self._arrays[e.value] for e in entries], weight)
        return {
            e.value: jax.block_until_ready(g) for e, g in zip(entries, found, strict=True) if g is not None
        }

    def trained_parameters(self) -> dict[int, Any]:
        """The owned, trained parameters by value id, which no step changes in place."""
        return {entry.value: jnp.array(self._arrays[entry.value]) for entry in self._trained()}

    def merge(self, takes_over: bool) -> None:
        """Take DiLoCo's outer step with the gradients, or take them over as parameters."""
        if self._stepper is not None and self._summed:
            entries = self._trained()
            step = self._stepper.take_over if takes_over else self._stepper.merge
            updated = step(
                [self._arrays[entry.value] for entry in entries],
                [
                    self._sums[at] if e.name in self._summed else None
                    for at, e in zip(self._mine, entries, strict=True)
                ],
            )
            self._arrays.update(zip((entry.value for entry in entries), updated, strict=True))
        self.drop()

    def _trained(self) -> list[Input]:
        """The owned, trained parameters."""
        return [self._layout.trainable[at] for at in self._mine]

    def drop(self) -> None:
        """Drop gradients, tapes, pending buffers and loss of a unit that is not applied; it can run again."""
        self._sums = []
        self._summed.clear()
        self._pending.clear()
        self._microbatches.clear()
        self._losses = []
        self._metrics = []

    def gradients(self) -> dict[str, Any]:
        """Gradients of owned parameters by name, if they have one."""
        entries = ((at, self._layout.trainable[at].name) for at in self._mine)
        return {name: self._sums[at] for at, name in entries if name in self._summed}

    def state(self) -> dict[str, AnyArray]:
        """Owned parameters and buffers by name; the next step creates new ones."""
        return {name: self._arrays[self._values[name]] for name in self.segment.owned}

    def snapshot(self, names: Container[str], slots: bool = False, live: bool = False) -> Snapshot:
        """Copies or views of the owned parameters and buffers in `names`, with `slots` also of those."""
        state = {name: array for name, array in self.state().items() if name in names}
        made = {StateKey(name): sendable(array, live) for name, array in state.items()}
        for at, name in enumerate(trained_names(self.segment)):
            if slots and name in names and self._stepper is not None:
                made |= {StateKey(name, slot): data for slot, data in self._stepper.slots(at, live).items()}
        return made

    def restore(self, state: Mapping[StateKey, memoryview]) -> None:
        """Go on from this state; its memory is read when the next microbatch and the next step run."""
        slots = require_restorable(self.segment, self._training, state)
        self.drop()
        batch = self._training.microbatch_size
        for key, buffer in state.items():
            if not key.slot:
                value = self._values[key.name]
                self._arrays[value] = over(buffer, Form.of(self.segment.values[value], batch))
        self._on_device = False
        if self._stepper is not None:
            self._stepper.restore([slots.get(name, {}) for name in trained_names(self.segment)])

    def _known(self, values: Mapping[int, AnyArray]) -> dict[int, Any]:
        """Everything that a microbatch reads, by value id, on the device."""
        if not self._on_device:
            self._arrays = jax.device_put(self._arrays)
            self._on_device = True
        for name in self._borrowed:
            if name in self._owners:
                self._arrays[self._values[name]] = self._owners[name].state()[name]
        pending = {self._values[name]: array for name, array in self._pending.items()}
        return {**self._arrays, **pending, **jax.device_put(dict(values))}

    def _cotangents(self, unit: Unit, gradients: Mapping[int, AnyArray]) -> list[AnyArray]:
        """One gradient for each differentiable output: zeros if none arrived."""
        found: list[AnyArray] = []
        for value in self._layout.outputs:
            kind = self.segment.values[value]
            shape = shape_of(kind, self._training.microbatch_size)
            if value == self.segment.loss:
                found.append(np.full((), 1.0 / unit.microbatches, shape.dtype))
            else:
                found.append(gradients[value] if value in gradients else np.zeros(shape.shape, shape.dtype))
        return found

    def _begin_sums(self) -> None:
        if not self._sums:
            self._sums = [jnp.zeros(shape.shape, shape.dtype) for shape in self._shapes]


def _evaluation(segment: Segment, batch: int) -> BackgroundBuild[EvaluationFunction]:
    return BackgroundBuild(lambda wanted: EvaluationFunction(segment, batch, wanted))


@jax.jit
def _square_sum(gradient: Any) -> Any:
    return jnp.sum(jnp.square(gradient.astype(np.float64)))
