"""Calls of the ops that version 4 of the opset brought."""

# ruff: noqa: E501 (one call a line)

from __future__ import annotations

import numpy as np
import torch
from tests.runtime.jax_backend.samples import Sample, flags, floats, n, x

from farflung.quantization import quantize, quantized_bytes


def _call(op: str, tolerance: float = 2e-6, **arguments: object) -> Sample:
    return Sample(op, arguments, tolerance)


cube = floats(2, 3, 4)
places = torch.tensor([[[2, 0, 1, 1]], [[0, 1, 2, 0]]])  # no place twice: of several values any may stay
again = torch.tensor([[0, 0, 2, 2], [1, 1, 1, 3]])

SCATTERED = [
    _call("scatter.src", self=cube, dim=1, index=places, src=floats(2, 1, 4, seed=1)),
    _call("scatter.src", self=cube, dim=-2, index=places[:1, :, :3], src=floats(1, 1, 3, seed=2)),
    *(_call("scatter.value", self=a, dim=-1, index=again, value=2) for a in (floats(3, 5), torch.zeros(3, 5, dtype=torch.int64))),
    _call("scatter_add.default", 1e-5, self=floats(3, 5), dim=1, index=again, src=floats(2, 4, seed=1)),
    _call("scatter_add.default", self=torch.zeros(3, 5, dtype=torch.int64), dim=1, index=again, src=torch.ones(3, 4, dtype=torch.int64)),
    _call("scatter_add.default", self=torch.tensor(1.0), dim=0, index=torch.tensor(0), src=torch.tensor(2.0)),
    *(_call("scatter_reduce.two", 1e-5, self=a, dim=1, index=again, src=floats(2, 4, seed=1), reduce=kind, include_self=own)
      for kind in ("sum", "mean", "amax", "amin") for own in (True, False) for a in (floats(3, 5), 3 + floats(3, 5))),
    *(_call("scatter_reduce.two", self=torch.full((3, 5), 2), dim=-1, index=again, src=torch.tensor([[5, 1, 2, 4]] * 2), reduce=kind) for kind in ("sum", "amax", "amin")),
    *(_call("scatter_reduce.two", self=torch.ones(2, 3), dim=0, index=torch.tensor([[0, 1, 0], [0, 0, 1]]), src=torch.ones(2, 3), reduce=kind) for kind in ("amax", "amin")),
    _call("scatter_reduce.two", self=torch.tensor(1.0), dim=0, index=torch.tensor(0), src=torch.tensor(2.0), reduce="mean"),
    _call("index_put.default", self=cube, indices=[None, torch.tensor([0, -1])], values=floats(2, 2, 4, seed=1)),
    _call("index_put.default", self=cube, indices=[torch.tensor([[0], [1]]), None, torch.tensor([0, 2])], values=torch.tensor(3.0)),
    _call("index_put.default", 1e-5, self=x, indices=[torch.tensor([1, 1, 0])], values=floats(3, x.shape[1], seed=1), accumulate=True),
    _call("index_put.default", self=x, indices=[flags(3)], values=torch.tensor(7.0)),
    _call("index_put.default", self=n, indices=[torch.tensor([0])], values=torch.tensor(7)),
]  # fmt: skip


def _packed(form: str, rows: int, columns: int) -> torch.Tensor:
    """A quantized matrix of random values."""
    values = floats(rows, columns).numpy().reshape(-1)
    made = np.empty(quantized_bytes(values.size, form), np.uint8)
    quantize(values, form, made)
    return torch.from_numpy(made).view(rows, -1)


QUANTIZED = [
    _call("farflung.quantized_linear.default", 1e-5, input=floats(*shape, rows if t else columns, seed=1), weight=_packed(form, rows, columns), format=form, bias=bias, transposed=t)
    for form in ("int8", "nf4")
    for shape, rows, columns, bias, t in (((2, 3), 5, 128, None, False), ((4,), 3, 64, floats(3, seed=2), False), ((2, 2), 6, 64, floats(64, seed=3), True))
]  # fmt: skip

LOOKED_UP = [
    _call("farflung.quantized_embedding.default", weight=_packed(form, 5, 128), indices=indices, format=form, dtype=dtype)
    for form in ("int8", "nf4")
    for dtype in (torch.float32, torch.bfloat16)
    for indices in (torch.tensor([[0, 4], [1, 1]]), torch.tensor([3], dtype=torch.int32))
]  # fmt: skip

GROUPS_OF_VERSION_4: dict[str, list[Sample]] = {
    "scattering of version 4": SCATTERED,
    "quantized matrices of version 4": QUANTIZED + LOOKED_UP,
}
