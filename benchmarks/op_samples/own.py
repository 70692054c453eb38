"""Samples of our own: for ops that torch's database does not know, and of cases that it leaves out.

The reference is what users of torch call, never the op itself where there is another way to say it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks.op_samples.samples import Sample
from torch import Tensor

from farflung.quantization import FORMATS, quantize, quantized_bytes
from farflung.runtime.torch_backend.quantized import dequantized


def _random(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_(dtype.is_floating_point)


def _detach(op: str) -> Iterator[Sample]:
    x = _random(3, 4)
    yield Sample(op, {"self": x}, x.detach)


def _to_copy(op: str) -> Iterator[Sample]:
    given = [
        _random(3, 4),
        torch.arange(-6, 6),
        torch.tensor([True, False]),
        torch.tensor([1.9, -1.9, 0.5, -0.5, 300.0]),
        _random(2, 3, dtype=torch.bfloat16),
    ]
    for x in given:
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32):
            yield Sample(op, {"self": x, "dtype": dtype}, lambda x=x, dtype=dtype: x.to(dtype))
        yield Sample(op, {"self": x, "dtype": torch.bool}, lambda x=x: x.to(torch.bool))
    yield Sample(op, {"self": given[0]}, given[0].clone)


def _embedding(op: str) -> Iterator[Sample]:
    """The row of the padding index has no gradient, and frequent rows may count less."""
    indices = torch.tensor([[0, 2, 2], [4, 2, 0]])
    for padding in (-1, 0, 2):
        for by_frequency in (False, True):
            weight = _random(5, 3)
            arguments = {
                "weight": weight,
                "indices": indices,
                "padding_idx": padding,
                "scale_grad_by_freq": by_frequency,
            }

            def made(weight: Tensor = weight, padding: int = padding, often: bool = by_frequency) -> Tensor:
                return F.embedding(
                    indices, weight, padding if padding >= 0 else None, scale_grad_by_freq=often
                )

            yield Sample(op, arguments, made)


def _max_pool2d(op: str) -> Iterator[Sample]:
    """Where several are the largest, one of them gets the gradient."""
    x = torch.tensor([[[[1.0, 1.0, 2.0], [1.0, 0.0, 2.0], [2.0, 2.0, 2.0]]]], requires_grad=True)
    for ceil in (False, True):
        arguments = {"self": x, "kernel_size": [2, 2], "stride": [2, 2], "ceil_mode": ceil}
        yield Sample(op, arguments, lambda ceil=ceil: F.max_pool2d(x, 2, ceil_mode=ceil))
    arguments = {"self": x, "kernel_size": [3, 3], "stride": [1, 1], "padding": [1, 1]}
    yield Sample(op, arguments, lambda: F.max_pool2d(x, 3, stride=1, padding=1))


def _amax(op: str) -> Iterator[Sample]:
    """Where several are the largest, they share the gradient."""
    x = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], requires_grad=True)
    for dim in (0, 1):
        yield Sample(op, {"self": x, "dim": [dim]}, lambda dim=dim: x.amax(dim))
    yield Sample(op, {"self": x}, lambda: x.amax())


def _argmax(op: str) -> Iterator[Sample]:
    """Of several largest the first one counts."""
    x = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    yield Sample(op, {"self": x, "dim": 1}, lambda: x.argmax(1))
    yield Sample(op, {"self": x}, lambda: x.argmax())


def _cross_entropy(op: str) -> Iterator[Sample]:
    """Targets that do not count, all at once with weights and smoothing."""
    scores, weight = _random(4, 5), torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0])
    targets = torch.tensor([0, -100, 4, 2])
    for reduction, word in enumerate(("none", "mean", "sum")):
        for smoothing in (0.0, 0.2):
            arguments = {
                "self": scores,
                "target": targets,
                "weight": weight,
                "reduction": reduction,
                "label_smoothing": smoothing,
            }

            def made(word: str = word, smoothing: float = smoothing) -> Tensor:
                return F.cross_entropy(scores, targets, weight, reduction=word, label_smoothing=smoothing)

            yield Sample(op, arguments, made)


def _batch_norm(op: str) -> Iterator[Sample]:
    """Pictures in halves, statistics not: what autocast makes of a batch normalisation."""
    for training in (True, False):
        arguments = {
            "input": _random(4, 3, 2, 2, dtype=torch.bfloat16),
            "weight": _random(3),
            "bias": _random(3, seed=2),
            "running_mean": torch.zeros(3),
            "running_var": torch.ones(3),
            "training": training,
            "momentum": 0.1,
            "eps": 1e-5,
        }

        def made(given: dict[str, Any] = arguments) -> list[Tensor]:
            mean, variance = given["running_mean"].clone(), given["running_var"].clone()
            words = {name: given[name] for name in ("weight", "bias", "training", "momentum", "eps")}
            y = F.batch_norm(given["input"], mean, variance, **words)
            return [y, torch.empty(0), torch.empty(0), mean, variance]

        yield Sample(op, arguments, made, frozenset({1, 2}))


def _attention(op: str) -> Iterator[Sample]:
    """Fewer heads for keys than for queries, masks of both kinds, and a scale of one's own."""
    query, key, value = _random(2, 4, 3, 8), _random(2, 2, 3, 8, seed=2), _random(2, 2, 3, 8, seed=3)
    grouped = {"query": query, "key": key, "value": value, "enable_gqa": True}
    yield Sample(op, grouped, lambda: F.scaled_dot_product_attention(query, key, value, enable_gqa=True))
    mask = torch.ones(3, 3).tril().bool()
    for attn_mask in (mask, torch.zeros(3, 3).masked_fill(~mask, -1e4)):
        arguments = {"query": query, "key": query, "value": query, "attn_mask": attn_mask, "scale": 0.3}
        yield Sample(
            op,
            arguments,
            lambda attn_mask=attn_mask: F.scaled_dot_product_attention(
                query, query, query, attn_mask, scale=0.3
            ),
        )


