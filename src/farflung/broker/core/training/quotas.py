"""How much of the broker one submitter may take by its jobs that are not over. Pure."""

from __future__ import annotations

from farflung.broker.core.records import State
from farflung.text import count_of

MOST_JOBS = 200
"""Each turn of the broker looks at all jobs that wait."""

MOST_BYTES = 512 * 2**20
"""Of graphs, which the broker stores as long as a job is not over."""


def denial(state: State, submitter: str, graph_bytes: int) -> str:
    """Why a submitter may submit no other job now, with such a graph; empty if it may."""
    open_jobs = [job for job in state.jobs.values() if job.submitter == submitter and not job.over]
    if len(open_jobs) >= MOST_JOBS:
        return (
            f"{submitter} has {count_of(len(open_jobs), 'job')} that are not over, and may have {MOST_JOBS}"
        )
    stored = sum(job.graph_bytes for job in open_jobs)
    if stored + graph_bytes > MOST_BYTES:
        return (
            f"the graphs of {submitter}'s jobs that are not over have {stored:,} bytes, and with this one"
            f" more than the {MOST_BYTES:,} that they may have"
        )
    return ""
