"""One segment on PyTorch: forward with a tape per microbatch, backward from its consumers' gradients, apply.

Remote automatic differentiation (FusionLLM, arXiv 2410.12707): values arrive as detached leaves, the
gradients of sent values come back from every consumer, and autograd runs in between. Call it on the compute
thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from farflung.opdag.analysis import sides_of
from farflung.opdag.buckets import in_buckets
from farflung.opdag.graph import Input
from farflung.opdag.segment import Segment
from farflung.runtime.indices import IndexRange, index_ranges
from farflung.runtime.state import Snapshot, StateKey, require_restorable, trained_names
from farflung.runtime.sums import bit_sum
from farflung.runtime.torch_backend.codegen import Program, source_name
from farflung.runtime.torch_backend.crossing import Arriving, here
from farflung.runtime.torch_backend.device import ON_HOST, Place, on_the_host, tightest
from farflung.runtime.torch_backend.optimizers.update import Update, squares_of, words_of
from farflung.runtime.torch_backend.passes import Pass, Sink, SplitPass, Tape, WholePass
from farflung.runtime.torch_backend.recomputation import RecomputingPass
from farflung.runtime.torch_backend.tensors import DTYPES, constant_tensor, like, outgoing, sendable
from farflung.runtime.training import Training, microbatch_seed
from farflung.schedule import Unit
from farflung.workload.footprint import Needs

log = logging.getLogger(__name__)


def require_indices_in_range(error: Exception, segment: Segment, batch: int, microbatch: int) -> None:
    """Check the indices that the code which raised `error` was given, because PyTorch's message is unclear.

    Raises
    ------
    JobError
        One of them is out of range, which caused the error.
    """
    known = _variables(error, source_name(segment.number))
    for expected in index_ranges(segment, batch):
        indices = known.get(f"v{expected.value:d}")
        if isinstance(indices, Tensor):
            on_the_host(expected, indices, microbatch)


def _variables(error: Exception, file: str) -> dict[str, Any]:
    """The local variables of the function in `file` that the error passed through."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return {} if trace is None else trace.tb_frame.f_locals


class _Sized(NamedTuple):
    """The programs of a segment in one of its buckets, with the constants that these read, by name.

    `bounded` are the values with indices that are checked when they enter, on a device that is no CPU.
    """

    segment: Segment
    evaluate: Program
    training: Pass
    constants: Mapping[str, Tensor]
    bounded: Mapping[int, IndexRange]


