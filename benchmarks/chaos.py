"""Break a real fleet at seeded moments, and compare what it trained with an undisturbed run, bit for bit.

Five workers train and two wait in the pool; broker, workers and submitter are processes of this machine, with
a lease of 2 s. Faults: kill -9 of a worker or of two at once, a worker frozen for less or more than the
lease, kill -9 of the broker and of the submitter (the run is then resumed). One in five strikes while the one
before is being recovered from. A fault counts if its process had a part in the job and a later step was
applied. Every second job is coded. Exits 1 if a job does not end with the losses and weights of the
undisturbed one.

    python benchmarks/chaos.py [--faults 20] [--seed 1] [--json] [--folder chaos]
"""

from __future__ import annotations

import argparse
import hashlib
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from benchmarks.chaos_fleet import ChaosFleet, RunFiles

WORKERS, SPARE, LEASE_SECONDS = 5, 2, 2.0
CODECS = ("dense", "axes3/axes10-dithered")
FAULTS_PER_JOB, STEPS_PER_FAULT, CHECKPOINT_EVERY = 5, 12, 4
KINDS = ("kill",) * 4 + ("freeze",) * 2 + ("long freeze",) * 2 + ("pair", "submitter", "broker")
LONGEST_SECONDS = 120.0


class Fault(msgspec.Struct):
    """At which step which processes were hit, and the `seconds` until the next step was applied, if any."""

    kind: str
    victims: list[str]
    step: int
    during_recovery: bool
    counted: bool = False
    seconds: float | None = None


class Disturbed(msgspec.Struct):
    """One job that was disturbed, and the digest of the losses and weights that it should have."""

    codec: str
    steps: int
    sha256: str
    undisturbed_sha256: str
    seconds: float
    rollbacks: int
    events: list[Fault]


class Chaos:
    """Strikes one run with faults, each drawn from `draw`."""

    def __init__(self, fleet: ChaosFleet, run: RunFiles, options: list[str], draw: random.Random) -> None:
        self._fleet = fleet
        self._run = run
        self._options = options
        self._draw = draw
        self._down: dict[str, float] = {}  # a worker that is to be started or thawed: when
        self.faults: list[Fault] = []

    def play(self, most: int) -> None:
        """Train to the end, with at most so many faults."""
        self._fleet.train(self._run.folder, *self._options, "--out", str(self._run.folder))
        while self._fleet.exit_code("submitter") != 0:
            if len(self.faults) < most and self._reached():
                self._strike()
            self._pause()

    def _reached(self) -> bool:
        """Wait for the moment of the next fault; false if the run has ended before."""
        before = self._run.written
        is_early = bool(self.faults) and self._draw.random() < 0.2
        steps = 0 if is_early else self._draw.randint(1, 6)
        deadline = time.monotonic() + LONGEST_SECONDS
        while self._run.written < max(1, before + steps) or not self._run.checkpoints:
            if self._fleet.exit_code("submitter") == 0:
                return False
            if time.monotonic() > deadline:
                raise SystemExit(f"no step within {LONGEST_SECONDS:g} s of {self.faults[-1:]}")
            self._pause()
        until = time.monotonic() + self._draw.uniform(0.0, 1.5 if is_early else 0.3)
        while time.monotonic() < until:
            self._pause()
        return True

    def _strike(self) -> None:
        kind = self._draw.choice(KINDS)
        members = [name for name in self._run.workers if name not in self._down]
        in_recovery = bool(self.faults) and self.faults[-1].seconds is None
        count = {"pair": 2, "submitter": 0, "broker": 0}.get(kind, 1)
        if len(members) < count or (not count and self._down):
            return
        at = self._draw.randrange(len(members) - count + 1) if count else 0
        victims = members[at : at + count] or [kind]
        rows = self._run.rows
        self.faults.append(Fault(kind, victims, rows[-1].step if rows else 0, in_recovery))
        self._since, self._written = time.monotonic(), self._run.written
        for name in victims:
            self._hit(kind, name)

    def _hit(self, kind: str, name: str) -> None:
        now = time.monotonic()
        if kind in ("freeze", "long freeze"):
            share = self._draw.uniform(0.2, 0.6) if kind == "freeze" else self._draw.uniform(1.5, 2.0)
            self._fleet.signal(name, signal.SIGSTOP)
            self._down[name] = now + share * LEASE_SECONDS
        else:
            self._fleet.signal(name, signal.SIGKILL)
            self._down[name] = now + self._draw.uniform(0.2, 2.0)

    def _pause(self) -> None:
        """Let a moment pass, start again what is due, and note when the next step is applied."""
        time.sleep(0.02)
        for name in [name for name, at in self._down.items() if at <= time.monotonic()]:
            del self._down[name]
            self._start_again(name)
        code = self._fleet.exit_code("submitter")
        if code not in (None, 0) and "submitter" not in self._down:  # it lost its broker
            self._start_again("submitter")
        if self.faults and self.faults[-1].seconds is None and self._run.written > self._written:
            self.faults[-1].seconds = time.monotonic() - self._since
            for fault in self.faults:
                fault.counted = True

    def _start_again(self, name: str) -> None:
        if name == "broker":
            self._fleet.start_broker()
        elif name == "submitter":
            resumed = (
                ["--resume", str(self._run.folder)]
                if self._run.checkpoints
                else ["--out", str(self._run.folder)]
            )
            self._fleet.train(self._run.folder, *resumed, "--workers", str(WORKERS), "--wait")
        elif self._fleet.exit_code(name) is None:
            self._fleet.signal(name, signal.SIGCONT)
        else:
            self._fleet.start_worker(name)


