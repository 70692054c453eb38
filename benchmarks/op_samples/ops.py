"""Every op of the opset with its samples, and what a backend refuses of them."""

from __future__ import annotations

from functools import cache

from benchmarks.op_samples.database import samples_of
from benchmarks.op_samples.one_segment import laid_out, segment_of
from benchmarks.op_samples.own import own_samples
from benchmarks.op_samples.samples import Sample

from farflung.errors import GraphError
from farflung.opdag import opset
from farflung.runtime.backend import AnyBackend
from farflung.runtime.frameworks import backend_called

RANDOM = {
    "aten.native_dropout.default",
    "aten.rand.default",
    "aten.randn.default",
    "aten.rand_like.default",
    "aten.randn_like.default",
    "aten.bernoulli.p",
    "aten.bernoulli.default",
    "aten.exponential.default",
}
"""Ops whose every result is random: `test_random_ops.py` has them."""
OPS = sorted(set(opset.table()) - RANDOM)

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
        "aten.index_put.default": "indices must be integers",
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
