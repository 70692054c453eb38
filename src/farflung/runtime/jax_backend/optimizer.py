"""AdamW and SGD from their declarations: the numbers of `torch.optim`, in the same order of operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Compiled

from farflung.runtime.jax_backend.arrays import sendable
from farflung.runtime.jax_backend.background_compile import BackgroundBuild, CancelToken
from farflung.runtime.jax_backend.memory import ProgramMemory, program_memory
from farflung.runtime.optimizer import SGD, STEP, AdamW, Optimizer, learning_rate, step_count, step_slot
from farflung.runtime.optimizer import Slots as SlotBytes

Array = jax.Array
Slots = tuple[Array, ...]

# (parameter, scaled gradient, slots, the numbers of this step in the parameter's type) -> parameter and slots
Rule = Callable[[Array, Array, Slots, Array], tuple[Array, Slots]]


class Stepper:
    """An optimizer's state for parameters of the given shapes, and its step, compiled in the background.

    A parameter without a gradient in a step does not change, and neither do its moments; each parameter
    counts its own steps.
    """

    def __init__(self, declared: Optimizer, shapes: Sequence[jax.ShapeDtypeStruct]) -> None:
        self._declared = declared
        self._shapes = list(shapes)
        self._steps = [0] * len(shapes)
        self._slots = [self._arrays(shape, {}) for shape in shapes]
        rule = update_rule(declared)

        def update(
            parameters: list[Array], gradients: list[Array], slots: list[Slots], moves: Array, numbers: Array
        ) -> tuple[list[Array], list[Slots]]:
            made = [
                _updated(rule, *one) for one in zip(parameters, gradients, slots, moves, numbers, strict=True)
            ]
            return [parameter for parameter, _ in made], [slots for _, slots in made]

        count = len(shapes)
        numbers = jax.ShapeDtypeStruct((count, len(self._numbers(0, 1, 1.0))), np.float64)
        arguments = list(shapes), list(shapes), [(shape,) * declared.moments for shape in shapes]
        moves = jax.ShapeDtypeStruct((count,), np.bool_)

        def compiled(wanted: CancelToken) -> Compiled:
            lowered = jax.jit(update, donate_argnums=(0, 2)).lower(*arguments, moves, numbers)
            wanted.check()
            return lowered.compile()

        self._update = BackgroundBuild(compiled)

    def compile(self) -> ProgramMemory:
        """Wait until the step is compiled; returns its memory."""
        return program_memory(self._update.get())

    def close(self) -> None:
        """Cancel compilation, and wait for the one that is running."""
        self._update.close()

    def step(
        self,
        parameters: Sequence[Any],
        gradients: Sequence[Any],
        has_gradient: Sequence[bool],
        step: int,
        scale: float,
    ) -> list[Array]:
        """The parameters after step `step` of the job; `parameters` are consumed."""
        self._steps = [count + has for count, has in zip(self._steps, has_gradient, strict=True)]
        numbers = np.array([self._numbers(step, max(1, count), scale) for count in self._steps])
        updated, self._slots = self._update.get()(
            list(parameters), list(gradients), self._slots, np.array(has_gradient, np.bool_), numbers
        )
        return list(updated)

    def slots(self, number: int, live: bool = False) -> dict[str, memoryview]:
        """The slots of the `number`th parameter, copied unless `live`; none if it was never updated."""
        count = self._steps[number]
        if not count:
            return {}
        arrays = iter(self._slots[number])
        return {
            slot: step_slot(count) if slot == STEP else sendable(next(arrays), live)
            for slot in self._declared.slots
        }

    def restore(self, slots: Sequence[SlotBytes]) -> None:
        """Go on from these slots, one set a parameter; their memory is read at the next step."""
        self._steps = [step_count(one) if STEP in one else min(1, len(one)) for one in slots]
        self._slots = [self._arrays(*pair) for pair in zip(self._shapes, slots, strict=True)]

    def _arrays(self, shape: jax.ShapeDtypeStruct, slots: SlotBytes) -> tuple[Any, ...]:
        """A parameter's slots other than its count; before its first update they are zeros."""
        return tuple(
            np.frombuffer(slots[slot], shape.dtype).reshape(shape.shape)
            if slots
            else np.zeros(shape.shape, shape.dtype)
            for slot in self._declared.slots
            if slot != STEP
        )

    def _numbers(self, step: int, count: int, scale: float) -> list[float]:
        """The inputs of one parameter's update rule at its own step number `count`, from 1."""
        rate = learning_rate(self._declared, step)
        if isinstance(self._declared, AdamW):
            first, second = (1 - beta**count for beta in self._declared.betas)
            return [scale, 1 - rate * self._declared.weight_decay, -rate / first, math.sqrt(second)]
        return [scale, -rate, 1.0 if count == 1 else 1 - self._declared.dampening]


def _updated(
    rule: Rule, parameter: Array, gradient: Array, slots: Slots, moves: Array, numbers: Array
) -> tuple[Array, Slots]:
    typed = numbers.astype(parameter.dtype)
    made, new_slots = rule(parameter, gradient * typed[0], slots, typed[1:])
    return jnp.where(moves, made, parameter), tuple(
        jnp.where(moves, new, old) for new, old in zip(new_slots, slots, strict=True)
    )


def update_rule(declared: Optimizer) -> Rule:
    """The rule of a declared optimizer; its numbers are those of `Stepper` without the scale."""
    return _adamw(declared) if isinstance(declared, AdamW) else _sgd(declared)


def _adamw(declared: AdamW) -> Rule:
    first, second = declared.betas

    def rule(parameter: Array, gradient: Array, slots: Slots, typed: Array) -> tuple[Array, Slots]:
        decay, size, correction = typed
        mean, square = slots
        mean = mean + (1 - first) * (gradient - mean)
        square = square * second + (1 - second) * gradient * gradient
        divisor = jnp.sqrt(square) / correction + declared.eps
        return parameter * decay + size * (mean / divisor), (mean, square)

    return rule


def _sgd(declared: SGD) -> Rule:
    def rule(parameter: Array, gradient: Array, slots: Slots, typed: Array) -> tuple[Array, Slots]:
        rate, share = typed
        direction = gradient + declared.weight_decay * parameter if declared.weight_decay else gradient
        if slots:
            buffer = slots[0] * declared.momentum + share * direction
            slots = (buffer,)
            direction = direction + declared.momentum * buffer if declared.nesterov else buffer
        return parameter + rate * direction, slots

    return rule
