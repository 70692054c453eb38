"""What a first, a middle and a last worker recover of the data, with and without data that stays at home."""

from __future__ import annotations

import pytest
from benchmarks.reconstruction import KNOWN, LABELS, Found, attacked

FEW, MOST = KNOWN[0], KNOWN[-1]


def found(kept_layers: int) -> dict[tuple[str, int], Found]:
    return {(one.worker, one.known): one for one in attacked("", kept_layers)}


def test_without_it_the_first_worker_reads_inputs_and_the_last_one_targets() -> None:
    recovered = found(0)
    assert recovered["a", FEW].read_inputs and not recovered["a", FEW].read_targets
    assert recovered["b", FEW].read_targets and not recovered["b", FEW].read_inputs
    assert recovered["b", MOST].inputs_explained > 0.5


@pytest.mark.parametrize("kept_layers", [1, 2])
def test_with_it_strangers_read_neither_but_tell_both_once_they_know_enough_samples(kept_layers: int) -> None:
    recovered = found(kept_layers)
    for worker in "ab":
        few, most = recovered[worker, FEW], recovered[worker, MOST]
        assert not (few.read_inputs or few.read_targets or most.read_inputs or most.read_targets)
        assert few.inputs_explained < 0.3  # what is left to guess without knowing the data
        assert most.inputs_explained > 0.5  # what docs/explanation/security.md warns of
        assert most.labels_told > 3 / LABELS
