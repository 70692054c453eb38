"""One attack on one fleet: training with and without it in turn."""

from __future__ import annotations

import asyncio
import socket
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil
from benchmarks.chaos.fleet import BROKER, ROOT, SUBMITTER, ChaosFleet
from benchmarks.chaos.place import HUB
from benchmarks.chaos.run_files import RunFiles
from benchmarks.hostile.attacker import READY
from benchmarks.hostile.cage import Cage
from benchmarks.hostile.figures import Attacked, Pace, Window, holds
from benchmarks.hostile.newcomer import join_seconds
from benchmarks.hostile.raw import Tally
from benchmarks.kills.follower import wait_until

from farflung.client.api.load import load_job
from farflung.client.capture.check import capture_shapes
from farflung.opdag import wire
from farflung.transport.security.enrolment import enrol
from farflung.transport.security.tokens import Token, TokenRole

BRIEF, USUAL, EMULATED = "brief", "usual", "emulated"
FILES = {
    BRIEF: Path(__file__).with_name("job.py"),
    USUAL: Path(__file__).with_name("usual_job.py"),
    EMULATED: Path(__file__).with_name("usual_job.py"),
}
DEVICE = ("--backend", "emulated", "--tflops", "0.015")
FIRST_STEPS = {BRIEF: 200, USUAL: 20, EMULATED: 20}
"""Steps before the first window, so that both workers are warm."""
LEASE_SECONDS = 10.0
MEMBERS, SPARE = ("w0", "w1"), ("w2", "w3")
SECOND = "second submitter"
SECOND_STEPS = 5
SECOND_SECONDS = 90.0
SETTLE_SECONDS = 1.0
STANDSTILL_SECONDS = 10.0
LOOK_SECONDS = 0.003
STOP_SECONDS = 10.0
STARTED_AGAIN = ("rolled back", "regrouping")


@dataclass(frozen=True)
class Setting:
    """How long and how often each attack is measured while which job trains, and how many cores its attacker
    may use.
    """

    rounds: int
    window_seconds: float
    cpu: float
    folder: Path
    job: str = EMULATED


