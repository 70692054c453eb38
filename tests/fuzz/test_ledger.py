from pathlib import Path

import pytest
from tests.fuzz import documents
from tests.fuzz.ledger import Ledger
from tests.fuzz.loader import Figures


def leg(inputs: int, outcome: str, peak: int) -> Figures:
    return Figures(
        inputs=inputs, largest_bytes=inputs, outcomes={outcome: inputs, "ran": 1}, ops_resolved=inputs,
        seconds=1.5, slowest_seconds=0.1, memory_before=100, memory_peak=peak,
    )  # fmt: skip


def test_what_was_broken_off_goes_on_with_the_leg_that_it_was_at(tmp_path: Path) -> None:
    path = tmp_path / "new" / "fuzz.json"
    ledger = Ledger.read(path, seed=1)
    assert (ledger.fed, ledger.judged) == (0, 0)
    ledger.documents.append(leg(10, "verified", 300))
    ledger.write(path)
    ledger.documents.append(leg(5, "verified", 200))  # never written: it was broken off
    again = Ledger.read(path, seed=1)
    assert again.fed == 10
    again.documents.append(leg(5, "refused", 200))
    again.write(path)
    whole = documents.together(Ledger.read(path, seed=1).documents)
    assert (whole.inputs, whole.seconds, whole.memory_peak) == (15, 3.0, 300)
    assert whole.outcomes == {"verified": 10, "refused": 5, "ran": 2}


def test_what_was_broken_off_does_not_go_on_with_another_seed(tmp_path: Path) -> None:
    path = tmp_path / "fuzz.json"
    Ledger(seed=1, documents=[leg(10, "verified", 300)]).write(path)
    with pytest.raises(ValueError, match="is of seed 1, not 2"):
        Ledger.read(path, seed=2)
    assert Ledger.read(path, seed=1).fed == 10
