"""What compositions compute is what torch computes, also at the edges of types and shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from farflung.opdag.capture.compositions import compositions

ATEN = torch.ops.aten
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def composed(op: Any, *arguments: Any, **named: Any) -> Tensor:
    made: Tensor = compositions()[op](*arguments, **named)
    return made


def test_sinh_is_exact_near_zero() -> None:
    x = torch.tensor([0.0, 1e-30, 1e-8, -1e-7, 1e-4, -0.1, 1.0, -20.0, 88.0], requires_grad=True)
    made = composed(ATEN.sinh.default, x)
    torch.testing.assert_close(made, x.sinh(), rtol=1e-6, atol=0.0)
    (gradient,) = torch.autograd.grad(made.sum(), x)
    torch.testing.assert_close(gradient, x.detach().cosh(), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.float32], ids=str)
def test_argmin_heeds_the_smallest_and_largest_of_a_type(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    x = torch.tensor([[1, 5, 0], [limits.max, 3, limits.max], [limits.max, 2, limits.min]], dtype=dtype)
    for dim in (0, 1, None):
        assert torch.equal(composed(ATEN.argmin.default, x, dim), x.argmin(dim))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("limits", [(0.99, 1.01), (-3.3, 17.2), (0, 1), (1e-6, 3.0)], ids=str)
@pytest.mark.parametrize("shape", [(3,), (33, 129)], ids=str)
def test_uniform_draws_have_the_bits_of_torch(
    dtype: torch.dtype, limits: tuple[float, float], shape: tuple[int, ...]
) -> None:
    x = torch.zeros(shape, dtype=dtype)
    torch.manual_seed(5)
    made = composed(ATEN.uniform.default, x, *limits)
    torch.manual_seed(5)
    assert torch.equal(made, x.uniform_(*limits))


WIDE = st.one_of(st.integers(-(2**62), 2**62), st.integers(2**24 - 9, 2**24 + 9), st.integers(-9, 9))


@pytest.mark.parametrize("mode", ["floor", "trunc"])
@given(WIDE, WIDE.filter(bool))
def test_whole_quotients_are_exact(mode: str, one: int, other: int) -> None:
    for dtype in INTEGERS:
        span = torch.iinfo(dtype)
        if not (span.min < one <= span.max and span.min < other <= span.max):
            continue
        x, y = (torch.tensor([number], dtype=dtype) for number in (one, other))
        expected = torch.div(x, y, rounding_mode=mode)
        for made in (
            composed(ATEN.div.Tensor_mode, x, y, rounding_mode=mode),
            composed(ATEN.div.Scalar_mode, x, other, rounding_mode=mode),
        ):
            assert made.dtype == dtype and torch.equal(made, expected)


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_quotients_of_several_types_are_of_the_type_of_torch(mode: str) -> None:
    x = torch.tensor([-(2**24) - 1, 7, -7])
    for other in (torch.tensor([2, 2, 2], dtype=torch.int16), torch.tensor([2.0, 2.0, 2.0]), 2, 2.0):
        op = ATEN.div.Tensor_mode if isinstance(other, Tensor) else ATEN.div.Scalar_mode
        made, expected = composed(op, x, other, rounding_mode=mode), torch.div(x, other, rounding_mode=mode)
        assert made.dtype == expected.dtype and torch.equal(made, expected)


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3), (2, 3), ()])
def test_any_of_nothing_is_false(shape: tuple[int, ...]) -> None:
    for x in (torch.zeros(shape), torch.ones(shape)):
        assert torch.equal(composed(ATEN.any.default, x), x.any())
        for dim in range(len(shape)):
            for keepdim in (False, True):
                assert torch.equal(composed(ATEN.any.dim, x, dim, keepdim), x.any(dim, keepdim))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(
    ("size", "wanted"), [((8, 8), (4, 4)), ((7, 9), (14, 5)), ((16, 5), (3, 24)), ((1, 6), (4, 1))], ids=str
)
def test_antialiased_images_and_their_gradients_are_those_of_torch(
    mode: str, align_corners: bool, size: tuple[int, int], wanted: tuple[int, int]
) -> None:
    op = getattr(ATEN, f"_upsample_{mode}2d_aa").default
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1), requires_grad=True)
    expected, made = op(x, wanted, align_corners), composed(op, x, wanted, align_corners)
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)
    above = torch.linspace(-1, 1, expected.numel()).reshape(expected.shape)
    (gradient,), (ours,) = (torch.autograd.grad(one, x, above) for one in (expected, made))
    torch.testing.assert_close(ours, gradient, rtol=1e-5, atol=1e-5)
