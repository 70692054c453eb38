"""What a chaos run found, and its figures."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence

import msgspec
from benchmarks.chaos.faults import DECK, Fault


class Disturbed(msgspec.Struct, frozen=True):
    """One job that was disturbed, and the digest of the losses and weights that it should have.

    `replays`: a worker took over a share alone. `rollbacks`: all went back to a version. `restarts`: all went
    back to the start. `steps_again`: rows of steps that were committed twice. `died` says which process ended
    by itself. `failure` says why the job did not end, if it did not. A coded job that went on in another cut
    is another run from step `another_from` on (docs/faults.md): the digests are those of the steps before.
    """

    codec: str
    steps: int
    sha256: str
    undisturbed_sha256: str
    seconds: float
    replays: int
    regroups: int
    rollbacks: int
    restarts: int
    steps_again: int
    steps_replayed: int
    died: list[str]
    failure: str
    events: list[Fault]
    another_from: int | None = None

    @property
    def is_equal(self) -> bool:
        """Whether its losses and weights are those of the undisturbed run."""
        return not self.failure and self.sha256 == self.undisturbed_sha256


class Recovery(msgspec.Struct, frozen=True):
    """Seconds from a fault to the next committed step."""

    count: int
    median: float
    worst: float


class Result(msgspec.Struct, frozen=True):
    """One run of this program; `load` is the machine's over 15 min at the end."""

    seed: int
    equal: bool
    faults: int
    counted: int
    during_recovery: int
    phases: dict[str, int]
    replays: int
    regroups: int
    rollbacks: int
    restarts: int
    steps_again: int
    steps_replayed: int
    load: float
    recovery_seconds: dict[str, Recovery]
    jobs: list[Disturbed]


def result_of(seed: int, jobs: Sequence[Disturbed]) -> Result:
    """The figures of all jobs."""
    events = [fault for job in jobs for fault in job.events]
    recovery = {}
    for kind in dict.fromkeys(DECK):
        found = [fault.seconds for fault in events if fault.kind == kind and fault.seconds is not None]
        if found:
            recovery[kind] = Recovery(len(found), statistics.median(found), max(found))
    phases = [fault.phase for fault in events]
    return Result(
        seed=seed,
        equal=all(job.is_equal for job in jobs),
        faults=len(events),
        counted=sum(fault.counted for fault in events),
        during_recovery=sum(fault.during_recovery for fault in events),
        phases={phase: phases.count(phase) for phase in sorted(set(phases))},
        replays=sum(job.replays for job in jobs),
        regroups=sum(job.regroups for job in jobs),
        rollbacks=sum(job.rollbacks for job in jobs),
        restarts=sum(job.restarts for job in jobs),
        steps_again=sum(job.steps_again for job in jobs),
        steps_replayed=sum(job.steps_replayed for job in jobs),
        load=os.getloadavg()[2],
        recovery_seconds=recovery,
        jobs=list(jobs),
    )
