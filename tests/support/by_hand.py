"""The segments of a model of the zoo on one backend, driven by hand: any step may come next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import captured, microbatches, placed, planned
from torch import Tensor

from farflung.opdag.form import Form
from farflung.runtime.backend import AnyBackend
from farflung.runtime.optimizers.declared import Optimizer
from farflung.runtime.parity.steps import named_state
from farflung.runtime.state import StateKey, part_of
from farflung.runtime.torch_backend.tensors import memory
from farflung.runtime.training import Training
from farflung.schedule import Unit

MICROBATCHES = 2
State = dict[StateKey, bytes]


class ByHand:
    """Runners of a model, all in this process, with the model's first state.

    It is cut for `count` workers, or before the nodes at the given positions.
    """

    def __init__(
        self,
        name: str,
        backend: AnyBackend,
        count: int | tuple[int, ...],
        optimizer: Optimizer,
        samples: int = 2,
    ) -> None:
        module, graph = captured(case(name), samples)
        self._case, self._backend, self._samples = case(name), backend, samples
        self._names = {entry.value: entry.name for entry in graph.inputs_of("input")}
        self.training = Training(100, MICROBATCHES, samples, optimizer, seed=3)
        self.planned = (
            planned(graph, self.training, count)
            if isinstance(count, int)
            else placed(graph, count, ["w"] * (len(count) + 1), MICROBATCHES, samples)
        )
        segments = self.planned.segments
        held = {e.name: segment.values[e.value] for segment in segments for e in segment.inputs}
        self.tensors = {name: tensor.detach().clone() for name, tensor in named_state(module, graph).items()}
        arrays = {n: self._array(t, Form.of(held[n], samples)) for n, t in self.tensors.items() if n in held}
        self.use([backend.runner(segment, arrays, self.training) for segment in segments])

    def use(self, runners: list[Any]) -> None:
        """Drive these runners of the same segments."""
        self.runners = runners
        self._owners = {name: runner for runner in runners for name in runner.segment.owned}

    def step(self, step: int) -> float:
        """Train one step; returns its loss."""
        unit = Unit(step, True, step, MICROBATCHES)
        for number, batch in enumerate(microbatches(self._case, self._samples, MICROBATCHES, step)):
            self._run(unit, number, batch)
        for runner in self.runners:
            runner.share_gradients(self._owners)
        loss = sum(runner.take_loss() for runner in self.runners)
        for runner in self.runners:
            runner.apply(step, 1.0)
        return float(loss)

    def steps(self, first: int, end: int) -> list[float]:
        """The losses of the steps from `first` to before `end`."""
        return [self.step(step) for step in range(first, end)]

    def state(self, slots: bool = True) -> State:
        """Everything that the segments own, copied."""
        return {
            key: bytes(buffer)
            for runner in self.runners
            for key, buffer in runner.snapshot(runner.segment.owned, slots).items()
        }

    def restore(self, state: Mapping[StateKey, bytes]) -> None:
        """Go on from `state`, in memory that the backend gave."""
        for runner in self.runners:
            mine = part_of(runner.segment, {key: memoryview(data) for key, data in state.items()})
            runner.restore({key: self._buffer(data) for key, data in mine.items()})

    def _run(self, unit: Unit, number: int, batch: Mapping[str, Tensor]) -> None:
        known: dict[int, Any] = {}
        arrived: dict[int, list[Any]] = {}
        for runner in self.runners:
            segment = runner.segment
            fed = {e.value: batch[self._names[e.value]] for e in segment.inputs if e.kind == "input"}
            inputs = {v: self._array(t, Form.of(segment.values[v], self._samples)) for v, t in fed.items()}
            known |= runner.forward(unit, number, inputs | {v: known[v] for v in segment.receives})
        for runner in reversed(self.runners):
            gradients = {v: _summed(arrived[v]) for v in runner.segment.sends if v in arrived}
            runner.backward(unit, number, gradients, lambda v, g: arrived.setdefault(v, []).insert(0, g))
            runner.accumulate(unit, number)

    def _array(self, tensor: Tensor, form: Form) -> Any:
        return self._backend.array(self._buffer(memory(tensor.contiguous())), form)

    def _buffer(self, data: bytes | memoryview) -> memoryview:
        if not len(data):
            return memoryview(bytearray())
        buffer = self._backend.allocate(len(data))
        buffer[:] = data
        return buffer


def _summed(gradients: list[Any]) -> Any:
    """In ascending order of the segments that they came from."""
    total = gradients[0]
    for gradient in gradients[1:]:
        total = total + gradient
    return total


def numbers(state: Mapping[StateKey, bytes]) -> dict[StateKey, Tensor]:
    """Floating point state as float32 tensors; all state of `ByHand` is float32, or counts."""
    return {
        key: torch.frombuffer(bytearray(data), dtype=torch.float32)
        for key, data in state.items()
        if key.slot != "step" and data and len(data) % 4 == 0
    }
