"""Every op of the table on every backend, beside torch's own op database: values and first gradients."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import pytest
import torch
from benchmarks.op_samples.database import samples_of
from benchmarks.op_samples.one_segment import Layout, expected_gradients, laid_out, run, seeds_of
from benchmarks.op_samples.ops import OPS, RANDOM, REFUSALS, admitted, backend, samples
from benchmarks.op_samples.own import UNKNOWN_TO_TORCH, own_samples
from benchmarks.op_samples.samples import Sample
from torch import Tensor

from farflung.opdag import opset
from farflung.runtime.frameworks import COMPUTING

pytestmark = pytest.mark.slow

torch.set_num_threads(1)

# Relative, and of the largest entry: what one rounding of the element type is worth, times a few additions
# (of bfloat16 two and a half: `benchmarks/halves.py` finds 1.8 at most).
TOLERANCES = {
    torch.float64: (1e-9, 1e-9),
    torch.float32: (1e-4, 1e-5),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (0.0, 1e-2),
}


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


@pytest.mark.cases(130)
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
