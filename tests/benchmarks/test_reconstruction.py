"""What a first, a middle and a last worker recover of the data, with data at home, noise, or neither."""

from __future__ import annotations

import pytest
from benchmarks.reconstruction import KNOWN, LABELS, Found, attacked

FEW, MOST = KNOWN[0], KNOWN[-1]


def found(kept_layers: int, noise: float = 0.0) -> dict[tuple[str, int], Found]:
    return {(one.worker, one.known): one for one in attacked("", kept_layers, noise)}


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


def test_noise_on_what_leaves_home_blurs_inputs_for_the_first_stranger_and_the_middle_one() -> None:
    clean, noisy, drowned = found(1), found(1, noise=1.0), found(1, noise=3.0)
    for worker, least in (("a", 0.6), ("b", 0.45)):
        known = worker, MOST
        lost = clean[known].inputs_explained - noisy[known].inputs_explained
        assert lost > least  # of the variance of images, 68 and 52 points when it was written
        assert drowned[known].inputs_explained < 0.1
        assert (
            noisy[known].labels_told > 3 / LABELS
        )  # it hides no labels, as docs/explanation/security.md says
        assert drowned[known].labels_told < clean[known].labels_told - 0.1