def _promoted(function: Callable[[Tensor, Tensor | float], Tensor]) -> Callable[[str], Iterator[Sample]]:
    """Two element types: a number takes the tensor's, a tensor of no dimension only lifts its kind."""

    def samples(op: str) -> Iterator[Sample]:
        whole, real = torch.tensor([[3, -2], [7, 1]]), _random(2, 2)
        narrow, low = torch.tensor([1, 2], dtype=torch.int32), _random(2, 2, dtype=torch.bfloat16)
        alone = torch.tensor(2.0, dtype=torch.float64)
        for left, right in [(whole, real), (real, whole), (low, real), (whole, narrow), (real, alone)]:
            arguments = {"self": left, "other": right}
            yield Sample(op, arguments, lambda left=left, right=right: function(left, right))
        for left, right in [(real, 2), (low, 0.5), (narrow, 3)]:
            arguments = {"self": left, "other": right}
            yield Sample(op, arguments, lambda left=left, right=right: function(left, right))

    return samples


def _upsampled(mode: str, *shape: int) -> Callable[[str], Iterator[Sample]]:
    """To a size and by a factor, with corners aligned and not."""

    def samples(op: str) -> Iterator[Sample]:
        size, factors = [5] * (len(shape) - 2), [2.0] * (len(shape) - 2)
        for align in (False, True):
            for given in (
                {"output_size": size, "scale_factors": None},
                {"output_size": None, "scale_factors": factors},
            ):
                x = _random(*shape)
                words = {"size": given["output_size"], "scale_factor": given["scale_factors"]}

                def made(x: Tensor = x, words: dict[str, Any] = words, align: bool = align) -> Tensor:
                    return F.interpolate(x, **words, mode=mode, align_corners=align)

                yield Sample(op, {"input": x, "align_corners": align, **given}, made)

    return samples


def _nearest(*shape: int) -> Callable[[str], Iterator[Sample]]:
    """To a size and by a factor, up and down."""

    def samples(op: str) -> Iterator[Sample]:
        count = len(shape) - 2
        for size, factor in ((5, None), (2, None), (None, 2.0), (None, 0.7)):
            x = _random(*shape)
            given = {
                "output_size": None if size is None else [size] * count,
                "scale_factors": None if factor is None else [factor] * count,
            }

            def made(x: Tensor = x, size: int | None = size, factor: float | None = factor) -> Tensor:
                return F.interpolate(x, size=size, scale_factor=factor)

            yield Sample(op, {"input": x, **given}, made)

    return samples


