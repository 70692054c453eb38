"""Break a real fleet at seeded moments, and compare what it trained with an undisturbed run, bit for bit.

Five workers train and two wait in the pool, with a lease of 2 s and default settings: no checkpoints
while a job trains. Each process is at home in a network namespace of its own, some workers behind NAT, and
each worker has a small disk of its own. Faults: kill -9 of a worker, of two neighbours at once, of the
broker, of the submitter (its run is then resumed) and of a worker that relays links of others; any of them
frozen for less or more than the lease; a link cut for less or more than the lease, or flapping; a worker
cut off from all; a full disk; a damaged copy; a worker that leaves in good order. They strike while a job
is loaded, while it trains, while a version is made, while weights are collected, and while the fault before
is recovered from. A killed process is started again after a while. A fault counts if its victim had a part
in the job and a later step was committed, or the weights came home. Every second job is coded. Exits 1 if a
job does not end with the losses and weights of the undisturbed one; a coded one that went on in another cut,
because a worker stayed away for 6 leases, with those until then.

    python -m benchmarks.chaos [--faults 20] [--seed 1] [--json] [--folder FOLDER]

It needs Linux and root.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.arguments import folder_path, whole
from benchmarks.chaos.disturb import measured
from benchmarks.chaos.figures import Result, result_of

from farflung.errors import LabError
from farflung.lab.machine import check_machine


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if some job is not equal to its undisturbed one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=whole, default=20, help="that count: %(default)s")
    parser.add_argument("--per-job", type=whole, default=8, help="faults of one job: %(default)s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=folder_path, help="keep logs and run folders here")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    try:
        check_machine(needs_nft=True)
    except LabError as error:
        print(f"chaos.py: {error}", file=sys.stderr)
        return 2
    folder = given.folder.absolute() if given.folder else None
    result = result_of(given.seed, measured(folder, given.faults, given.per_job, given.seed))
    if given.json:
        print(msgspec.json.encode(result).decode())
    else:
        show(result)
    return 0 if result.equal else 1


def show(result: Result) -> None:
    """A line for each kind of fault."""
    print(
        f"{result.counted} of {result.faults} faults counted, {result.during_recovery} during a recovery;"
        f" equal: {result.equal}; {result.replays} replays, {result.rollbacks} rollbacks,"
        f" {result.steps_again} steps ran again on all workers"
    )
    for kind, found in result.recovery_seconds.items():
        print(f"{kind:24} {found.count:4} {found.median:6.1f} s to the next step, worst {found.worst:.1f} s")


if __name__ == "__main__":
    raise SystemExit(main())
