"""What `Job(quantize=)` makes of a captured model and of its values."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from farflung.errors import JobError, WeightsError
from farflung.opdag.buckets import in_bucket, in_buckets, with_buckets
from farflung.opdag.capture import Capture
from farflung.opdag.form import Form
from farflung.opdag.quantized import Quantization, quantized
from farflung.quantization import QuantizedFormat, quantized_bytes
from farflung.runtime.torch_backend.quantized import dequantized
from farflung.runtime.torch_backend.tensors import allocate, memory, outgoing, over
from farflung.text import and_more
from farflung.weights.quantizing import quantize_stored

if TYPE_CHECKING:
    from farflung.client.api.job import Job


def with_quantized(captured: Capture, job: Job) -> Capture:
    """The capture with its frozen matrices quantized, if the job asks for it.

    Raises
    ------
    JobError
        There is nothing to quantize, or a matrix has values that are infinite or not a number.
    """
    if job.quantize is None:
        return captured
    graph, quantization = quantized(in_bucket(captured.graph, 0), job.quantize)
    if job.lengths:
        shorter = in_buckets(captured.graph)[1:]
        lengths = [bucket.length for bucket in captured.graph.buckets]
        others = {n: quantized(one, job.quantize)[0] for n, one in zip(lengths, shorter, strict=True)}
        graph = with_buckets(job.lengths[-1], graph, others)
        quantization = replace(quantization, before=captured.graph)
    if not quantization.matrices:
        raise JobError(f"quantize={job.quantize!r} finds nothing to quantize: {_why_not(quantization)}")
    if job.has_values:
        _require_finite(job.model, quantization)
    return replace(captured, graph=graph, quantization=quantization)


def _why_not(quantization: Quantization) -> str:
    if not quantization.left:
        return "the model has no frozen matrix; freeze its base, or leave quantize out"
    reasons = [f"{name}: {reason}" for name, reason in quantization.left.items()]
    return f"no frozen matrix can be ({and_more(reasons, 3)})"


def _require_finite(module: nn.Module, quantization: Quantization) -> None:
    for name, parameter in _matrices(module, quantization):
        if not torch.isfinite(parameter).all():
            raise JobError(
                f"quantize={quantization.form!r}: {name} has values that are infinite or not a number"
            )


def _matrices(module: nn.Module, quantization: Quantization) -> Iterator[tuple[str, nn.Parameter]]:
    """The module's parameters that are quantized, by name."""
    named = dict(module.named_parameters(remove_duplicate=False))
    for name in sorted(quantization.matrices):
        yield name, named[name]


class QuantizedState(Mapping[str, Tensor]):
    """The parameters and buffers in the form in which workers hold them; each is quantized on access.

    Raises
    ------
    JobError
        A matrix has values that are infinite or not a number.
    """

    def __init__(self, own: Mapping[str, Tensor], quantization: Quantization) -> None:
        self.own, self._quantization = own, quantization

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.own[name]
        if name not in self._quantization.matrices:
            return tensor
        try:
            return quantized_tensor(tensor, self._quantization.forms[name])
        except WeightsError as error:
            raise JobError(f"{name} cannot be quantized: {error}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.own)

    def __len__(self) -> int:
        return len(self.own)


def quantized_tensor(matrix: Tensor, form: QuantizedFormat) -> Tensor:
    """A matrix as codes and scales, uint8 [rows, bytes of a row].

    Raises
    ------
    WeightsError
        It has values that are infinite or not a number.
    """
    rows, columns = matrix.shape
    width = quantized_bytes(columns, form)
    buffer = allocate(rows * width)
    kind = str(matrix.dtype).removeprefix("torch.")
    quantize_stored(memory(outgoing(matrix)), kind, form, buffer)
    return over(buffer, Form("uint8", (rows, width)))


def quantized_matrices(module: nn.Module, quantization: Quantization | None) -> dict[str, Tensor]:
    """The module's quantized matrices by name, as workers hold them; none without a quantization."""
    if quantization is None:
        return {}
    forms = quantization.forms
    return {name: quantized_tensor(one, forms[name]) for name, one in _matrices(module, quantization)}


def dequantized_copy(
    module: nn.Module, held: Mapping[str, Tensor], quantization: Quantization | None
) -> nn.Module:
    """A copy of the module with what `held`, its quantized matrices, stand for; itself if there are none."""
    if quantization is None:
        return module
    module = copy.deepcopy(module)
    for name, parameter in _matrices(module, quantization):
        parameter.data = dequantized(held[name], quantization.forms[name], parameter.dtype)
    return module
