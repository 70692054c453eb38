"""The systems that race, each started as its user would start it: farflung, and the baselines over gloo."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from benchmarks.race.baseline import ALONE, BASELINES, DDP, POWERSGD, Rank, Sleep, reporter
from benchmarks.race.course import Course
from benchmarks.race.ground import Ground, LabGround
from benchmarks.race.leg import Follower, Leg
from benchmarks.race.schedules import PIPELINES
from benchmarks.race.schedules import require_possible as possible

from farflung.lab.run.emulation import EmulatedJob
from farflung.lab.run.run import LabRun, Request
from farflung.planner.codecs.wishes import require_known
from farflung.plans import CodecWishes

ROOT = Path(__file__).resolve().parents[2]
FARFLUNG = "farflung"
DDPS = (DDP, POWERSGD)
DENSE = "dense"
STEP_SECONDS = 600.0  # no step of any system on any testbed takes longer, loading and dialling included
ROWS = "metrics.jsonl"


@dataclass(frozen=True)
class Emulated:
    """Devices that take their time and compute nothing; a node's sustains so many of `tflops`.

    `flops` are the forward operations of one sample through the whole model: each stage of a baseline takes
    an equal part. Farflung runs `job`, None for a baseline, on the workers of its topology.
    """

    tflops: dict[str, float]
    flops: float
    job: EmulatedJob | None = None


def race(
    system: str,
    ground: Ground,
    course: Course,
    folder: Path,
    warmup: int,
    emulated: Emulated | None = None,
) -> Leg:
    """One leg: `system` trains `course.steps` steps on `ground`; its files are in `folder`, which is new.

    Farflung writes its links with the rung of its name, baselines send dense. Only in a lab can devices be
    emulated.

    Raises
    ------
    RuntimeError
        It did not come to its end.
    """
    folder.mkdir(parents=True)
    ours = is_ours(system)
    run = folder / "run" if ours else folder
    ground.begin()
    follower = Follower(ground, run / ROWS, warmup, course.steps)
    follower.start()
    limit = STEP_SECONDS * (course.steps + 1)
    began = time.monotonic()
    try:
        if not ours:
            _run_baseline(system, ground, course, folder, limit, emulated)
        elif isinstance(ground, LabGround):
            asyncio.run(_run_in_lab(ground, course, run, limit, emulated))
        else:
            _run_locally(ground, course, run, limit)
    except (TimeoutError, subprocess.TimeoutExpired):
        raise RuntimeError(f"{system} did not come to its end in {limit:.0f} s: see {folder}") from None
    finally:
        seconds, lateness = time.monotonic() - began, ground.lateness()
    return msgspec.structs.replace(follower.leg(system, lateness), run_seconds=seconds)


def coded(codec: str) -> str:
    """What farflung is called with its links written so."""
    return FARFLUNG if codec == DENSE else f"{FARFLUNG} {codec}"


def entered(codecs: Sequence[str], peers: str, known: Sequence[str]) -> list[str]:
    """Who races, each once: farflung, farflung with each of these codecs, and the peers of a list by commas.

    A peer may have microbatches of its own, as in `1f1b@16`.

    Raises
    ------
    RuntimeError
        A peer is none of those that are `known`, or codecs come in turn: a race measures seconds of a step in
        short runs, which would be of several of them.
    CodecError
        There is no such codec or policy.
    """
    for codec in codecs:
        if "@" in codec or "," in codec:
            raise RuntimeError(f"--codec {codec}: a race is of one codec pair, not of several in turn (@)")
        wishes = CodecWishes(codec)
        require_known(wishes, [], wishes.codebook)
    named = [name for name in peers.split(",") if name]
    for name in named:
        base, at, microbatches = name.partition("@")
        if base not in known or (at and not microbatches.isdecimal()):
            raise RuntimeError(f"expected --peers from {', '.join(known)}, found {name!r}")
    return list(dict.fromkeys([FARFLUNG, *map(coded, codecs), *named]))


def require_possible(systems: Sequence[str], nodes: int, course: Course) -> None:
    """Check that each opponent can run on so many nodes.

    Raises
    ------
    RuntimeError
        One has more stages than there are blocks, or its microbatches do not divide the batch.
    """
    for name in systems:
        if not is_ours(name):
            own = course_of(name, course)
            if not own.microbatches or own.batch % own.microbatches:
                raise RuntimeError(
                    f"{name}: {own.microbatches} microbatches do not divide {own.batch} samples"
                )
            if base_of(name) in PIPELINES:
                possible(base_of(name), nodes, own.layers, own.microbatches)


def is_ours(system: str) -> bool:
    """Whether farflung itself races by this name."""
    return base_of(system) not in BASELINES


def base_of(system: str) -> str:
    """A system's name without its own microbatches."""
    return system if system.startswith(FARFLUNG) else system.partition("@")[0]