class TorchSegment:
    """A segment's parameters, optimizer, buffers and tapes.

    `state` maps every parameter and buffer that the segment holds to its tensor. Tensors of the names in
    `segment.owned` are updated in place; a parameter that another segment of this worker owns must be that
    segment's own tensor (it shares the memory, never the gradient). All are on the device of `place`.
    """

    def __init__(
        self,
        segment: Segment,
        state: Mapping[str, Tensor],
        training: Training,
        recompute: bool = False,
        place: Place = ON_HOST,
    ) -> None:
        self.segment = segment
        self._training = training
        self._place = place
        self._entries = [entry for entry in segment.inputs if entry.kind != "input"]
        self._state = [self._leaf(entry.name, entry.kind, entry.trainable, state) for entry in self._entries]
        self._index = {entry.name: at for at, entry in enumerate(self._entries)}
        self._owned = set(segment.owned)
        self._trained = trained_names(segment)
        trained = [self._state[self._index[name]] for name in self._trained]
        self._update = Update(training.optimizer, trained, self._trained)
        self._pending: dict[str, Tensor] = {}
        self._tapes: dict[int, Tape] = {}
        self._losses: list[tuple[float, Tensor]] = []
        self._loss = 0.0
        self._metrics: list[tuple[int, Tensor]] = []
        self._recompute = recompute
        self._sized = [self._in_bucket(one) for one in in_buckets(segment)]
        differentiable = set(segment.differentiable)
        self._answered = [value for value in segment.sends if value in differentiable]

    def _in_bucket(self, segment: Segment) -> _Sized:
        batch = self._training.microbatch_size
        evaluate = Program(segment, batch, False, self._place)
        bounded = {} if self._place.is_host else tightest(index_ranges(segment, batch))
        constants = {
            name: constant_tensor(constant, self._place.device)
            for name, constant in segment.constants.items()
            if constant != self.segment.constants[name]
        }
        return _Sized(segment, evaluate, self._make_pass(segment, constants), constants, bounded)

    def _make_pass(self, segment: Segment, constants: Mapping[str, Tensor]) -> Pass:
        batch = self._training.microbatch_size
        segment = segment.without_metrics()
        sides = sides_of(segment)
        made: Pass
        if sides is None:
            made = WholePass(segment, batch, self._place)
        else:
            held = self._held(self._state, constants)
            state = {entry.value: tensor for entry, tensor in zip(self._entries, held, strict=True)}
            made = SplitPass(segment, batch, sides, state, self._place)
        return RecomputingPass(made) if self._recompute else made

    def _held(self, state: list[Tensor], constants: Mapping[str, Tensor]) -> list[Tensor]:
        """The state with the constants of a bucket."""
        if not constants:
            return state
        return [
            constants.get(entry.name, tensor) if entry.kind == "constant" else tensor
            for entry, tensor in zip(self._entries, state, strict=True)
        ]

    def _leaf(self, name: str, kind: str, trainable: bool, state: Mapping[str, Tensor]) -> Tensor:
        if kind == "constant":
            return constant_tensor(self.segment.constants[name], self._place.device)
        return state[name].detach().requires_grad_(trainable)

    def compile(self) -> Needs[float] | None:
        """Let torch's compiler make the step's kernels, if the job is `compiled` and this is no CPU.

        Returns the memory needed then. A segment that it cannot make them for runs as it is, and the log says
        why.
        """
        if not self._training.compiled or self._place.is_host:
            return None
        from farflung.runtime.torch_backend.compiled import CompiledPass, Uncompiled, compiled_needs

        segment, batch = self.segment.without_metrics(), self._training.microbatch_size
        try:
            made = CompiledPass(segment, batch, self._entries, self._state, self._place)
        except Uncompiled as why:
            log.warning("segment %d is not compiled: %s", segment.number, why)
            return None
        self._sized[0] = self._sized[0]._replace(training=RecomputingPass(made) if self._recompute else made)
        return compiled_needs(self.segment, self._training)

    def close(self) -> None:
        """Do nothing: there is no background work."""

    def forward(
        self, unit: Unit, microbatch: int, values: Mapping[int, Tensor | Arriving], bucket: int = 0
    ) -> dict[int, Tensor]:
        """Run one microbatch; returns the values to send, detached and contiguous.

        `values` are the model inputs and received values by id, on the device, on their way there or on the
        host. A training unit keeps a tape until `backward`; an evaluation unit keeps only the loss. Raises
        JobError if the microbatch has an index out of range.
        """
        self._place.microbatch = microbatch
        sized = self._sized[bucket]
        if not self._place.is_host:
            bounds = sized.bounded
            entered = {v: self._entered(here(tensor), bounds.get(v)) for v, tensor in values.items()}
            return self._forward(unit, microbatch, entered, sized)
        on_host = cast(Mapping[int, Tensor], values)  # nothing arrives later there
        try:
            return self._forward(unit, microbatch, on_host, sized)
        except (IndexError, RuntimeError) as error:
            require_indices_in_range(error, sized.segment, self._training.microbatch_size, microbatch)
            raise

    def _entered(self, tensor: Tensor, expected: IndexRange | None = None) -> Tensor:
        """The value on the device; the indices in it are checked on the host if they come from there."""
        if tensor.device.type == "cpu":
            if expected is not None:
                on_the_host(expected, tensor, self._place.microbatch)
            return self._place.brought(tensor)
        return tensor if expected is None else self._place.bounding(expected)(tensor)

    def _forward(
        self, unit: Unit, microbatch: int, values: Mapping[int, Tensor], sized: _Sized
    ) -> dict[int, Tensor]:
        state = self._held(self._current(), sized.constants)
        seed = microbatch_seed(self._training.seed, unit.train, unit.step, microbatch)
        weight = 1.0 / unit.microbatches
        if not unit.train:
            with torch.no_grad():
                results = sized.evaluate.results_of(state, values, seed)
            self._add_loss(results, weight)
            self._metrics += [(value, results[value]) for value in self.segment.metrics]
            return {value: outgoing(results[value]) for value in self.segment.sends}
        results, tape = sized.training.forward(state, values, seed)
        for name, value in self.segment.mutations.items():
            self._pending[name] = results[value].detach()
        self._add_loss(results, weight)
        self._tapes[microbatch] = tape
        return {value: outgoing(results[value]) for value in self.segment.sends}

    def backward(
        self, unit: Unit, microbatch: int, gradients: Mapping[int, Tensor | Arriving], send: Sink
    ) -> None:
        """Run backward, and `send` the gradient of each received value.

        `gradients` holds, for each differentiable value that was sent, the sum over its consumers (absent if
        no consumer had one). On the host `send` is called from inside autograd as soon as a gradient is
        complete, before the rest of the pass; on a device with streams once the pass is queued. Gradients of
        parameters are computed later (`accumulate`). The loss is seeded with 1 / microbatches.
        """
        given = {value: here(gradients[value]) for value in self._answered if value in gradients}
        if self.segment.loss is not None:
            dtype = DTYPES[self.segment.values[self.segment.loss].dtype]
            given[self.segment.loss] = torch.full(
                (), 1.0 / unit.microbatches, dtype=dtype, device=self._place.device
            )
        self._tapes[microbatch].backward(given, send)

    def accumulate(self, unit: Unit, microbatch: int) -> None:
        """Add the microbatch's gradients of parameters to the step's, and drop its tape."""
        self._tapes.pop(microbatch).accumulate()

    def share_gradients(self, owners: Mapping[str, TorchSegment]) -> None:
        """Add the gradients of parameters that other segments of this worker own to theirs."""
        for entry, tensor in zip(self._entries, self._state, strict=True):
            if entry.trainable and entry.name not in self._owned and tensor.grad is not None:
                owners[entry.name].add_gradient(entry.name, tensor.grad)
                tensor.grad = None

    def add_gradient(self, name: str, gradient: Tensor) -> None:
        """Add another use's gradient to an owned parameter's."""
        parameter = self._state[self._index[name]]
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad += gradient

    def parameter_gradients(self) -> dict[int, Tensor]:
        """The gradients of owned, trained parameters by value id, contiguous, if they have one."""
        pairs = zip(self._entries, self._state, strict=True)
        return {e.value: outgoing(t.grad) for e, t in pairs if e.name in self._owned and t.grad is not None}

    def set_parameter_gradient(self, value: int, gradient: Tensor | Arriving | None) -> None:
        """Replace the gradient of an owned, trained parameter by this one."""
        at = next(at for at, entry in enumerate(self._entries) if entry.value == value)
        self._state[at].grad = None if gradient is None else self._entered(here(gradient))

    def square_sums(self) -> dict[int, float]:
        """The sum of squares of each owned, trained parameter's gradient by value id, in float64."""
        gradients = self.gradients()
        trained = [e for e in self._entries if e.trainable and e.name in self._owned]
        found = [entry.value for entry in trained if entry.name in gradients]
        sums = self._read(squares_of(list(gradients.values())))
        return {entry.value: 0.0 for entry in trained} | dict(zip(found, sums, strict=True))

    def bit_sums(self) -> dict[int, int]:
        """The bit sum of each gradient by its parameter's value id, on a CPU."""
        if not self._place.is_host:
            return {}
        values = {entry.name: entry.value for entry in self._entries if entry.name in self._owned}
        return {values[name]: bit_sum(words_of(grad)) for name, grad in self.gradients().items()}

    def take_loss(self) -> float:
        """The float64 sum of w_m * loss_m since the last call.

        Raises
        ------
        JobError
            The device has computed an index that is out of range.
        """
        if self._losses or self._place.has_unread:  # an evaluation reads nothing before
            self._read([])
        loss, self._loss = self._loss, 0.0
        return loss

    def take_metrics(self) -> dict[int, float]:
        """The float64 sums of the metrics' values since the last call."""
        metrics, self._metrics = self._metrics, []
        sums: dict[int, float] = {}
        if metrics:
            found = self._read([tensor for _, tensor in metrics])
            for (value, _), number in zip(metrics, found, strict=True):
                sums[value] = sums.get(value, 0.0) + number
        return sums

    def _read(self, numbers: list[Tensor]) -> list[float]:
        """The numbers; also takes the losses so far, so that the host reads numbers once in a unit."""
        losses, self._losses = self._losses, []
        values = self._place.read([*numbers, *(loss for _, loss in losses)])
        for (weight, _), loss in zip(losses, values[len(numbers) :], strict=True):
            self._loss += weight * loss
        return values[: len(numbers)]

    def apply(self, step: int, scale: float) -> None:
        """Update parameters and buffers with the gradients times `scale`, at the learning rate of `step`."""
        if scale != 1.0:
            self._scale(list(self.gradients().values()), scale)
        self._update.step(step)
        with torch.no_grad():
            for name, tensor in self._pending.items():
                self._state[self._index[name]].copy_(tensor)
        self.drop()

    def outer_gradients(self, weight: float) -> dict[int, Tensor]:
        """How far each owned, trained parameter has come since the last merge, times -`weight`."""
        found = zip(self._trained, self._update.outer_gradients(weight), strict=True)
        return {self._entry(name).value: outgoing(g) for name, g in found if g is not None}

    def trained_parameters(self) -> dict[int, Tensor]:
        """Copies of the owned, trained parameters by value id, contiguous."""
        copies = {name: self._state[self._index[name]].detach().clone() for name in self._trained}
        return {self._entry(name).value: outgoing(tensor) for name, tensor in copies.items()}

    def merge(self, takes_over: bool) -> None:
        """Take DiLoCo's outer step with the gradients, or take them over as parameters."""
        if takes_over:
            self._update.take_over()
        else:
            self._update.merge()
        self.drop()

    def _entry(self, name: str) -> Input:
        return self._entries[self._index[name]]

    def _scale(self, gradients: list[Tensor], scale: float) -> None:
        if self._place.is_host:
            for gradient in gradients:
                gradient.mul_(scale)
        elif gradients:
            torch._foreach_mul_(gradients, scale)

    def drop(self) -> None:
        """Drop gradients, tapes, pending buffers and loss of a unit that is not applied; it can run again."""
        for tensor in self._state:
            tensor.grad = None
        self._pending.clear()
        self._tapes.clear()
        self._losses.clear()
        self._loss = 0.0
        self._metrics.clear()
        self._place.forget()

    def gradients(self) -> dict[str, Tensor]:
        """Gradients of owned parameters by name, if they have one."""
        pairs = zip(self._entries, self._state, strict=True)
        return {e.name: t.grad for e, t in pairs if e.name in self._owned and t.grad is not None}

    def take_gradients(self) -> dict[str, Tensor]:
        """Return and remove the gradients of owned parameters."""
        found = self.gradients()
        for tensor in self._state:
            tensor.grad = None
        return found

    def state(self) -> dict[str, Tensor]:
        """Owned parameters and buffers by name, detached; they share the segment's memory."""
        return {name: self._state[self._index[name]].detach() for name in self.segment.owned}

    def snapshot(self, names: Container[str], slots: bool = False, live: bool = False) -> Snapshot:
        """Copies or views of the owned parameters and buffers in `names`, with `slots` also of those."""
        held = self.state().items()
        made = {StateKey(name): sendable(tensor, live) for name, tensor in held if name in names}
        for at, name in enumerate(self._trained):
            if slots and name in names:
                made |= {StateKey(name, slot): data for slot, data in self._update.slots(at, live).items()}
        return made

    def restore(self, state: Mapping[StateKey, memoryview]) -> None:
        """Go on from this state; on a CPU, slots of contiguous parameters stay in the memory they came in."""
        slots = require_restorable(self.segment, self._training, state)
        self.drop()
        with torch.no_grad():
            for key, buffer in state.items():
                if not key.slot:
                    tensor = self._state[self._index[key.name]]
                    tensor.copy_(like(buffer, tensor))
        self._update.restore([slots.get(name, {}) for name in self._trained])

    def _current(self) -> list[Tensor]:
        """The state, with buffers as the step's microbatches so far have left them."""
        return [
            self._pending.get(e.name, t) if self._pending else t
            for e, t in zip(self._entries, self._state, strict=True)
        ]

    def _add_loss(self, results: Mapping[int, Tensor], weight: float) -> None:
        if self.segment.loss is not None:
            self._losses.append((weight, results[self.segment.loss].detach()))
