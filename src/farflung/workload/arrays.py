"""Arrays over the nodes of a workload."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def before(values: Floats) -> Floats:
    """Sums of the `n` values before each position: [n + 1], starting with 0."""
    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
