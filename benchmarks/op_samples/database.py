"""torch's own op database (`op_db`), bound to the ops of the table.

An `OpInfo` knows an op by what Python calls it and makes inputs that its authors found worth a test: sizes of
zero and one, broadcasting, negative dimensions, every mode. What the table's schema cannot say is left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from benchmarks.op_samples.samples import Call, Sample, Unfit, spread
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from farflung.errors import GraphError
from farflung.opdag import opset

SEED = 7
MOST_LOOKED_AT = 200
PER_TYPE = {torch.float32: 3, torch.bfloat16: 1, torch.int64: 1, torch.bool: 1}
"""How many samples an op gets for each element type that it takes."""

UNSAID = {
    # Statistics of batches in halves, which nobody has: torch states another type than its kernel makes.
    ("aten._native_batch_norm_legit_functional.default", torch.bfloat16),
    # Of equal entries any may come first.
    ("aten.topk.default", torch.int64),
    ("aten.topk.default", torch.bfloat16),
}
"""Samples that say nothing of a backend."""

CALLED = {
    "aten.pow.Scalar": ["pow"],
    "aten._native_batch_norm_legit_functional.default": ["_native_batch_norm_legit"],
    "aten._native_batch_norm_legit.no_stats": ["_native_batch_norm_legit"],
    "aten.nll_loss_nd.default": ["nn.functional.nll_loss"],
    "aten.cross_entropy_loss.default": ["nn.functional.cross_entropy"],
    "aten.index.Tensor": ["__getitem__"],
    "aten.linalg_vector_norm.default": ["linalg.vector_norm"],
    "aten.log_sigmoid.default": ["nn.functional.logsigmoid"],
}
"""What the database calls an op, where it is not the op's own name or `nn.functional.` and that."""


@cache
def samples_of(name: str) -> tuple[Sample, ...]:
    """What the database has for an op of the table; random results are left out.

    Bound in a thread: the database has the whole stack described, sources and all, for each sample and for
    each iterator, and pytest's is deep: 6.5 CPU seconds for 17 ops, in place of 0.8 for the same samples.
    """
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(_found, name).result()
    return tuple(sample for sample in found if sample.is_fit())


def _found(name: str) -> list[Sample]:
    return [s for dtype, most in PER_TYPE.items() for s in spread(list(_bound(name, dtype)), most)]


def _infos(name: str) -> Iterator[OpInfo]:
    base = name.split(".")[1]
    names = CALLED.get(name, [base, f"nn.functional.{base}"])
    yield from (info for info in op_db if info.name in names)


def _bound(name: str, dtype: torch.dtype) -> Iterator[Sample]:
    op = opset.lookup(name)
    for info in _infos(name):
        if dtype not in info.supported_dtypes("cpu") or (name, dtype) in UNSAID:
            continue
        torch.manual_seed(SEED)
        differentiable = info.supports_autograd and dtype.is_floating_point
        inputs = info.sample_inputs("cpu", dtype, requires_grad=differentiable)
        for given in itertools.islice(inputs, MOST_LOOKED_AT):
            try:
                sample = _call(name, info, given).bound(op, f"{info.full_name} of {dtype}")
            except (Unfit, GraphError):
                continue
            if not sample.draws():
                yield RESULTS.get(name, _same)(sample)


def _call(name: str, info: OpInfo, given: SampleInput) -> Call:
    values = (given.input, *given.args)
    return CALLS.get(name, Call)(info.op, values, given.kwargs)


def _same(sample: Sample) -> Sample:
    return sample


def _where(function: Callable[..., Any], values: tuple[Any, ...], words: dict[str, Any]) -> Call:
    """The database's `where` is a method of what it chooses where the condition holds."""
    chosen, condition, other = values
    return Call(torch.where, (condition, chosen, other), words)


def _embedding(function: Callable[..., Any], values: tuple[Any, ...], words: dict[str, Any]) -> Call:
    """The user's -1 is the last row, the op's is none."""
    if words.get("padding_idx", 0) < 0:
        words = {**words, "padding_idx": words["padding_idx"] + len(values[0])}
    return Call(function, values, words)


def _index(function: Callable[..., Any], values: tuple[Any, ...], words: dict[str, Any]) -> Call:
    """Whole dimensions and lists of positions are what the op can say, slices and numbers are other ops."""
    tensor, positions = values
    places = list(positions) if isinstance(positions, tuple) else [positions]
    if any(place is Ellipsis for place in places):
        raise Unfit
    indices = [_index_tensor(place) for place in places]
    return Call(lambda tensor, indices: function(tensor, positions), (tensor, indices), words)


def _index_tensor(place: object) -> Tensor | None:
    if place == slice(None):
        return None
    if isinstance(place, list):
        return torch.tensor(place)
    if isinstance(place, Tensor):
        return place
    raise Unfit


CALLS: dict[str, Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Call]] = {
    "aten.where.self": _where,
    "aten.where.ScalarOther": _where,
    "aten.where.ScalarSelf": _where,
    "aten.embedding.default": _embedding,
    "aten.index.Tensor": _index,
}


def _batch_norm(sample: Sample) -> Sample:
    """The database's op writes the running statistics; ours makes new ones."""

    def made() -> list[Tensor]:
        given = dict(sample.arguments)
        running = [given[name].clone() for name in ("running_mean", "running_var")]
        given |= dict(zip(("running_mean", "running_var"), running, strict=True))
        results = torch.ops.aten._native_batch_norm_legit.default(
            given["input"], given.get("weight"), given.get("bias"), *running,
            given["training"], given["momentum"], given["eps"],
        )  # fmt: skip
        return [*results, *running]

    return Sample(sample.op, sample.arguments, made, frozenset({1, 2}), sample.source)


def _only_first(sample: Sample) -> Sample:
    return Sample(sample.op, sample.arguments, sample.reference, frozenset({1, 2}), sample.source)


RESULTS: dict[str, Callable[[Sample], Sample]] = {
    "aten._native_batch_norm_legit_functional.default": _batch_norm,
    "aten._native_batch_norm_legit.no_stats": _only_first,
}
