"""How far bfloat16 on JAX is from PyTorch, and both from float64: the table's ops on torch's own samples.

Values and first gradients, in units of 2^-8 (one step of bfloat16 at 1) of the largest entry, or of 1 if that
is more.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # compiling takes most of the time
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from benchmarks.op_samples.one_segment import Layout, expected_gradients, laid_out, run, seeds_of
from benchmarks.op_samples.ops import OPS, REFUSALS, admitted, backend, samples
from benchmarks.op_samples.samples import Sample
from torch import Tensor

from farflung.runtime.torch_backend.codegen import resolve

STEP = 2.0**-8
Row = tuple[float, str, str, float, float]  # ours to PyTorch, op, value or gradient, each to float64


def fit(op: str) -> list[Sample]:
    """The samples that are in bfloat16 and ask for no other type."""
    found = [sample for sample in samples(op) if any(t.dtype == torch.bfloat16 for t in sample.tensors)]
    found = [s for s in found if not any(isinstance(a, torch.dtype) for a in s.arguments.values())]
    return admitted("jax", op, found) if found and op in REFUSALS["jax"] else found


def precise(sample: Sample) -> tuple[list[Tensor], dict[int, Tensor]]:
    """What the op makes in float64 of the same numbers, and the arguments by the ids of the sample's."""
    known = {
        id(t): t.detach().double().requires_grad_(t.requires_grad) if t.is_floating_point() else t
        for t in sample.tensors
    }

    def of(argument: Any) -> Any:
        if isinstance(argument, list):
            return [of(element) for element in argument]
        return known[id(argument)] if isinstance(argument, Tensor) else argument

    made = resolve(sample.op)(**{name: of(argument) for name, argument in sample.arguments.items()})
    return [made] if isinstance(made, Tensor) else list(made), known


def rows_of(op: str, subject: list[Sample]) -> Iterator[Row]:
    """One row for each value and gradient in bfloat16."""
    layout: Layout = laid_out(subject)
    seeds = seeds_of(layout)
    gradients = expected_gradients(layout, seeds)
    made, sent = run(backend("jax"), layout, seeds)
    for at, sample in enumerate(subject):
        results, known = precise(sample)
        kept = [result for place, result in enumerate(results) if place not in sample.unused]
        outputs = [n for n in layout.expected if layout.sample_of[n] == at]
        truth = dict(zip(outputs, kept, strict=True))
        for number, reference in truth.items():
            yield from _row(op, "value", reference, layout.expected[number], made[number])
        seeded = [number for number in outputs if number in seeds]
        wanted = [
            n for n, t in layout.given.items() if layout.sample_of[n] == at and n in gradients and n in sent
        ]
        if seeded and wanted:
            inputs = [known[id(layout.given[number])] for number in wanted]
            pulled = torch.autograd.grad(
                [truth[n] for n in seeded], inputs, [seeds[n].double() for n in seeded], allow_unused=True
            )
            for number, reference in zip(wanted, pulled, strict=True):
                if reference is not None:
                    yield from _row(op, "gradient", reference, gradients[number], sent[number])


def _row(op: str, what: str, reference: Tensor, theirs: Tensor, ours: Tensor) -> Iterator[Row]:
    finite = reference.isfinite() & theirs.isfinite() & ours.isfinite()
    if theirs.dtype != torch.bfloat16 or not finite.any():
        return
    truth, a, b = (tensor.detach().double()[finite] for tensor in (reference, ours, theirs))
    unit = STEP * max(1.0, float(truth.abs().max()))
    apart, one, other = (float((x - y).abs().max()) / unit for x, y in ((a, b), (a, truth), (b, truth)))
    yield apart, op, what, one, other


def main() -> None:
    """Print the ops that are farthest apart, and the worst of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # torch's own, of the strange things that its database asks for
    torch.set_num_threads(1)
    rows: list[Row] = []
    for op in OPS:
        if subject := fit(op):
            rows += rows_of(op, subject)
    rows.sort(reverse=True)
    worst = {
        "rows": len(rows),
        "apart": rows[0][0],
        "jax": max(r[3] for r in rows),
        "torch": max(r[4] for r in rows),
    }
    if options.json:
        print(json.dumps(worst))
        return
    for apart, op, what, ours, theirs in rows[:10]:
        print(f"{op:45} {what:9} apart {apart:5.2f}, from float64: JAX {ours:5.2f}, PyTorch {theirs:5.2f}")
    print(json.dumps(worst))


if __name__ == "__main__":
    main()