class Course:
    """A fleet under one attack. `measure` once."""

    def __init__(self, name: str, role: str, setting: Setting) -> None:
        self._name, self._role, self._setting = name, role, setting
        self._folder = setting.folder / f"{role}-{name.replace(' ', '-')}"
        own = dict.fromkeys(MEMBERS, DEVICE) if setting.job == EMULATED else None
        self._fleet = ChaosFleet(self._folder, len(MEMBERS + SPARE), LEASE_SECONDS, is_open=True, own=own)
        self._attacked = f"{outside_address()}:{self._fleet.address.rpartition(':')[2]}"
        self._tally = Tally()
        self._joins: list[float] = []
        self._second_seconds: float | None = None
        self._second_failed = False

    def measure(self) -> Attacked:
        """Alternate windows without and with the attack, and end with a second honest job under attack."""
        with self._fleet as fleet:
            self._run = RunFiles(self._folder / "run")
            options = ("--on", ",".join(MEMBERS), "--out", str(self._run.folder), *self._options())
            fleet.train(self._run.folder, *options, job=FILES[self._setting.job])
            try:
                wait_until(lambda: self._run.written >= FIRST_STEPS[self._setting.job], "training begins")
                return self._measured()
            finally:
                self._run.close()

    def _options(self) -> tuple[str, ...]:
        if self._setting.job != EMULATED:
            return ("--checkpoint-every", "never")
        program = self._folder / "program"
        program.write_bytes(wire.dump(capture_shapes(load_job(FILES[EMULATED])).graph))
        return ("--emulated", str(program))

    def _measured(self) -> Attacked:
        identity = self._attacker_identity()
        token = self._fleet.token("worker", "--uses", str(self._setting.rounds))
        before_bytes = _size_of(self._folder / HUB)
        calm, attacked = [self._window()], list[Pace]()
        with Cage(self._setting.cpu) as cage:
            for number in range(self._setting.rounds):
                with _Attacker(self._name, self._role, self._attacked, identity, cage) as attacker:
                    time.sleep(SETTLE_SECONDS)
                    attacked.append(self._window())
                    newcomer = self._folder / f"newcomer-{number}"
                    self._joins.append(join_seconds(self._fleet.address, token, newcomer))
                    if number == self._setting.rounds - 1:
                        self._train_second()
                    self._tally.add(attacker.stop())
                time.sleep(SETTLE_SECONDS)
                calm.append(self._window())
        windows = [Window(*around) for around in zip(calm, attacked, calm[1:], strict=False)]
        calm_cores = statistics.median(pace.broker_cores for pace in calm)
        return self._row(windows, calm_cores, _size_of(self._folder / HUB) - before_bytes)

    def _row(self, windows: list[Window], calm_cores: float, grown_bytes: int) -> Attacked:
        kept = statistics.median(window.kept for window in windows)
        mean_kept = statistics.median(window.mean_kept for window in windows)
        broker_mb = _peak_mb(self._fleet.process(BROKER))
        failed, slowest = self._has_failed(), max(self._joins)
        return Attacked(
            name=self._name,
            role=self._role,
            held=holds(min(kept, mean_kept), broker_mb, failed, slowest),
            speed_kept=kept,
            mean_speed_kept=mean_kept,
            broker_mb=broker_mb,
            honest_failed=failed,
            join_seconds=slowest,
            second_job_seconds=self._second_seconds,
            disk_mb=grown_bytes / 1e6,
            broker_cores=statistics.median(window.attacked.broker_cores for window in windows),
            broker_calm_cores=calm_cores,
            tries=self._tally.tries,
            refused=self._tally.refused,
            reasons=self._tally.reasons,
            windows=windows,
        )

    def _window(self) -> Pace:
        """How fast the job trains and the broker works in a window from the next step on."""
        broker = psutil.Process(self._fleet.process(BROKER))
        self._end_of_step()
        first, cpu, began = self._run.written - 1, _cpu_seconds(broker), time.monotonic()
        time.sleep(self._setting.window_seconds)
        self._end_of_step()
        cores = (_cpu_seconds(broker) - cpu) / (time.monotonic() - began)
        return Pace.of(self._run.moments[first:], cores)

    def _end_of_step(self) -> None:
        """Wait until another step is done, or for a while if none gets done."""
        before, deadline = self._run.written, time.monotonic() + STANDSTILL_SECONDS
        while self._run.written == before and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)

    def _train_second(self) -> None:
        """Train a small honest job on spare workers; where the attacker is a worker, it may get a part."""
        where = ("--workers", "2") if self._role == "worker" else ("--on", ",".join(SPARE))
        folder = self._folder / "second"
        options = (*where, "--steps", str(SECOND_STEPS), "--out", str(folder))
        begin = time.monotonic()
        self._fleet.train(folder, *options, job=FILES[BRIEF], name=SECOND)
        while (code := self._fleet.exit_code(SECOND)) is None and time.monotonic() - begin < SECOND_SECONDS:
            time.sleep(0.05)
        self._second_seconds, self._second_failed = time.monotonic() - begin, code != 0

    def _has_failed(self) -> bool:
        again = any(event.event in STARTED_AGAIN for event in self._run.events)
        return again or self._second_failed or self._fleet.exit_code(SUBMITTER) is not None

    def _attacker_identity(self) -> Path | None:
        if self._role == "stranger":
            return None
        role: TokenRole = msgspec.convert(self._role, TokenRole)
        folder, token = self._folder / "attacker", Token.parse(self._fleet.token(role))
        asyncio.run(enrol(self._fleet.address, token, folder, role, "a-mallory"))
        return folder


class _Attacker:
    """The process of an attacker, capped once it is ready, which attacks until `stop` or the block's end."""

    def __init__(self, name: str, role: str, address: str, identity: Path | None, cage: Cage) -> None:
        arguments = [name, role, address, *([str(identity)] if identity else [])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.hostile.attacker", *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip
        self._cage = cage

    def __enter__(self) -> _Attacker:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != READY:
            raise SystemExit("hostile: the attacker did not start")
        self._cage.hold(self._process.pid)
        self._say()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def stop(self) -> Tally:
        """What it has tried until now; it attacks no more."""
        self._say()
        assert self._process.stdout is not None
        return msgspec.json.decode(self._process.stdout.readline(), type=Tally)

    def _say(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()


def outside_address() -> str:
    """An address of this machine that others may know: who dials it from here comes from it.

    It is the loopback where there is no network. Nothing is sent.
    """
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.connect(("203.0.113.1", 9))
        return str(asked.getsockname()[0])
    return "127.0.0.1"


def _peak_mb(process: int) -> float:
    """The most memory that a process has had, in MB."""
    status = Path(f"/proc/{process}/status").read_text()
    (kilobytes,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(kilobytes) * 1024 / 1e6


def _cpu_seconds(process: psutil.Process) -> float:
    used = process.cpu_times()
    return used.user + used.system


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
