"""The state and the steps of a declared optimizer; `rules` has what each does to one parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Compiled

from farflung.runtime.jax_backend.arrays import sendable
from farflung.runtime.jax_backend.background_compile import BackgroundBuild, CancelToken
from farflung.runtime.jax_backend.memory import ProgramMemory, program_memory
from farflung.runtime.jax_backend.rules import NUMBERS, Array, Rule, Slots, numbers_of, update_rule
from farflung.runtime.optimizers.declared import Optimizer, Recipe, recipe_of
from farflung.runtime.optimizers.slots import ANCHOR, OUTER_MOMENTUM, STEP, kept_of, step_count, step_slot
from farflung.runtime.optimizers.slots import Slots as SlotBytes


class Stepper:
    """An optimizer's state for parameters of the given shapes, and its step, compiled in the background.

    A parameter without a gradient in a step does not change, and neither do its moments; each parameter
    counts its own steps.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        shapes: Sequence[jax.ShapeDtypeStruct],
        names: Sequence[str] | None = None,
    ) -> None:
        named = zip(names or [""] * len(shapes), shapes, strict=True)
        self._recipes = [recipe_of(optimizer, name, shape.shape) for name, shape in named]
        self._shapes = list(shapes)
        self._steps = [0] * len(shapes)
        self._slots = [self._arrays(at, {}) for at in range(len(shapes))]
        self._outer = optimizer.diloco
        self._anchors: list[Any] = []
        self._momenta: list[Any] = []
        rules = [update_rule(recipe) for recipe in self._recipes]
        averages = [recipe.declared.ema is not None for recipe in self._recipes]

        def update(
            parameters: list[Array], gradients: list[Array], slots: list[Slots], moves: Array, numbers: Array
        ) -> tuple[list[Array], list[Slots]]:
            given = zip(rules, averages, parameters, gradients, slots, moves, numbers, strict=True)
            made = [_updated(*one) for one in given]
            return [parameter for parameter, _ in made], [slots for _, slots in made]

        count = len(shapes)
        numbers = jax.ShapeDtypeStruct((count, 2 + NUMBERS), np.float64)
        kept = [tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays) for arrays in self._slots]
        arguments = list(shapes), list(shapes), kept
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
        numbers = np.array(
            [
                [scale, _weight(recipe, count), *numbers_of(recipe, shape.shape, step, max(1, count))]
                for recipe, shape, count in zip(self._recipes, self._shapes, self._steps, strict=True)
            ]
        )
        updated, self._slots = self._update.get()(
            list(parameters), list(gradients), self._slots, np.array(has_gradient, np.bool_), numbers
        )
        return list(updated)

    def hold_anchors(self, parameters: Sequence[Any]) -> None:
        """Before the first step of a job that merges, keep its parameters as anchors."""
        if self._outer is not None and not self._anchors:
            self._anchors = [jnp.array(parameter) for parameter in parameters]
            self._momenta = [jnp.zeros_like(anchor) for anchor in self._anchors]

    def outer_gradients(self, parameters: Sequence[Any], weight: float) -> list[Array | None]:
        """How far each parameter has come since its anchor, times -`weight`; None before any step."""
        if not self._anchors:
            return [None for _ in parameters]
        pairs = zip(self._anchors, parameters, strict=True)
        return [(anchor - parameter) * jnp.asarray(weight, parameter.dtype) for anchor, parameter in pairs]

    def merge(self, parameters: Sequence[Any], gradients: Sequence[Any | None]) -> list[Any]:
        """The parameters after DiLoCo's outer step with these outer gradients."""
        assert self._outer is not None
        outer = self._outer.outer
        self.hold_anchors(parameters)
        found = list(parameters)
        for at, gradient in enumerate(gradients):
            if gradient is None:
                continue
            lr, momentum = (jnp.asarray(number, gradient.dtype) for number in (outer.lr, outer.momentum))
            self._momenta[at] = self._momenta[at] * momentum + gradient
            self._anchors[at] = self._anchors[at] - lr * (gradient + momentum * self._momenta[at])
            found[at] = jnp.array(self._anchors[at])  # the next step consumes it
        return found

    def take_over(self, parameters: Sequence[Any], gradients: Sequence[Any | None]) -> list[Any]:
        """The parameters and anchors of another pipeline, which came as gradients."""
        self.hold_anchors(parameters)
        for at, gradient in enumerate(gradients):
            if gradient is not None:
                self._anchors[at] = gradient
        return [jnp.array(anchor) for anchor in self._anchors]

    def slots(self, number: int, live: bool = False) -> dict[str, memoryview]:
        """The slots of the `number`th parameter, copied unless `live`; none if it was never updated."""
        count = self._steps[number]
        if not count and not self._anchors:
            return {}
        beside = (self._anchors[number], self._momenta[number]) if self._anchors else ()
        arrays = iter((*self._slots[number], *beside))
        return {
            slot: step_slot(count) if slot == STEP else sendable(next(arrays), live)
            for slot in kept_of(self._recipes[number].declared, self._shapes[number].shape)
        }

    def restore(self, slots: Sequence[SlotBytes]) -> None:
        """Go on from these slots, one set a parameter; their memory is read at the next step."""
        # Slots without a count only tell the first update, which begins them, from later ones.
        self._steps = [step_count(one) if STEP in one else 2 * bool(one) for one in slots]
        self._slots = [self._arrays(at, of_one) for at, of_one in enumerate(slots)]
        is_merging = self._outer is not None and any(slots)
        self._anchors, self._momenta = (
            [_array(one[slot], shape) for one, shape in zip(slots, self._shapes, strict=True)]
            if is_merging
            else []
            for slot in (ANCHOR, OUTER_MOMENTUM)
        )

    def _arrays(self, number: int, slots: SlotBytes) -> tuple[Any, ...]:
        """A parameter's slots other than its count; before its first update they are zeros."""
        kind = self._shapes[number]
        return tuple(
            np.frombuffer(slots[slot], kind.dtype).reshape(shape) if slots else np.zeros(shape, kind.dtype)
            for slot, shape in kept_of(self._recipes[number].declared, kind.shape).items()
            if slot not in (STEP, ANCHOR, OUTER_MOMENTUM)
        )


def _array(buffer: memoryview, kind: jax.ShapeDtypeStruct) -> Any:
    return np.frombuffer(buffer, kind.dtype).reshape(kind.shape)


def _weight(recipe: Recipe, count: int) -> float:
    """How much the parameter counts in its moving average after its update number `count`."""
    return 1.0 if recipe.declared.ema is None or count <= 1 else 1 - recipe.declared.ema


def _updated(
    rule: Rule,
    averages: bool,
    parameter: Array,
    gradient: Array,
    slots: Slots,
    moves: Array,
    numbers: Array,
) -> tuple[Array, Slots]:
    """A parameter and its slots after a step; the last slot is its moving average if it has one.

    `numbers` are the gradient's scale, the parameter's weight in its average, and those of the rule.
    """
    scale, weight, *_ = typed = numbers.astype(parameter.dtype)
    own = slots[:-1] if averages else slots
    made, new_slots = rule(parameter, gradient * scale, own, typed[2:])
    made = jnp.where(moves, made, parameter)
    kept = tuple(jnp.where(moves, new, old) for new, old in zip(new_slots, own, strict=True))
    if not averages:
        return made, kept
    change = made - slots[-1]  # from the nearer end, as `torch.lerp`
    near, far = slots[-1] + weight * change, made - (1 - weight) * change
    return made, (*kept, jnp.where(weight < 0.5, near, far))
