"""The digest of what JAX's kernels compute here; see `runtime.kernels`."""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np

from farflung.opdag.form import Form
from farflung.opdag.graph import Input
from farflung.opdag.segment import Segment
from farflung.runtime.jax_backend.arrays import allocate, memory, over
from farflung.runtime.jax_backend.compiled import Program
from farflung.runtime.jax_backend.rules import update_rule
from farflung.runtime.kernels import OPTIMIZER, SAMPLES, digest_of, sample_numbers, sample_segment
from farflung.runtime.optimizers.declared import recipe_of


def kernel_digest() -> str:
    """The digest for the threads that XLA has in this process.

    It is one program, because compiling takes nearly all of the time: a second unless it is cached. Attention
    is made of other ops here, and one parameter stands for all in the update.
    """
    segment = sample_segment(attention=False)
    program = Program(segment, SAMPLES, train=True)
    given: dict[int, Any] = {entry.value: _array(segment, entry) for entry in segment.inputs}
    state, values = ([given[value] for value in ids] for ids in (program.state, program.values))
    keys: Any = program.keys(0)
    rule, loss = update_rule(recipe_of(OPTIMIZER, "", ())), segment.loss
    assert loss is not None

    def loss_of(state: list[Any]) -> Any:
        return program(state, values, keys)[loss]

    def step(state: list[Any], numbers: Any) -> Any:
        made, gradients = jax.value_and_grad(loss_of)(state)
        gradient = gradients[0]
        return made, gradients, rule(state[0], gradient, (state[0], state[0] * state[0]), numbers)

    results = jax.jit(step)(state, np.array([0.9, -0.01, 0.3], np.float32))
    where = f"{threads()} threads" if jax.devices()[0].platform == "cpu" else jax.devices()[0].device_kind
    return digest_of(f"jax {jax.__version__}, {where}", map(memory, jax.tree.leaves(results)))


def threads() -> int:
    """As XLA counts them."""
    if (given := os.environ.get("NPROC", "")).isdigit() and int(given):
        return int(given)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _array(segment: Segment, entry: Input) -> np.ndarray:
    data = sample_numbers(entry, segment)
    buffer = allocate(len(data))
    buffer[:] = data
    return over(buffer, Form.of(segment.values[entry.value], SAMPLES))
