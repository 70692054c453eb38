"""Which elements `TopK` selects, on a device: see `codec.families.topk`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from farflung.codec import TopK


def largest(codec: TopK, numbers: Tensor, shape: Sequence[int]) -> Tensor:
    """Ascending positions, as int64, of the magnitudes selected of flat float32 `numbers` of that `shape`."""
    width = shape[-1] if codec.rows and len(shape) > 1 else len(numbers)
    keys = (numbers.view(torch.int32) & 0x7FFFFFFF).view(-1, width)
    return _first_largest(keys, math.ceil(codec.share * width)).view(-1).nonzero().view(-1)


def _first_largest(keys: Tensor, count: int) -> Tensor:
    """Flags of the `count` largest of each row, the first ones among equals; never of zeros."""
    if count >= keys.shape[1]:
        return keys > 0
    least = keys.topk(count, dim=1, sorted=False).values.amin(1, keepdim=True)
    selected = keys > least
    room = count - selected.sum(1, keepdim=True)
    equal = keys == least
    return (selected | (equal & (equal.cumsum(1) <= room))) & (keys > 0)
