"""Names of others vanish from words about a job, and nothing else does."""

from __future__ import annotations

from farflung.protocol.veil import veil


def test_whole_names_are_replaced_and_longer_ones_are_not_cut() -> None:
    hide = veil(["lab", "lab-3"], ["job-1"])
    assert hide("2 workers are busy with job-1, and lab-3 is away") == (
        "2 workers are busy with another job, and another worker is away"
    )
    assert hide("job-12 waits for my-lab and lab") == "job-12 waits for my-lab and another worker"
    assert veil([], [])("job-1") == "job-1"
