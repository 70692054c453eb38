"""Calls of the ops that version 3 of the opset brought."""

# ruff: noqa: E501 (one call a line)

from __future__ import annotations

import torch
from tests.runtime.jax_backend.samples import HALF, Sample, edges, f64, flags, floats, h, m, n, x, y

ties = torch.tensor([[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
voxels = floats(2, 3, 4, 5, 6)
pixels = floats(2, 8, 3, 4)
line = floats(2, 4, 7)


def _call(op: str, tolerance: float = 2e-6, **arguments: object) -> Sample:
    return Sample(op, arguments, tolerance)


ELEMENTS = [
    *(_call(f"{op}.default", 1e-5, self=a) for op in ("atan", "expm1", "hardsigmoid", "hardswish", "log_sigmoid", "mish") for a in (x, edges)),
    *(_call(f"{op}.default", HALF, self=h) for op in ("hardswish", "log_sigmoid", "mish")),
    *(_call(f"{op}.default", 1e-5, self=x.abs() + 0.1) for op in ("log1p", "log2")),
    *(_call(f"{op}.default", self=a) for op in ("ceil", "floor", "round", "sign") for a in (3 * x, edges, torch.tensor([0.5, 1.5, 2.5, -0.5]))),
    _call("clamp_max.default", self=x, max=0.3),
    _call("clamp_max.default", self=n, max=2),
    *(_call("remainder.Scalar", self=a, other=b) for a in (3 * x, n - 2) for b in (2, -3, 1.5)),
    *(_call("remainder.Tensor", self=a, other=b) for a, b in ((3 * x, y), (n - 2, m), (n - 2, -m), (x, m))),
    *(_call("bitwise_xor.Tensor", self=a, other=b) for a, b in ((n, m), (flags(4), flags(4, seed=1)))),
    _call("masked_fill.Tensor", self=x, mask=flags(3, 4), value=torch.tensor(-2.0)),
    _call("masked_fill.Tensor", self=n, mask=flags(4), value=torch.tensor(7)),
    *(_call("prelu.default", self=a, weight=w) for a, w in ((x, torch.tensor([0.25])), (pixels, floats(8, seed=2)))),
]  # fmt: skip

REDUCED = [
    *(_call("amin.default", self=a, dim=d, keepdim=k) for a in (x, ties) for d, k in (([0], True), ([1], False), ([], False))),
    *(_call(f"{op}.default", self=a) for op in ("max", "min") for a in (x, ties, n)),
    *(_call(f"{op}.dim", self=a, dim=d, keepdim=k) for op in ("max", "min") for a in (x, n) for d, k in ((0, False), (-1, True))),
    *(_call("prod.default", 1e-5, self=a) for a in (x, n, floats(2, 2, dtype=f64))),
    *(_call("prod.dim_int", 1e-5, self=a, dim=d, keepdim=k) for a in (x, m) for d, k in ((0, False), (-1, True))),
    _call("prod.dim_int", 1e-5, self=torch.tensor([[0.0, 2.0, 3.0], [0.0, 0.0, 1.0]]), dim=1),
    *(_call("std.correction", 1e-5, self=x, dim=d, correction=c, keepdim=k) for d, c, k in (([0], 1, False), ([1], 0, True), (None, None, False))),
    *(_call("linalg_vector_norm.default", 1e-5, self=x, ord=o, dim=d) for o in (1, 2, 3.0) for d in (None, [1])),
    _call("linalg_vector_norm.default", self=x, ord=float("inf"), dim=[0], keepdim=True),
]  # fmt: skip

SPACES = [
    _call("adaptive_avg_pool3d.default", self=voxels, output_size=[2, 5, 3]),
    _call("avg_pool3d.default", self=voxels, kernel_size=[2, 2, 3], stride=[2, 1, 2]),
    _call("avg_pool3d.default", self=voxels, kernel_size=[3, 3, 3], stride=[2, 2, 2], padding=[1, 1, 1], count_include_pad=False),
    _call("max_pool3d.default", self=voxels, kernel_size=[2, 3, 2], stride=[2, 1, 2], padding=[1, 1, 0]),
    *(_call("conv1d.padding", 1e-5, input=line, weight=floats(6, 4, 3, seed=1), bias=floats(6, seed=2), padding=p) for p in ("valid", "same")),
    *(_call("conv3d.padding", 1e-5, input=voxels, weight=floats(2, 3, 3, 3, 3, seed=1), padding=p) for p in ("valid", "same")),
    _call("conv_transpose1d.default", 1e-5, input=line, weight=floats(4, 5, 3, seed=1), bias=floats(5, seed=2), stride=[2], padding=[1], output_padding=[1]),
    _call("conv_transpose1d.default", 1e-5, input=line, weight=floats(4, 3, 3, seed=1), groups=2, dilation=[2]),
    _call("pixel_shuffle.default", self=pixels, upscale_factor=2),
    _call("pixel_unshuffle.default", self=floats(2, 3, 4, 6), downscale_factor=2),
    *(_call("upsample_nearest1d.vec", input=line, output_size=s, scale_factors=f) for s, f in (([10], None), (None, [2.0]))),
    *(_call("upsample_nearest2d.vec", input=pixels, output_size=s, scale_factors=f) for s, f in (([5, 9], None), (None, [2.0, 3.0]))),
    *(_call("upsample_nearest3d.vec", input=voxels, output_size=s, scale_factors=f) for s, f in (([6, 5, 7], None), (None, [2.0, 1.0, 2.0]))),
    *(_call("upsample_linear1d.vec", 1e-5, input=line, output_size=[11], align_corners=c, scale_factors=None) for c in (False, True)),
    *(_call("upsample_bicubic2d.vec", 1e-5, input=pixels, output_size=[5, 9], align_corners=c, scale_factors=None) for c in (False, True)),
]  # fmt: skip

GROUPS_OF_VERSION_3: dict[str, list[Sample]] = {
    "elements of version 3": ELEMENTS,
    "reductions of version 3": REDUCED,
    "spaces of version 3": SPACES,
}