def _quantized_linear(op: str) -> Iterator[Sample]:
    """With and without a bias, by rows of outputs or inputs; nothing is asked of the matrix itself."""
    for form in FORMATS:
        for dtype in (torch.float32, torch.bfloat16):
            for transposed, bias in ((False, None), (False, 6), (True, 64)):
                weight = _quantized(_random(6, 64), form)
                given: dict[str, Any] = {
                    "input": _random(2, 3, 6 if transposed else 64, seed=2, dtype=dtype),
                    "weight": weight,
                    "format": form,
                    "transposed": transposed,
                }
                if bias is not None:
                    given["bias"] = _random(bias, seed=3, dtype=dtype)

                def made(given: dict[str, Any] = given) -> Tensor:
                    matrix = dequantized(given["weight"], given["format"], given["input"].dtype)
                    return F.linear(
                        given["input"], matrix.t() if given["transposed"] else matrix, given.get("bias")
                    )

                yield Sample(op, given, made)


def _quantized_embedding(op: str) -> Iterator[Sample]:
    for form in FORMATS:
        for indices in (torch.tensor([[0, 2, 2], [4, 2, 0]]), torch.tensor([5], dtype=torch.int32)):
            for dtype in (torch.float32, torch.bfloat16):
                weight = _quantized(_random(6, 64), form)
                given = {"weight": weight, "indices": indices, "format": form, "dtype": dtype}

                def made(given: dict[str, Any] = given) -> Tensor:
                    matrix = dequantized(given["weight"], given["format"], given["dtype"])
                    return F.embedding(given["indices"], matrix)

                yield Sample(op, given, made)


def _quantized(matrix: Tensor, form: str) -> Tensor:
    """A matrix as codes and scales, uint8 [rows, bytes of a row]."""
    packed = np.empty(quantized_bytes(matrix.numel(), form), np.uint8)
    quantize(matrix.detach().numpy().reshape(-1), form, packed)
    return torch.from_numpy(packed).view(len(matrix), -1)


OWN: dict[str, Callable[[str], Iterator[Sample]]] = {
    "aten.detach.default": _detach,
    "aten._to_copy.default": _to_copy,
    "aten.embedding.default": _embedding,
    "aten.max_pool2d.default": _max_pool2d,
    "aten.amax.default": _amax,
    "aten.argmax.default": _argmax,
    "aten._native_batch_norm_legit_functional.default": _batch_norm,
    "aten.cross_entropy_loss.default": _cross_entropy,
    "aten.scaled_dot_product_attention.default": _attention,
    "farflung.quantized_linear.default": _quantized_linear,
    "farflung.quantized_embedding.default": _quantized_embedding,
    "aten.upsample_linear1d.vec": _upsampled("linear", 2, 3, 4),
    "aten.upsample_bilinear2d.vec": _upsampled("bilinear", 2, 3, 4, 3),
    "aten.upsample_bicubic2d.vec": _upsampled("bicubic", 2, 3, 4, 3),
    "aten.upsample_nearest1d.vec": _nearest(2, 3, 4),
    "aten.upsample_nearest2d.vec": _nearest(2, 3, 4, 3),
    "aten.upsample_nearest3d.vec": _nearest(1, 2, 3, 4, 3),
    "aten.upsample_trilinear3d.vec": _upsampled("trilinear", 1, 2, 3, 4, 3),
    "aten.add.Tensor": _promoted(torch.add),
    "aten.sub.Tensor": _promoted(torch.sub),
    "aten.mul.Tensor": _promoted(torch.mul),
    "aten.div.Tensor": _promoted(torch.div),
}
"""By op of the table."""

UNKNOWN_TO_TORCH = {
    "aten.detach.default",
    "aten._to_copy.default",
    "farflung.quantized_linear.default",
    "farflung.quantized_embedding.default",
    "aten.upsample_linear1d.vec",
    "aten.upsample_bilinear2d.vec",
    "aten.upsample_bicubic2d.vec",
    "aten.upsample_trilinear3d.vec",
    "aten.upsample_nearest1d.vec",
    "aten.upsample_nearest2d.vec",
    "aten.upsample_nearest3d.vec",
}
"""Ops that torch's database has no sample of that the table could say: all they get is of our own."""


def own_samples(op: str) -> list[Sample]:
    """Our own samples of an op; most have none."""
    return list(OWN[op](op)) if op in OWN else []
