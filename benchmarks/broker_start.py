"""How long a broker takes to read its log when it starts, with and without log snapshots.

    python -m benchmarks.broker_start [--facts 100000] [--workers 20] [--json]

The log is that of jobs of `--workers` workers, with 1,000 steps each. It is stored once as one long log, as
brokers before log snapshots left it, and once by a broker that stores a snapshot now and then and is killed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.arguments import whole

from farflung.broker.core import facts
from farflung.broker.core.blobs import digest_of
from farflung.broker.core.state import replay
from farflung.broker.journal import Journal
from farflung.broker.storage.store import STORE_FILE, Store
from farflung.plans import Edge, Placement, Plan
from farflung.protocol.fields import Opset
from farflung.protocol.registration import Device
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.training import Training

STEPS = 1000
GROUP = 7
"""Facts that are stored together; a broker stores what arrives during one write."""


@dataclass(frozen=True)
class Row:
    """One store. `replayed` counts the facts that the start read."""

    stored_as: str
    facts: int
    replayed: int
    seconds: float
    megabytes: float


def history(workers: list[str]) -> Iterator[facts.AnyDecision]:
    """Jobs without end, one after another."""
    device = Device("cpu", "a small box", 2, 2**30, "torch 2.13.0", Opset.own())
    for name in workers:
        yield facts.WorkerAdmitted(0.0, name, device, "lab", [f"{name}.example:7000"], "boot")
    placements = [Placement(number, [name], 1000, 4000, 3) for number, name in enumerate(workers)]
    edges = [Edge(number + 1, number, number + 1, 64, True) for number in range(len(workers) - 1)]
    plan, training = Plan(placements, edges, 2, 2), Training(STEPS, 2, 4, SGD(0.1))
    for number in count(1):
        job = f"job-{number}"
        graph = digest_of(job.encode())
        yield facts.JobSubmitted(
            0.0, job, "gpt", "ana", training, len(workers), number=number, graph_digest=graph
        )
        yield facts.JobPlanning(0.0, job, 1, workers)
        yield facts.JobLoading(0.0, job, plan, [])
        yield facts.JobRunning(0.0, job)
        for unit in range(STEPS):
            yield facts.UnitDecided(float(unit), job, 1, unit, 1.0, 2.0, 3.0, 100)
        yield facts.JobCollecting(float(STEPS), job, "done", "")
        yield facts.JobEnded(float(STEPS), job, "done", "")


def measured(folder: Path, total: int, stored_as: str) -> Row:
    """Open a store as a starting broker does."""
    with Store(folder) as store:
        begin = time.perf_counter()
        log = Journal(store)
        seconds = time.perf_counter() - begin
    size = (folder / STORE_FILE).stat().st_size / 1e6
    return Row(stored_as, total, log.replayed, round(seconds, 4), round(size, 2))


def main() -> None:
    """Print one row for each store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--facts", type=whole, default=100_000)
    parser.add_argument("--workers", type=whole, default=20)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    asked = parser.parse_args()
    made = history([f"w-{number}" for number in range(asked.workers)])
    log = [fact for fact, _ in zip(made, range(asked.facts), strict=False)]
    with TemporaryDirectory() as name:
        long, short = Path(name) / "long", Path(name) / "short"
        with Store(long) as store:
            store.append([facts.encode(fact) for fact in log])
        with Store(short) as store:
            journal = Journal(store)
            state = journal.state
            for at in range(0, len(log), GROUP):
                group = log[at : at + GROUP]
                state = replay(group, state)
                journal.append([facts.encode(fact) for fact in group], state)
        rows = [measured(long, len(log), "one long log"), measured(short, len(log), "snapshot and log")]
    if asked.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))
        return
    for row in rows:
        print(
            f"{row.stored_as:18s} {row.facts:>9,d} facts  {row.replayed:>9,d} replayed  "
            f"{row.seconds:8.3f} s  {row.megabytes:8.2f} MB"
        )


if __name__ == "__main__":
    main()
