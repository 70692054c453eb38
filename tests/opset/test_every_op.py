"""Every op of the table on every backend, beside torch's own op database: values and first gradients."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache

import pytest
import torch
from tests.opset.database import samples_of
from tests.opset.one_segment import Layout, expected_gradients, laid_out, run, seeds_of, segment_of
from tests.opset.own import UNKNOWN_TO_TORCH, own_samples
from tests.opset.samples import Sample
from torch import Tensor

from farflung.errors import GraphError
from farflung.opdag import opset
from farflung.runtime.backend import AnyBackend
from farflung.runtime.frameworks import COMPUTING, backend_called

pytestmark = pytest.mark.slow

torch.set_num_threads(1)

RANDOM = {
    "aten.native_dropout.default",
    "aten.rand.default",
    "aten.randn.default",
    "aten.rand_like.default",
    "aten.randn_like.default",
    "aten.bernoulli.p",
}
"""Ops whose every result is random: `test_random_ops.py` has them."""
OPS = sorted(set(opset.table()) - RANDOM)

# Relative, and of the largest entry: what one rounding of the element type is worth, times a few additions
# (of bfloat16 two and a half: `benchmarks/halves.py` finds 1.8 at most).
TOLERANCES = {
    torch.float64: (1e-9, 1e-9),
    torch.float32: (1e-4, 1e-5),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (0.0, 1e-2),
}


REFUSALS = {
    "jax": {
        "aten.baddbmm.default": "integers are only multiplied by integers",
        "aten.conv1d.default": "an input of 3 dimensions, int64",
        "aten.conv2d.default": "an input of 4 dimensions, int64",
        "aten.conv2d.padding": "an input of 4 dimensions, int64",
        "aten.conv3d.default": "an input of 5 dimensions, int64",
        "aten.conv1d.padding": "an input of 3 dimensions, int64",
        "aten.conv3d.padding": "an input of 5 dimensions, int64",
        "aten.conv_transpose1d.default": "an input of 3 dimensions, int64",
        "aten.conv_transpose2d.input": "an input of 4 dimensions, int64",
        "aten.conv_transpose3d.input": "an input of 5 dimensions, int64",
        "aten.gather.default": "refuses its arguments: an index of",
        "aten.group_norm.default": "integer modulo by zero",
        "aten.linalg_vector_norm.default": "a norm of order",
        "aten.pad.default": "replicate padding of 0 around 0",
    }
}
"""What a backend says of some samples before anything runs: it has the op, but not of such types or sizes."""


@cache
def backend(name: str) -> AnyBackend:
    return backend_called(name)


def samples(op: str) -> list[Sample]:
    return [*samples_of(op), *own_samples(op)]


def admitted(name: str, op: str, subject: list[Sample]) -> list[Sample]:
    """The samples that the backend does not refuse; what it refuses, in the words that are listed."""
    kept = []
    for sample in subject:
        try:
            backend(name).verify(segment_of(laid_out([sample])), 1)
        except GraphError as error:
            assert REFUSALS[name][op] in str(error)
        else:
            kept.append(sample)
    assert kept
    return kept


def largest(tensor: Tensor) -> float:
    """The largest magnitude of all that are finite."""
    finite = tensor.detach()[tensor.isfinite()].double().abs()
    return float(finite.max()) if finite.numel() else 0.0


NOISY = {"aten.layer_norm.default": 1e-3}
"""Of one element alone the deviation from the mean is 0, XLA's a rounding error, and eps is small."""


def require_close(
    what: str, layout: Layout, subject: list[Sample], ours: Mapping[int, Tensor], theirs: Mapping[int, Tensor]
) -> None:
    for number, expected in theirs.items():
        at = layout.sample_of[number]
        where = (
            f"{what} of value {number}, sample {at} ({subject[at].source}): {subject[at].wire(lambda _: 0)}"
        )
        assert number in ours, f"{where}: there is none"
        relative, absolute = TOLERANCES.get(expected.dtype, (0.0, 0.0))
        torch.testing.assert_close(
            ours[number],
            expected.detach(),
            rtol=relative,
            atol=max(NOISY.get(subject[at].op, 0.0), absolute * max(1.0, largest(expected))),
            equal_nan=True,
            msg=lambda text, where=where: f"{where}: {text}",
        )


@pytest.mark.parametrize("name", COMPUTING)
@pytest.mark.parametrize("op", OPS)
def test_an_op_makes_what_torch_makes(op: str, name: str) -> None:
    if op in backend(name).offer().lacks:
        pytest.skip(f"{name} says that it lacks {op}")
    subject = samples(op)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of the strange things that its database asks for
        if op in REFUSALS.get(name, {}):
            subject = admitted(name, op, subject)
        layout = laid_out(subject)
        seeds = seeds_of(layout)
        gradients = expected_gradients(layout, seeds)
        made, sent = run(backend(name), layout, seeds)
    require_close("value", layout, subject, made, layout.expected)
    require_close("gradient", layout, subject, sent, gradients)
    unexpected = {n: g for n, g in sent.items() if n not in gradients and g.any()}
    assert not unexpected, "a gradient that torch does not have"


@pytest.mark.parametrize("op", sorted(opset.table()))
def test_no_op_goes_unchecked(op: str) -> None:
    """An op comes from torch's database, or is listed as unknown to it and has samples of our own."""
    if op in RANDOM:
        assert opset.lookup(op).random
    elif op in UNKNOWN_TO_TORCH:
        assert own_samples(op) and not samples_of(op)
    else:
        assert samples_of(op), "torch's database has no fitting sample: add own ones, and list the op"
