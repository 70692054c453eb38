"""Each op computes what PyTorch's does: values, element types, and the gradient of every floating argument.

All samples of a group are compiled as one function, since compiling is what takes time here.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
import torch
from tests.runtime.jax_backend.samples import GROUPS as FIRST_GROUPS
from tests.runtime.jax_backend.samples import Sample
from tests.runtime.jax_backend.samples_of_version_3 import GROUPS_OF_VERSION_3
from tests.runtime.jax_backend.samples_of_version_4 import GROUPS_OF_VERSION_4
from torch import Tensor

from farflung.opdag import opset
from farflung.opdag.graph import DType, Node, Ref
from farflung.runtime.jax_backend import lowering
from farflung.runtime.jax_backend.arrays import DTYPES
from farflung.runtime.jax_backend.compiled import NO_KEY
from farflung.runtime.torch_backend.codegen import resolve
from farflung.runtime.torch_backend.tensors import memory

pytestmark = pytest.mark.slow  # XLA compiles each group

torch.set_num_threads(1)
GROUPS = {**FIRST_GROUPS, **GROUPS_OF_VERSION_3, **GROUPS_OF_VERSION_4}
WITHOUT_GRADIENT = {
    "cross_entropy_loss.default": frozenset({"weight"}),
    "nll_loss_nd.default": frozenset({"weight"}),
    "binary_cross_entropy_with_logits.default": frozenset({"weight", "pos_weight"}),
    "_native_batch_norm_legit_functional.default": frozenset({"running_mean", "running_var"}),
}
CASES = [(group, at) for group, samples in GROUPS.items() for at in range(len(samples))]


def array_of(tensor: Tensor) -> np.ndarray:
    """The tensor in NumPy, which has no bfloat16 of its own."""
    name: Any = str(tensor.dtype).removeprefix("torch.")
    if not tensor.numel():
        return np.zeros(tuple(tensor.shape), DTYPES[name])
    return np.frombuffer(bytes(memory(tensor.contiguous())), DTYPES[name]).reshape(tuple(tensor.shape))


def tensors_of(arguments: dict[str, Any]) -> list[Tensor]:
    flat = [e for a in arguments.values() for e in (a if isinstance(a, list) else [a])]
    return [element for element in flat if isinstance(element, Tensor)]


class Expected:
    """What PyTorch makes of a sample, and the gradients for random gradients of its results."""

    def __init__(self, sample: Sample) -> None:
        without = WITHOUT_GRADIENT.get(sample.op, frozenset())
        arguments = {name: _leaf(a, name not in without) for name, a in sample.arguments.items()}
        self.given = tensors_of(arguments)
        made = resolve(opset.full_name(sample.op))(**arguments)
        self.made: list[Tensor] = list(made) if isinstance(made, list | tuple) else [made]
        generator = torch.Generator().manual_seed(7)
        self.cotangents = [
            torch.randn(t.shape, generator=generator).to(t.dtype) if t.requires_grad else torch.zeros_like(t)
            for t in self.made
        ]
        pairs = [(t, c) for t, c in zip(self.made, self.cotangents, strict=True) if t.requires_grad]
        if pairs:
            torch.autograd.backward([t for t, _ in pairs], [c for _, c in pairs])
        floating = [tensor for tensor in self.given if tensor.requires_grad]
        self.gradients = [torch.zeros_like(t) if t.grad is None else t.grad for t in floating]


def _leaf(argument: Any, differentiable: bool) -> Any:
    if isinstance(argument, list):
        return [_leaf(element, differentiable) for element in argument]
    if isinstance(argument, Tensor):
        return argument.clone().requires_grad_(differentiable and argument.is_floating_point())
    return argument


def node_of(sample: Sample, results: int) -> Node:
    """The call as a node whose values 0, 1, ... are the tensors among its arguments."""
    numbers = iter(range(100))

    def convert(argument: Any) -> Any:
        if isinstance(argument, list):
            return [convert(element) for element in argument]
        if isinstance(argument, Tensor):
            return Ref(next(numbers))
        if isinstance(argument, torch.dtype):
            return DType(str(argument).removeprefix("torch."))  # type: ignore[arg-type]
        return argument

    arguments = {name: convert(argument) for name, argument in sample.arguments.items()}
    return Node(0, opset.full_name(sample.op), arguments, list(range(100, 100 + results)))


def _pulled(sample: Sample, expected: Expected) -> Any:
    """A function from arrays and gradients of the floating results to results and gradients."""
    node = node_of(sample, len(expected.made))
    floating = [at for at, tensor in enumerate(expected.given) if tensor.requires_grad]

    def call(arrays: list[Any], cotangents: list[Any]) -> tuple[list[Any], list[Any]]:
        def of(chosen: list[Any]) -> tuple[list[Any], list[Any]]:
            values = dict(enumerate(arrays)) | dict(zip(floating, chosen, strict=True))
            made = lowering.run(node, values, 1, jax.numpy.asarray(NO_KEY))
            return [m for m, t in zip(made, expected.made, strict=True) if t.is_floating_point()], made

        _, pull, made = jax.vjp(of, [arrays[at] for at in floating], has_aux=True)
        (gradients,) = pull(cotangents)
        return made, gradients

    return call


@cache
def outcomes(group: str) -> list[tuple[Expected, Any]]:
    """PyTorch's and JAX's results for each sample of a group; of JAX the error, if it refused."""
    samples = GROUPS[group]
    expected = [Expected(sample) for sample in samples]
    given = [
        ([array_of(t) for t in e.given], [array_of(c) for c in e.cotangents if c.is_floating_point()])
        for e in expected
    ]
    calls = [_pulled(sample, e) for sample, e in zip(samples, expected, strict=True)]
    refused: dict[int, Exception] = {}
    for at, (call, arrays) in enumerate(zip(calls, given, strict=True)):
        try:
            jax.eval_shape(call, *arrays)
        except Exception as error:
            refused[at] = error
    working = [at for at in range(len(samples)) if at not in refused]
    run = jax.jit(lambda given: [calls[at](*given[place]) for place, at in enumerate(working)])
    made = dict(zip(working, run([given[at] for at in working]), strict=True))
    return [(e, made.get(at, refused.get(at))) for at, e in enumerate(expected)]


def require_close(ours: Any, theirs: Tensor, tolerance: float, what: str) -> None:
    reference = array_of(theirs.detach())
    found = np.asarray(ours)
    assert found.dtype == reference.dtype, what
    assert found.shape == reference.shape, what
    if not reference.size or not theirs.is_floating_point():
        assert np.array_equal(found, reference), what
        return
    wide = reference.astype(np.float64)
    finite = np.abs(wide[np.isfinite(wide)])
    largest = float(finite.max()) if finite.size else 0.0
    np.testing.assert_allclose(
        found.astype(np.float64), wide, rtol=0, atol=tolerance * largest, equal_nan=True, err_msg=what
    )


@pytest.mark.cases(220)
@pytest.mark.parametrize(("group", "at"), CASES, ids=[f"{g}-{a}-{GROUPS[g][a].op}" for g, a in CASES])
def test_an_op_computes_what_torch_does(group: str, at: int) -> None:
    expected, outcome = outcomes(group)[at]
    if isinstance(outcome, Exception):
        raise outcome
    made, gradients = outcome
    tolerance = GROUPS[group][at].tolerance
    for ours, theirs in zip(made, expected.made, strict=True):
        require_close(ours, theirs, tolerance, "value")
    for ours, theirs in zip(gradients, expected.gradients, strict=True):
        require_close(ours, theirs, 4 * tolerance, "gradient")


def test_every_op_has_a_sample_or_draws_random_numbers() -> None:
    sampled = {opset.full_name(sample.op) for samples in GROUPS.values() for sample in samples}
    draws = {name for name, op in opset.table().items() if op.random}
    assert opset.table().keys() - sampled - draws - set(lowering.REFUSED) == set()
