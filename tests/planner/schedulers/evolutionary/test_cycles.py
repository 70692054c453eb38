from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.planner.schedulers.evolutionary.search import improved


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), groups=st.integers(1, 5), size=st.integers(1, 5))
def test_groups_keep_their_sizes(seed: int, groups: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    hop = rng.uniform(0.1, 9, (groups * size, groups * size))
    labels = rng.permutation(np.repeat(np.arange(groups), size))
    before = labels.copy()
    after = improved(hop, labels, groups)
    assert (np.bincount(after, minlength=groups) == size).all()
    assert (labels == before).all()


def test_fast_pairs_are_pulled_apart() -> None:
    """Three fast pairs in three groups, each together: the first cycle parts them, the last is not used."""
    hop = np.full((6, 6), 5.0)
    for one in (0, 2, 4):
        hop[one, one + 1] = hop[one + 1, one] = 0.1
    after = improved(hop, np.array([0, 0, 1, 1, 2, 2]), 3)
    assert sum(after[one] != after[one + 1] for one in (0, 2, 4)) >= 2