def course_of(system: str, course: Course) -> Course:
    """The course with the codec or the microbatches that a system's name says."""
    if is_ours(system):
        return msgspec.structs.replace(course, codec=rung_of(system))
    microbatches = system.partition("@")[2]
    return msgspec.structs.replace(course, microbatches=int(microbatches)) if microbatches else course


@contextmanager
def run_folder(kept: Path | None) -> Iterator[Path]:
    """Where runs and logs go: there, or into a folder that is gone afterwards, unless a leg has failed."""
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
        return
    path = Path(tempfile.mkdtemp(prefix="farflung-race-"))
    yield path  # an error passes by: what it names stays there
    shutil.rmtree(path)


def rung_of(system: str) -> str:
    """How a system of the race writes its links."""
    return system.removeprefix(FARFLUNG).strip() or DENSE if is_ours(system) else DENSE


def _run_baseline(
    system: str, ground: Ground, course: Course, folder: Path, limit: float, emulated: Emulated | None
) -> None:
    """One process a node; rows of the rank that has the loss go to `metrics.jsonl`."""
    base = base_of(system)
    nodes = ground.nodes[:1] if base == ALONE else ground.nodes
    world = len(nodes)
    port = ground.port()
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": ground.interface,
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    processes: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        log = stack.enter_context((folder / "ranks.log").open("wb"))
        rows = stack.enter_context((folder / ROWS).open("wb"))
        for rank, node in enumerate(nodes):
            address = f"{ground.address(nodes[0])}:{port}"
            told = Rank(base, rank, world, address, course, _sleep(nodes, rank, course, emulated))
            argv = [sys.executable, "-m", "benchmarks.race.baseline", msgspec.json.encode(told).decode()]
            output = rows if rank == reporter(base, world) else log
            command = ground.command(node, argv)
            process = subprocess.Popen(command, stdout=output, stderr=log, env=environment, cwd=ROOT)
            processes.append(process)
            stack.callback(_end, process)
        for process in processes:
            if process.wait(limit):
                raise RuntimeError(f"{system} failed: {_last_words(folder / 'ranks.log')}")


def _sleep(nodes: Sequence[str], rank: int, course: Course, emulated: Emulated | None) -> Sleep | None:
    if emulated is None:
        return None
    flops = emulated.flops * course.microbatch_size
    return Sleep(emulated.tflops[nodes[rank]], flops / len(nodes))


async def _run_in_lab(
    ground: LabGround, course: Course, run: Path, limit: float, emulated: Emulated | None
) -> None:
    """The real thing: broker, workers and submitter, each in a namespace of its own."""
    shapes = emulated.job if emulated else None
    job = job_file(course, run, "cpu" if shapes is None else "meta")
    topology = shapes.topology if shapes else ground.topology
    request = Request(
        job,
        topology,
        len(topology.workers),
        run,
        as_json=True,
        emulated=shapes,
        replicas=str(course.replicas),
    )
    async with asyncio.timeout(limit):
        outcome = await LabRun(ground.network, request, _silently).run()
    if outcome.exit_code:
        raise RuntimeError(f"farflung failed: {outcome.output.decode(errors='replace')[-500:]}")


def _run_locally(ground: Ground, course: Course, run: Path, limit: float) -> None:
    argv = [sys.executable, "-m", "farflung", "train", str(job_file(course, run))]
    argv += ["--local", str(len(ground.nodes)), "--out", str(run), "--json"]
    done = subprocess.run(argv, capture_output=True, timeout=limit, check=False)
    if done.returncode:
        raise RuntimeError(f"farflung failed: {done.stderr.decode(errors='replace')[-500:]}")


def job_file(course: Course, run: Path, device: str = "cpu") -> Path:
    """A job file that names the course, as `farflung train` reads it; on `meta` its model has no values."""
    path = run.parent / "race_job.py"
    text = msgspec.json.encode(course).decode()
    path.write_text(
        f"import sys\n\nsys.path.insert(0, {str(ROOT)!r})\n\nimport msgspec\n\n"
        f"from benchmarks.race.course import Course\n\n\ndef job():\n"
        f"    return msgspec.json.decode({text!r}, type=Course).job({device!r})\n"
    )
    return path


def _silently(line: str) -> None:
    """The fleet's own words are in its logs."""


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else "it said nothing"
