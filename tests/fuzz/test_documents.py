"""Damaged OP-DAGs: the loader refuses them or they are harmless. `make fuzz` feeds a million."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.fuzz import documents
from tests.fuzz.document_mutator import DocumentMutator
from tests.fuzz.inventions import Inventor
from tests.fuzz.loader import MOST_GROWTH_BYTES, Figures, samples

pytestmark = pytest.mark.fuzz

SLOWEST_SECONDS = 5.0
"""Of CPU time, for one input of some kilobytes; the slowest that was seen took a hundredth (docs)."""


def assert_stood(figures: Figures) -> None:
    """No memory above the bound, and no input that takes long; crashes and other errors end the attack."""
    assert figures.memory_peak - figures.memory_before <= MOST_GROWTH_BYTES, figures
    assert figures.slowest_seconds <= SLOWEST_SECONDS, figures


@pytest.mark.slow
@pytest.mark.parametrize("count", [6_000, pytest.param(20_000, marks=pytest.mark.full)])
def test_the_loader_stands_damaged_documents(count: int, tmp_path: Path) -> None:
    figures = documents.run(tmp_path, count=count, seed=1)
    assert figures.inputs == count
    assert_stood(figures)
    # The damage reaches what it should: every gate is passed and closed many times, nearly every op is met.
    for outcome in ("refused by the loader", "refused on the meta device", "verified", "ran"):
        assert figures.outcomes.get(outcome, 0) > count // 60, figures
    assert figures.ops_resolved > 120, figures


def test_the_same_seed_does_the_same_damage_and_leaves_the_sample_alone() -> None:
    for sample in samples()[:4]:
        before = repr(sample.document)
        first, again = (DocumentMutator(Random(5)).damaged(sample.document) for _ in range(2))
        assert repr(first) == repr(again) != before == repr(sample.document)
    assert repr(Inventor(Random(3)).segment()) == repr(Inventor(Random(3)).segment())
