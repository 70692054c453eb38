"""Which elements `TopK` selects, on a device: see `codec.families.topk`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from farflung.codec import TopK
from farflung.codec.families.topk import Positions


def largest(codec: TopK, numbers: Tensor, shape: Sequence[int]) -> tuple[Tensor, Positions]:
    """Ascending positions of what is selected of flat float32 `numbers` of that `shape`, on both sides."""
    width = shape[-1] if codec.rows and len(shape) > 1 else len(numbers)
    keys = (numbers.view(torch.int32) & 0x7FFFFFFF).view(-1, width)
    count = math.ceil(codec.share * width)
    selected = _first_largest(keys, count).view(-1)
    # At most that many, so that the host need not ask first; -1 fills up where zeros were left out.
    found = selected.nonzero_static(size=len(keys) * count).view(-1)
    on_host = found.to(torch.int32).cpu().numpy().astype(np.int64)
    on_host = on_host[on_host >= 0]
    return found[: len(on_host)], on_host


def _first_largest(keys: Tensor, count: int) -> Tensor:
    """Flags of the `count` largest of each row, the first ones among equals; never of zeros."""
    if count >= keys.shape[1]:
        return keys > 0
    least = keys.topk(count, dim=1, sorted=False).values.amin(1, keepdim=True)
    selected = keys > least
    room = count - selected.sum(1, keepdim=True)
    equal = keys == least
    return (selected | (equal & (equal.cumsum(1) <= room))) & (keys > 0)
