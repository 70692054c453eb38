"""Disturbs jobs until enough faults have counted."""

from __future__ import annotations

import hashlib
import random
import sys
import time
from pathlib import Path

import msgspec
from benchmarks.chaos.faults import Striker
from benchmarks.chaos.figures import Disturbed, result_of
from benchmarks.chaos.fleet import ChaosFleet
from benchmarks.chaos.place import DESK, HUB, Place
from benchmarks.chaos.play import JobFailed, Play
from benchmarks.chaos.run_files import RunFiles

from farflung.lab.spec import LabSpec, LinkSettings, Node

WORKERS, LEASE_SECONDS = 5, 2.0
NAMES = tuple(f"w{number}" for number in range(WORKERS + 2))
BEHIND_NAT = NAMES[1:4]
RELAYS = tuple(name for name in NAMES if name not in BEHIND_NAT)
CODED = ("axes3/axes10-dithered", "row-topk30-int4/masked30-int4")
STEPS_PER_FAULT = 7
LINE = LinkSettings(latency_ms=1.0)
WORKER_MBPS = 30.0
DESK_MBPS = 6.0
"""So that collecting the weights takes a moment in which a fault can happen."""


def network() -> LabSpec:
    """The lab of the fleet."""
    nodes = [Node(HUB), Node(DESK, up_mbps=WORKER_MBPS, down_mbps=DESK_MBPS)]
    nodes += [Node(name, WORKER_MBPS, WORKER_MBPS, behind_nat=name in BEHIND_NAT) for name in NAMES]
    names = [node.name for node in nodes]
    return LabSpec(tuple(nodes), {(a, b): LINE for a in names for b in names if a != b})


def measured(folder: Path | None, faults: int, per_job: int, seed: int) -> list[Disturbed]:
    """The jobs, with at least so many counted faults; files are kept if there is a folder.

    There `result.json` holds the figures of all jobs so far.
    """
    draw, found, whole = random.Random(seed), list[Disturbed](), dict[tuple[str, int], RunFiles]()
    with (
        Place(network(), NAMES, folder) as place,
        # Surveyed: a plan that knows its links has another cut, and so other bits where they are coded.
        ChaosFleet(place.fleet_folder, len(NAMES), LEASE_SECONDS, place, RELAYS, is_surveyed=True) as fleet,
    ):
        striker = Striker(fleet, place, LEASE_SECONDS, draw)
        while (counted := sum(fault.counted for job in found for fault in job.events)) < faults:
            most = min(per_job, faults - counted)
            codec = "dense" if len(found) % 2 else CODED[len(found) // 2 % len(CODED)]
            steps = STEPS_PER_FAULT * min(per_job, faults)
            options = ["--steps", str(steps), "--workers", str(WORKERS), "--codec", codec, "--wait"]
            if codec != "dense":
                # Its bits follow the cut, and most schedulers cut by what is measured by then.
                options += ["--scheduler", "equal-count"]

            if (codec, steps) not in whole:
                run = whole[codec, steps] = RunFiles(place.folder / f"undisturbed-{codec.partition('/')[0]}")
                Play(fleet, place, striker, run, options, draw).play(0)
                run.close()
            fleet.wait_for_workers()
            run = RunFiles(place.folder / f"run-{len(found)}")
            job = _disturbed(Play(fleet, place, striker, run, options, draw), run, most)
            run.close()
            expected = digest(whole[codec, steps], job.another_from)
            job = msgspec.structs.replace(job, codec=codec, steps=steps, undisturbed_sha256=expected)
            found.append(job)
            _tell(job)
            if folder is not None:
                (folder / "result.json").write_bytes(msgspec.json.encode(result_of(seed, found)))
            if job.failure:
                break
    return found


def _disturbed(play: Play, run: RunFiles, most: int) -> Disturbed:
    began, failure = time.monotonic(), ""
    try:
        play.play(most)
    except JobFailed as error:
        failure = str(error)
    events = run.events
    replays = [each for each in events if each.event == "regrouping" and each.replayers]
    back = [each for each in events if each.event == "rolled back"]
    others = [each.step for each in events if each.event == "another cut" and each.another_run]
    another_from = min(others, default=None)
    return Disturbed(
        codec="",
        steps=0,
        sha256="" if failure else digest(run, another_from),
        undisturbed_sha256="",
        seconds=time.monotonic() - began,
        replays=len(replays),
        regroups=sum(each.event == "regrouping" for each in events) - len(replays),
        rollbacks=sum(each.step > 0 for each in back),
        restarts=sum(each.step == 0 and each.done > 0 for each in back),
        steps_again=run.written - len(run.rows),
        steps_replayed=sum(each.unit - each.replay_from for each in replays),
        died=play.died,
        failure=failure,
        events=play.faults,
        another_from=another_from,
    )


def digest(run: RunFiles, before: int | None) -> str:
    """Of the losses that count and the weights; only of the losses `before` a step, if one is given."""
    rows = [(row.step, row.loss) for row in run.rows if before is None or row.step < before]
    found = hashlib.sha256(msgspec.json.encode(rows))
    if before is None:
        found.update((run.folder / "model.safetensors").read_bytes())
    return found.hexdigest()


def _tell(job: Disturbed) -> None:
    equal = "equal to" if job.is_equal else "NOT equal to"
    if job.another_from is not None:
        equal = f"another cut from step {job.another_from}, until then {equal}"
    print(
        f"{job.codec}: {len(job.events)} faults, {job.replays} replays, {job.rollbacks} rollbacks,"
        f" {job.restarts} restarts, {job.seconds:.0f} s: {equal} the undisturbed run {job.failure}"
        + "".join(f"\n  {died}" for died in job.died),
        file=sys.stderr,
        flush=True,
    )
