"""Which workers some models will be planned without, because they lack ops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from farflung.local.finding import Finding
from farflung.protocol.viewer import WorkerStatus
from farflung.text import and_more

NAMED = 5


def opset_findings(workers: Sequence[WorkerStatus]) -> Iterator[Finding]:
    """One finding for each connected worker with an older opset than another, or with ops that it refuses."""
    present = [worker for worker in workers if worker.state not in ("lost", "left")]
    newest = max((worker.opset for worker in present), default=0)
    for worker in present:
        if worker.opset < newest:
            found = f"{worker.worker} knows opset version {worker.opset}, others {newest}"
            helps = f"install a newer farflung on {worker.worker}: models with newer ops leave it out"
            yield Finding("opset", False, found, helps)
        if worker.lacks:
            named = and_more(worker.lacks, NAMED)
            yield Finding("opset", True, f"{worker.worker} takes no model with {named}: its backend lacks it")