def digest(run: RunFiles) -> str:
    """Of the losses that count and the weights."""
    found = hashlib.sha256(msgspec.json.encode([(row.step, row.loss) for row in run.rows]))
    found.update((run.folder / "model.safetensors").read_bytes())
    return found.hexdigest()


def measured(folder: Path, faults: int, seed: int) -> list[Disturbed]:
    """Disturb jobs until so many faults have counted."""
    draw, found, whole = random.Random(seed), list[Disturbed](), dict[tuple[str, int], str]()
    with ChaosFleet(folder / "fleet", WORKERS + SPARE, LEASE_SECONDS) as fleet:
        while (counted := sum(fault.counted for job in found for fault in job.events)) < faults:
            codec, most = CODECS[len(found) % 2], min(FAULTS_PER_JOB, faults - counted)
            steps = STEPS_PER_FAULT * min(FAULTS_PER_JOB, faults)
            options = ["--steps", str(steps), "--workers", str(WORKERS), "--codec", codec]
            options += ["--checkpoint-every", str(CHECKPOINT_EVERY), "--wait"]
            if (codec, steps) not in whole:
                run = RunFiles(folder / f"undisturbed-{codec.partition('/')[0]}")
                Chaos(fleet, run, options, draw).play(0)
                whole[codec, steps] = digest(run)
            began, run = time.monotonic(), RunFiles(folder / f"run-{len(found)}")
            fleet.wait_for_workers()
            chaos = Chaos(fleet, run, options, draw)
            chaos.play(most)
            rollbacks = (run.folder / "events.jsonl").read_text().count('"rolled back"')
            seconds = time.monotonic() - began
            job = Disturbed(codec, steps, digest(run), whole[codec, steps], seconds, rollbacks, chaos.faults)
            found.append(job)
            equal = "equal to" if job.sha256 == job.undisturbed_sha256 else "NOT equal to"
            print(
                f"{codec}: {len(chaos.faults)} faults, {rollbacks} rollbacks, {seconds:.0f} s: {equal} the"
                " undisturbed run",
                file=sys.stderr,
            )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep logs and run folders here")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        jobs = measured((given.folder or Path(temporary)).absolute(), given.faults, given.seed)
    events = [fault for job in jobs for fault in job.events]
    seconds = {
        kind: [f.seconds for f in events if f.kind == kind and f.seconds] for kind in dict.fromkeys(KINDS)
    }
    recovery = {
        kind: {"median": statistics.median(found), "worst": max(found)}
        for kind, found in seconds.items()
        if found
    }
    is_equal = all(job.sha256 == job.undisturbed_sha256 for job in jobs)
    if given.json:
        document = {"seed": given.seed, "equal": is_equal, "recovery_seconds": recovery, "jobs": jobs}
        print(msgspec.json.encode(document).decode())
    else:
        print(f"{sum(f.counted for f in events)} of {len(events)} faults counted; equal: {is_equal}")
        for kind, found in recovery.items():
            print(f"{kind:12} {found['median']:6.1f} s to the next step, worst {found['worst']:.1f} s")
    return 0 if is_equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
