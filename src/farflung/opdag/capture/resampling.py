"""Antialiased resampling of images, as products with two matrices of weights.

Each output pixel is a mean of the input pixels near its centre, weighted by a kernel that is as wide as the
step from one output pixel to the next. So rows and columns are resampled one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

Kernel = Callable[[Tensor], Tensor]
"""The weights at distances from a centre, in pixels of the coarser of the two images."""


def triangle(distance: Tensor) -> Tensor:
    """The kernel of bilinear resampling."""
    return (1 - distance.abs()).clamp(min=0)


def cubic(distance: Tensor) -> Tensor:
    """The kernel of bicubic resampling (Keys 1981 with a = -0.5, as torch and Pillow have it)."""
    at = distance.abs()
    near = (1.5 * at - 2.5) * at * at + 1
    far = -0.5 * (((at - 5) * at + 8) * at - 4)
    return torch.where(at < 1, near, torch.where(at < 2, far, torch.zeros_like(at)))


def resampled(
    kernel: Kernel,
    self: Tensor,
    output_size: Sequence[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Tensor:
    """The arguments and the result, (batch, channels, *output_size), of torch's op with this kernel."""
    rows = _weights(kernel, self.shape[-2], output_size[0], align_corners, scales_h).to(self.dtype)
    columns = _weights(kernel, self.shape[-1], output_size[1], align_corners, scales_w).to(self.dtype)
    return torch.matmul(rows, torch.matmul(self, columns.t()))


bilinear, bicubic = partial(resampled, triangle), partial(resampled, cubic)


def _weights(kernel: Kernel, size: int, wanted: int, align_corners: bool, factor: float | None) -> Tensor:
    """The share of each of `size` input pixels, a column, in each of the `wanted` ones, a row."""
    if align_corners:
        step = (size - 1) / (wanted - 1) if wanted > 1 else 0.0
    else:
        step = 1 / factor if factor else size / wanted
    centres = step * (torch.arange(wanted, dtype=torch.float32) + 0.5)
    distances = torch.arange(size, dtype=torch.float32) + 0.5 - centres.unsqueeze(-1)
    weights = kernel(distances / max(step, 1.0))
    return weights / weights.sum(-1, keepdim=True)
