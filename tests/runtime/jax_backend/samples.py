"""Calls of ops whose meaning is easily missed: each is run by PyTorch and by the JAX backend."""

# ruff: noqa: E501 (one call a line)

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

inf, nan = float("inf"), float("nan")


class Sample(NamedTuple):
    """One call by the names of the schema; `tolerance` is relative to the largest number in the result."""

    op: str
    arguments: dict[str, Any]
    tolerance: float = 2e-6


def floats(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def whole(
    *shape: int, low: int = 0, high: int = 5, dtype: torch.dtype = torch.int64, seed: int = 0
) -> Tensor:
    """Whole numbers from `low` up to below `high`."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def flags(*shape: int, seed: int = 0) -> Tensor:
    """Booleans, about half of them true."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5


bf16, f16, f64 = torch.bfloat16, torch.float16, torch.float64
x, y = floats(3, 4), floats(3, 4, seed=1)
h, g = floats(3, 4, dtype=bf16), floats(3, 4, dtype=bf16, seed=1)
n, m = whole(3, 4), whole(3, 4, low=1, seed=1)
zero_dim, int_dim = torch.tensor(2.5, dtype=f64), torch.tensor(3)
edges = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0])
ties = torch.tensor([[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
HALF = 1e-2  # one rounding in 8 bits


def _call(op: str, tolerance: float = 2e-6, **arguments: Any) -> Sample:
    return Sample(op, arguments, tolerance)


ARITHMETIC = [
    *(
        _call(op, HALF if bf16 in (a.dtype, getattr(b, "dtype", None)) else 2e-6, self=a, other=b)
        for op in ("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor")
        for a, b in [(x, y), (h, g), (n, m), (x, m), (h, y), (x, zero_dim), (h, zero_dim), (n, int_dim), (n, zero_dim), (x, y[0]), (x[:, :1], y)]
    ),
    *(
        _call(op, HALF if a.dtype == bf16 else 2e-6, self=a, other=b)
        for op in ("add.Scalar", "sub.Scalar", "rsub.Scalar", "mul.Scalar", "div.Scalar")
        for a in (x, h, n)
        for b in (3, 0.1)
    ),
    _call("add.Tensor", self=flags(4), other=flags(4, seed=1)),
    _call("mul.Tensor", self=flags(4), other=2.5),
    _call("add.Tensor", self=x, other=y, alpha=-2),
    _call("add.Tensor", HALF, self=h, other=g, alpha=0.3),
    _call("sub.Scalar", self=n, other=3, alpha=2),
    _call("rsub.Scalar", self=x, other=3, alpha=0.5),
    *(_call("pow.Tensor_Scalar", 1e-5, self=x.abs() + 0.1, exponent=e) for e in (0, 1, 2, 3.0, -1, -2, 0.5, -0.5, 1.7)),
    *(_call("pow.Tensor_Scalar", self=edges, exponent=e) for e in (2, 3, 2.0, 0)),
    _call("pow.Tensor_Scalar", self=n, exponent=3),
    _call("pow.Tensor_Scalar", self=n, exponent=1.5),
    _call("pow.Tensor_Scalar", HALF, self=h, exponent=3),
    _call("pow.Tensor_Tensor", 1e-5, self=x.abs() + 0.1, exponent=y),
    _call("pow.Tensor_Tensor", self=n, exponent=m),
    _call("pow.Tensor_Tensor", 1e-5, self=torch.tensor([0.0, 0.0, 2.0]), exponent=torch.tensor([2.0, 1.0, 0.0])),
    _call("pow.Scalar", 1e-5, self=1.5, exponent=x),
    _call("maximum.default", self=ties, other=ties.flip(1)),
    _call("minimum.default", self=ties, other=ties.flip(1)),
    _call("maximum.default", self=n, other=x),
]  # fmt: skip

FUNCTIONS = [
    *(_call(f"{op}.default", 1e-5, self=x) for op in ("exp", "sin", "cos", "tanh", "sigmoid", "silu", "erf", "neg", "abs", "square", "relu", "reciprocal")),
    *(_call(f"{op}.default", 1e-5, self=x.abs() + 0.1) for op in ("sqrt", "rsqrt", "log")),
    *(_call(f"{op}.default", HALF, self=h) for op in ("exp", "tanh", "sigmoid", "silu", "relu", "neg", "square")),
    *(_call(f"{op}.default", 1e-5, self=m) for op in ("sqrt", "exp", "log", "sigmoid", "reciprocal", "erf", "abs", "square", "relu")),
    *(_call(f"{op}.default", self=edges) for op in ("relu", "abs", "silu", "softplus", "leaky_relu", "elu", "hardtanh")),
    *(_call("gelu.default", HALF if a is h else 1e-5, self=a, approximate=way) for a in (x, h) for way in ("none", "tanh")),
    _call("softplus.default", 1e-5, self=edges * 100, beta=2, threshold=10),
    _call("elu.default", 1e-5, self=edges * 100, alpha=0.5, scale=1.5, input_scale=2),
    _call("leaky_relu.default", self=edges, negative_slope=0.3),
    _call("hardtanh.default", self=edges, min_val=0.0, max_val=6.0),
    _call("hardtanh.default", HALF, self=h),
    _call("clamp.default", self=edges, min=-1, max=0.5),
    _call("clamp.default", self=edges, max=-1),
    _call("clamp.default", self=n, min=1.5),
    _call("clamp.default", self=edges, min=2, max=-2),
    _call("clamp_min.default", self=edges, min=0.5),
    _call("where.self", self=x, other=n, condition=flags(3, 4)),
    _call("where.self", self=x, other=zero_dim, condition=flags(4)),
    _call("where.ScalarOther", self=n, other=0.5, condition=flags(3, 4)),
    _call("where.ScalarSelf", self=-inf, other=h, condition=flags(3, 4)),
    _call("masked_fill.Scalar", self=x, mask=flags(2, 3, 4), value=-inf),
    _call("masked_fill.Scalar", self=n, mask=flags(3, 1), value=7.9),
    _call("tril.default", self=floats(2, 4, 5), diagonal=1),
    _call("triu.default", self=floats(4, 5), diagonal=-1),
    *(_call(f"{op}.Tensor", self=a, other=b) for op in ("eq", "ne", "lt", "le", "gt", "ge") for a, b in [(n, m), (h, g), (n, x), (x, zero_dim)]),
    *(_call(f"{op}.Scalar", self=h, other=0.1) for op in ("eq", "ne", "lt", "le", "gt", "ge")),
    *(_call(f"{op}.default", self=n, other=flags(3, 4)) for op in ("logical_and", "logical_or")),
    _call("logical_not.default", self=n),
    *(_call(f"bitwise_{op}.Tensor", self=a, other=b) for op in ("and", "or") for a, b in [(n, m), (flags(3, 4), flags(3, 4, seed=1)), (n, int_dim)]),
    _call("bitwise_not.default", self=n),
    _call("bitwise_not.default", self=flags(5)),
]  # fmt: skip

REDUCTIONS = [
    *(_call("sum.default", HALF if a is h else 2e-6, self=a) for a in (x, h, n, flags(9))),
    _call("sum.default", self=n, dtype=torch.float32),
    _call("sum.default", HALF, self=torch.full((5000,), 0.1, dtype=bf16)),
    _call("sum.dim_IntList", self=floats(2, 3, 4), dim=[-1, 0], keepdim=True),
    _call("sum.dim_IntList", self=x, dim=[]),
    _call("sum.dim_IntList", self=flags(3, 4), dim=[1]),
    _call("sum.dim_IntList", self=torch.tensor(3.0), dim=[-1]),
    _call("mean.default", self=x),
    _call("mean.default", HALF, self=torch.full((3000,), 0.1, dtype=bf16)),
    _call("mean.dim", self=floats(2, 3, 4), dim=[1, -1]),
    _call("mean.dim", self=n, dim=None, dtype=torch.float32),
    _call("amax.default", self=ties, dim=[1]),
    _call("amax.default", self=ties),
    _call("amax.default", self=n, dim=[0, -1], keepdim=True),
    *(_call("argmax.default", self=ties, dim=dim, keepdim=keep) for dim in (None, -1, 0) for keep in (False, True)),
    _call("var.correction", 1e-5, self=x),
    _call("var.correction", 1e-5, self=x, dim=[1], correction=0, keepdim=True),
    _call("var.correction", 1e-5, self=x, dim=[0, 1], correction=2),
    *(_call(f"{op}.int", HALF if a is h else 2e-6, self=a, dim=dim) for op in ("softmax", "log_softmax") for a in (x, h) for dim in (-1, 0)),
    _call("softmax.int", self=h, dim=1, dtype=torch.float32),
    _call("log_softmax.int", self=n, dim=1, dtype=torch.float32),
    _call("softmax.int", self=torch.tensor([[-inf, 0.0, 1.0]]), dim=-1),
    _call("logsumexp.default", self=x, dim=[0, 1]),
    _call("logsumexp.default", self=n, dim=[-1], keepdim=True),
    *(_call("cumsum.default", HALF if a is h else 2e-6, self=a, dim=d) for a in (x, h, n, flags(3, 4)) for d in (0, -1)),
    _call("cumsum.default", self=n, dim=1, dtype=torch.float32),
    *(_call("diff.default", HALF if a is h else 2e-6, self=a, n=times, dim=d) for a in (x, h, n, flags(3, 4)) for times, d in ((1, -1), (2, 0), (0, 1), (5, 1))),
    _call("diff.default", self=n, prepend=n[:, :1] - 1),
    _call("diff.default", self=x, dim=0, prepend=y[:2], append=n[:1]),
    *(_call("topk.default", self=a, k=2, dim=d, largest=way) for a in (x, h) for d in (0, -1) for way in (True, False)),
    _call("topk.default", self=x, k=4, sorted=True),
    _call("topk.default", self=torch.tensor([3, -5, 7, 0]), k=3, largest=False),
]  # fmt: skip

scores, classes = floats(5, 7), whole(5, high=7)
skipped = classes.clone()
skipped[1] = -100
pixels = whole(2, 4, 4, high=3)
weights = floats(7).abs()
LOSSES = [
    *(
        _call("cross_entropy_loss.default", 1e-5, self=scores, target=t, reduction=r, weight=w, label_smoothing=s)
        for t in (classes, skipped)
        for r, w, s in [(0, None, 0.0), (1, None, 0.1), (1, weights, 0.0), (2, weights, 0.2), (1, weights, 0.2), (0, weights, 0.3)]
    ),
    *(
        _call("cross_entropy_loss.default", 1e-5, self=scores, target=floats(5, 7, seed=3).softmax(1), reduction=r, weight=w, label_smoothing=s)
        for r, w, s in [(0, None, 0.0), (1, weights, 0.1), (2, None, 0.2)]
    ),
    _call("cross_entropy_loss.default", self=scores[0], target=torch.tensor(3)),
    _call("cross_entropy_loss.default", self=floats(2, 3, 4, 4), target=pixels, ignore_index=1, label_smoothing=0.1),
    _call("cross_entropy_loss.default", HALF, self=floats(5, 7, dtype=bf16), target=classes),
    *(_call("nll_loss_nd.default", self=scores.log_softmax(1), target=skipped, weight=w, reduction=r) for w in (None, weights) for r in (0, 1, 2)),
    _call("nll_loss_nd.default", self=floats(2, 3, 4, 4), target=pixels),
    *(_call("mse_loss.default", self=x, target=y, reduction=r) for r in (0, 1, 2)),
    *(_call("smooth_l1_loss.default", self=3 * x, target=y, reduction=r, beta=b) for r, b in [(0, 1.0), (1, 0.5), (2, 2.0)]),
    _call("smooth_l1_loss.default", self=edges, target=torch.zeros(7)),
    *(
        _call("binary_cross_entropy_with_logits.default", 1e-5, self=30 * x, target=flags(3, 4).float(), weight=w, pos_weight=p, reduction=r)
        for w, p, r in [(None, None, 1), (y.abs(), None, 0), (None, torch.tensor([1.0, 2.0, 3.0, 4.0]), 2)]
    ),
]  # fmt: skip

pictures = floats(2, 4, 6, 5)
NORMALISATIONS = [
    _call("layer_norm.default", 1e-5, input=x, normalized_shape=[4], weight=floats(4), bias=floats(4, seed=2)),
    _call("layer_norm.default", 1e-5, input=floats(2, 3, 4), normalized_shape=[3, 4], eps=0.1),
    _call("layer_norm.default", HALF, input=h, normalized_shape=[4], weight=floats(4, dtype=bf16), bias=floats(4, dtype=bf16)),
    _call("group_norm.default", 1e-5, input=pictures, num_groups=2, weight=floats(4), bias=floats(4, seed=2)),
    _call("group_norm.default", 1e-5, input=floats(3, 12), num_groups=3),
    _call("rms_norm.default", 1e-5, input=x, normalized_shape=[4], weight=floats(4)),
    _call("rms_norm.default", HALF, input=h, normalized_shape=[4]),
    _call("rms_norm.default", 1e-5, input=x * 1e-4, normalized_shape=[4], eps=None),
    *(
        _call("_native_batch_norm_legit_functional.default", 1e-5, input=a, weight=w, bias=b, running_mean=floats(4, seed=4), running_var=floats(4, seed=5).abs(), training=t, momentum=0.2, eps=1e-5)
        for a in (pictures, floats(6, 4))
        for w, b in [(floats(4), floats(4, seed=2)), (None, None)]
        for t in (True, False)
    ),
    _call("_native_batch_norm_legit.no_stats", 1e-5, input=pictures, weight=floats(4), bias=None, training=True, momentum=0.0, eps=1e-3),
]  # fmt: skip

tied = whole(2, 3, 9, 8, high=3).float()
WINDOWS = [
    *(
        _call("max_pool2d.default", self=a, kernel_size=k, stride=s, padding=p, dilation=d, ceil_mode=c)
        for a in (floats(2, 3, 9, 8), tied)
        for k, s, p, d, c in [([3, 3], [2, 2], [1, 1], [1, 1], False), ([2], [], [0], [1], True), ([3, 2], [2, 3], [1, 0], [1], True), ([2, 3], [1], [0, 1], [2, 2], False), ([3], [2], [1], [2, 1], True)]
    ),
    _call("max_pool2d.default", self=floats(3, 9, 8), kernel_size=[3]),
    *(
        _call("avg_pool2d.default", self=floats(2, 3, 9, 8), kernel_size=k, stride=s, padding=p, ceil_mode=c, count_include_pad=i, divisor_override=o)
        for k, s, p, c, i, o in [([3, 3], [2, 2], [1, 1], False, True, None), ([3], [2], [1], True, True, None), ([3], [2], [1], True, False, None), ([2, 4], [], [0], True, True, None), ([3], [3], [1], True, True, 5)]
    ),
    *(_call("adaptive_avg_pool2d.default", self=floats(2, 3, 9, 8), output_size=size) for size in ([1, 1], [3, 5], [9, 8], [12, 3])),
    *(
        _call("upsample_bilinear2d.vec", 1e-5, input=floats(2, 3, 4, 5), output_size=size, align_corners=corners, scale_factors=factors)
        for size, factors in [([8, 10], None), (None, [2.0, 2.0]), (None, [1.7, 0.6]), ([3, 1], None)]
        for corners in (False, True)
    ),
    _call("upsample_trilinear3d.vec", 1e-5, input=floats(1, 2, 3, 4, 5), output_size=[5, 8, 7], align_corners=False, scale_factors=None),
    _call("upsample_trilinear3d.vec", 1e-5, input=floats(1, 2, 3, 4, 5), output_size=None, align_corners=True, scale_factors=[2.0, 2.0, 2.0]),
]  # fmt: skip

q, k, v = (floats(2, 4, 5, 8, seed=s) for s in (1, 2, 3))
blind = flags(2, 1, 5, 5)
blind[0, 0, 2] = False
PRODUCTS = [
    *(
        _call("matmul.default", self=floats(*a), other=floats(*b, seed=1))
        for a, b in [((3, 4), (4, 5)), ((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (6, 4, 5))]
    ),
    _call("matmul.default", HALF, self=floats(3, 400, dtype=bf16), other=floats(400, 5, dtype=bf16, seed=1)),
    _call("matmul.default", self=n, other=m.T.contiguous()),
    _call("mm.default", self=x, mat2=y.T.contiguous()),
    _call("bmm.default", self=floats(2, 3, 4), mat2=floats(2, 4, 5)),
    _call("addmm.default", self=floats(5), mat1=x, mat2=floats(4, 5), beta=0.5, alpha=2),
    _call("addmm.default", self=torch.full((3, 5), nan), mat1=x, mat2=floats(4, 5), beta=0),
    _call("addmm.default", HALF, self=floats(5, dtype=bf16), mat1=h, mat2=floats(4, 5, dtype=bf16)),
    _call("baddbmm.default", self=floats(2, 3, 5), batch1=floats(2, 3, 4), batch2=floats(2, 4, 5), beta=2, alpha=0.5),
    _call("linear.default", input=floats(2, 3, 4), weight=floats(5, 4), bias=floats(5)),
    _call("linear.default", input=x, weight=floats(5, 4)),
    _call("linear.default", HALF, input=h, weight=floats(5, 4, dtype=bf16), bias=floats(5, dtype=bf16)),
    *(
        _call("scaled_dot_product_attention.default", 1e-5, query=q, key=k, value=v, attn_mask=mask, is_causal=causal, scale=scale)
        for mask, causal, scale in [(None, False, None), (None, True, None), (blind, False, None), (floats(4, 5, 5), False, 0.3)]
    ),
    _call("scaled_dot_product_attention.default", 1e-5, query=q, key=k[:, :2].contiguous(), value=v[:, :2].contiguous(), enable_gqa=True),
    _call("scaled_dot_product_attention.default", 1e-5, query=q[0, :, :3].contiguous(), key=k[0], value=v[0, ..., :6].contiguous(), is_causal=True),
    _call("scaled_dot_product_attention.default", 3e-2, query=q.to(bf16), key=k.to(bf16), value=v.to(bf16), is_causal=True),
]  # fmt: skip

CONVOLUTIONS = [
    _call("conv1d.default", 1e-5, input=floats(2, 4, 9), weight=floats(6, 4, 3), bias=floats(6), stride=[2], padding=[1]),
    *(
        _call("conv2d.default", 1e-5, input=floats(2, 4, 8, 7), weight=floats(6, 4 // g, 3, 2), bias=b, stride=s, padding=p, dilation=d, groups=g)
        for b, s, p, d, g in [(None, [1, 1], [0, 0], [1, 1], 1), (floats(6), [2], [1], [1], 2), (None, [2, 1], [2, 0], [2, 3], 1)]
    ),
    _call("conv2d.default", 1e-5, input=floats(4, 8, 7), weight=floats(6, 4, 3, 3)),
    _call("conv2d.default", HALF, input=floats(2, 4, 8, 7, dtype=bf16), weight=floats(6, 4, 3, 3, dtype=bf16), bias=floats(6, dtype=bf16)),
    *(_call("conv2d.padding", 1e-5, input=floats(2, 4, 8, 7), weight=floats(6, 4, 4, 3), padding=p, dilation=[1, 2]) for p in ("same", "valid")),
    _call("conv3d.default", 1e-5, input=floats(1, 2, 4, 5, 6), weight=floats(3, 2, 3, 3, 3), bias=floats(3), stride=[2, 1, 1], padding=[1, 1, 1]),
    *(
        _call("conv_transpose2d.input", 1e-5, input=floats(2, 4, 5, 6), weight=floats(4, 6 // g, 3, 2), bias=b, stride=s, padding=p, output_padding=o, groups=g, dilation=d)
        for b, s, p, o, g, d in [(None, [1, 1], [0, 0], [0, 0], 1, [1, 1]), (floats(6), [2, 3], [1, 0], [1, 2], 2, [1, 1]), (None, [2], [1], [1], 1, [2])]
    ),
    _call("conv_transpose3d.input", 1e-5, input=floats(1, 4, 2, 3, 4), weight=floats(4, 2, 3, 3, 3), bias=floats(2), stride=[2, 2, 2], padding=[1, 1, 1], output_padding=[1, 1, 1]),
]  # fmt: skip

cube = floats(2, 3, 4)
VIEWS = [
    _call("reshape.default", self=cube, shape=[4, -1]),
    _call("transpose.int", self=cube, dim0=-1, dim1=0),
    _call("transpose.int", self=torch.tensor(1.0), dim0=0, dim1=-1),
    _call("permute.default", self=cube, dims=[-1, 0, 1]),
    _call("t.default", self=x),
    _call("t.default", self=floats(3)),
    *(_call("unsqueeze.default", self=x, dim=d) for d in (0, -1, 2)),
    _call("squeeze.dim", self=floats(1, 3, 1), dim=-1),
    _call("squeeze.dim", self=x, dim=0),
    _call("squeeze.default", self=floats(1, 3, 1)),
    _call("squeeze.dims", self=floats(1, 3, 1), dim=[0, 1]),
    _call("expand.default", self=floats(3, 1), size=[2, -1, 4]),
    _call("expand_as.default", self=floats(3, 1), other=cube[0]),
    *(_call("slice.Tensor", self=floats(7, 3), dim=d, start=a, end=b, step=s) for d, a, b, s in [(0, 1, 2**63 - 1, 2), (0, -3, -1, 1), (-1, None, 99, 1), (0, 5, 2, 1)]),
    *(_call("select.int", self=cube, dim=d, index=i) for d, i in [(1, -1), (-1, 2)]),
    _call("split.Tensor", self=floats(7, 2), split_size=3),
    _call("split_with_sizes.default", self=floats(2, 7), split_sizes=[3, 0, 4], dim=-1),
    *(_call("chunk.default", self=floats(7, 2), chunks=c) for c in (3, 5, 9)),
    _call("unbind.int", self=cube, dim=1),
    _call("flatten.using_ints", self=cube, start_dim=1),
    _call("flatten.using_ints", self=torch.tensor(1.0)),
    _call("detach.default", self=x),
]  # fmt: skip

table, ids = floats(6, 3), torch.tensor([[1, 2, 1], [5, 0, 1]])
MOVEMENTS = [
    _call("embedding.default", weight=table, indices=ids),
    _call("embedding.default", weight=table, indices=ids, padding_idx=1),
    _call("embedding.default", weight=table, indices=ids, scale_grad_by_freq=True),
    _call("cat.default", tensors=[x, n, y], dim=-1),
    _call("cat.default", tensors=[floats(0), x]),
    _call("stack.default", tensors=[x, y], dim=-1),
    _call("repeat.default", self=x, repeats=[2, 1, 3]),
    _call("index.Tensor", self=cube, indices=[None, torch.tensor([0, -1])]),
    _call("index.Tensor", self=cube, indices=[torch.tensor([[0], [1]]), None, torch.tensor([0, 2])]),
    _call("index.Tensor", self=cube, indices=[torch.tensor([1, 1]), torch.tensor([0, 2])]),
    _call("index_select.default", self=cube, dim=-1, index=torch.tensor([3, 0, 3])),
    _call("gather.default", self=cube, dim=1, index=whole(1, 4, 3, high=3)),
    _call("gather.default", self=x, dim=-1, index=whole(2, 6, high=4)),
    _call("flip.default", self=cube, dims=[0, -1]),
    _call("roll.default", self=cube, shifts=[1, -2], dims=[0, 2]),
    _call("roll.default", self=cube, shifts=[5]),
    *(_call("_to_copy.default", self=a, dtype=t) for a in (x, n, flags(4)) for t in (bf16, torch.int64, torch.bool, f64, None)),
    *(_call("pad.default", self=floats(2, 3, 4, 5), pad=p, mode=way) for way in ("constant", "reflect", "replicate", "circular") for p in [[2, 1, 0, 3]]),
    _call("pad.default", self=x, pad=[-1, 2], value=0.5),
    _call("pad.default", self=floats(2, 3, 4), pad=[2, -1], mode="replicate"),
    _call("constant_pad_nd.default", self=n, pad=[1, 0, 2, -1], value=7),
    *(_call("repeat_interleave.self_int", self=a, repeats=times, dim=d) for a in (x, n) for times, d in ((3, None), (2, 0), (2, -1), (0, 1))),
    _call("repeat_interleave.self_int", self=x, repeats=2, dim=0, output_size=6),
    *(_call("select_scatter.default", self=a, src=b, dim=d, index=at) for a, b, d, at in ((x, y[0], 0, 1), (x, y[:, 0], 1, -1), (n, m[0], 0, 2), (h, g[0], 0, 0))),
    *(_call("slice_scatter.default", self=x, src=y[:, :2], dim=1, start=start, end=end) for start, end in ((0, 2), (-2, None), (1, 3), (2, 99))),
    _call("slice_scatter.default", self=n, src=m[:, ::2], dim=1, step=2),
]  # fmt: skip

CREATIONS = [
    *(_call("arange.start_step", start=a, end=b, step=s) for a, b, s in [(0, 10, 3), (5, -5, -2), (0, 1.0, 0.3), (1.5, 4, 1)]),
    _call("arange.default", end=5),
    _call("arange.default", end=5, dtype=torch.float32),
    _call("arange.start", start=2, end=7.5),
    _call("arange.start_step", start=0, end=1, step=0.25, dtype=bf16),
    *(_call("full.default", size=[2, 3], fill_value=value) for value in (True, 3, 0.5)),
    _call("full.default", size=[], fill_value=2, dtype=torch.int32),
    _call("zeros.default", size=[2, 0]),
    _call("ones.default", size=[2], dtype=torch.bool),
    *(_call("scalar_tensor.default", s=s) for s in (3, 0.5, True)),
    *(_call(f"{op}.default", self=a) for op in ("zeros_like", "ones_like") for a in (n, h)),
    _call("full_like.default", self=n, fill_value=2.9),
    _call("new_full.default", self=h, size=[3], fill_value=0.3),
    _call("new_zeros.default", self=n, size=[2, 2]),
    _call("new_ones.default", self=x, size=[2], dtype=torch.int64),
    _call("native_dropout.default", input=x, p=0.5, train=False),
    _call("native_dropout.default", input=x, p=0.0, train=True),
    _call("native_dropout.default", input=x, p=1.0, train=True),
]  # fmt: skip

GROUPS: dict[str, list[Sample]] = {
    "arithmetic": ARITHMETIC,
    "functions": FUNCTIONS,
    "reductions": REDUCTIONS,
    "losses": LOSSES,
    "normalisations": NORMALISATIONS,
    "windows": WINDOWS,
    "products": PRODUCTS,
    "convolutions": CONVOLUTIONS,
    "views": VIEWS,
    "movements": MOVEMENTS,
    "creations": CREATIONS,
}
