"""Kills replica groups of torchft: a lighthouse and some groups that each train the whole model."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import msgspec
from benchmarks.chaos.fleet import free_port
from benchmarks.kills.figures import Kill, Round
from benchmarks.kills.follower import Follower, wait_until
from benchmarks.kills.job import COURSE

INSTALL = "pip install --target DIR torchft opentelemetry-sdk opentelemetry-exporter-otlp"
LOOPBACK = "127.0.0.1"
FIRST_STEPS = 5
WENT_ON = "the other replicas went on"


class Tried(msgspec.Struct, frozen=True):
    """A row of `replica.py`."""

    process: int
    step: int
    committed: bool
    participants: int
    seconds: float


@dataclass(frozen=True)
class Setting:
    """So many replica groups, with these timeouts; `words` say where they are from."""

    groups: int
    words: str
    lighthouse: tuple[str, ...] = ()
    timeouts: Mapping[str, float] = field(default_factory=dict)


_DEFAULT = "torchft's defaults: a heartbeat may be 5 s late, join within 60 s, manager 60 s, gloo 60 s"
_QUICK = (
    "a heartbeat may be 1 s late (a maintainer's word in torchft's issue 35), join within 10 s and a tick of"
    " 100 ms (its README), manager 30 s and gloo 5 s (its train_ddp.py)"
)
_FLAGS = ("--heartbeat_timeout_ms", "1000", "--join_timeout_ms", "10000", "--quorum_tick_ms", "100")
_LIMITS = {"manager": 30.0, "gloo": 5.0}
SETTINGS = {
    "torchft-2": Setting(2, _DEFAULT),
    "torchft-2-quick": Setting(2, _QUICK, _FLAGS, _LIMITS),
    "torchft-3": Setting(3, _DEFAULT),
    "torchft-3-quick": Setting(3, _QUICK, _FLAGS, _LIMITS),
}


def missing(path: Path | None) -> str:
    """Why torchft cannot run, with the command that helps; empty if it can."""
    is_there = (path / "torchft").is_dir() if path else find_spec("torchft") is not None
    where = f"in {path}" if path else "installed"
    return "" if is_there else f"torchft is not {where}: {INSTALL}, then --torchft DIR"


class Groups:
    """A lighthouse and replica groups as processes of this machine; all end with the block."""

    def __init__(self, folder: Path, setting: Setting, path: Path | None) -> None:
        self._folder, self._setting, self._path = folder, setting, path
        self._port = free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._rows = [Follower(folder / f"group-{number}.jsonl") for number in range(setting.groups)]

    def __enter__(self) -> Groups:
        flags = ["--min_replicas", "1", "--bind", f"{LOOPBACK}:{self._port}", *self._setting.lighthouse]
        self._start("lighthouse", str(Path(__file__).with_name("lighthouse.py")), *flags)
        for number in range(self._setting.groups):
            self.start(number)
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        for follower in self._rows:
            follower.stop()

    def start(self, number: int) -> int:
        """Start a group, and return its process id."""
        told = {
            "group": number,
            "groups": self._setting.groups,
            "lighthouse": f"http://{LOOPBACK}:{self._port}",
            "course": COURSE,
            "rows": str(self._folder / f"group-{number}.jsonl"),
            "timeouts": self._setting.timeouts,
        }
        script = str(Path(__file__).with_name("replica.py"))
        return self._start(f"group-{number}", script, msgspec.json.encode(told).decode())

    def kill(self, number: int) -> None:
        """Kill a group with SIGKILL; it has ended when this returns."""
        process = self._processes[f"group-{number}"]
        process.kill()
        process.wait()

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the condition holds, while all processes run.

        Raises
        ------
        SystemExit
            It did not in time, or a process has ended.
        """

        def holds() -> bool:
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise SystemExit(f"recovery.py: {name} of torchft has ended: see {self._folder}")
            return condition()

        wait_until(holds, f"{what}: see {self._folder}")

    def tried(self, number: int) -> list[tuple[float, Tried]]:
        """The rows of a group so far, each with the moment when it was seen."""
        return [(at, msgspec.json.decode(line, type=Tried)) for at, line in list(self._rows[number].lines)]

    def is_whole(self, number: int, process: int) -> bool:
        """Whether this process of the group has last committed a step, and all groups take part."""
        rows = self.tried(number)
        last = rows[-1][1] if rows else None
        return bool(
            last and last.process == process and last.committed and last.participants == self._setting.groups
        )

    def _start(self, name: str, *arguments: str) -> int:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        if self._path:
            environment["PYTHONPATH"] = os.pathsep.join(
                [str(self._path), *filter(None, [os.environ.get("PYTHONPATH")])]
            )
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, cwd=self._folder,
            )  # fmt: skip
        return self._processes[name].pid


def measure(side: str, path: Path | None, folder: Path, kills: int, gap: float, draw: random.Random) -> Round:
    """Train, and kill a group `kills` times, each `gap` to `2 * gap` seconds after all take part."""
    folder.mkdir(parents=True)
    setting, found, step_seconds = SETTINGS[side], list[Kill](), list[float]()
    with Groups(folder, setting, path) as groups:
        groups.wait_until(
            lambda: all(
                sum(row.participants == setting.groups for _, row in groups.tried(number)) >= FIRST_STEPS
                for number in range(setting.groups)
            ),
            "the first steps of all groups",
        )
        seen = 0
        for _ in range(kills):
            time.sleep(draw.uniform(gap, 2 * gap))
            step_seconds += [row.seconds for _, row in groups.tried(0)[seen + 1 :]]
            found.append(_kill(side, groups, setting.groups, draw))
            seen = len(groups.tried(0))
    return Round(side, found, step_seconds)


def _kill(side: str, groups: Groups, count: int, draw: random.Random) -> Kill:
    victim = draw.randrange(count)
    others = [number for number in range(count) if number != victim]
    step = max(groups.tried(number)[-1][1].step for number in others)
    began = time.monotonic()
    groups.kill(victim)
    process = groups.start(victim)

    def since(number: int) -> list[tuple[float, Tried]]:
        return [(at, row) for at, row in groups.tried(number) if at > began]

    def without() -> list[float]:
        rows = [(at, row) for number in others for at, row in since(number)]
        return [at for at, row in rows if row.committed and row.participants < count]

    groups.wait_until(lambda: bool(without()), f"the next step after group {victim} was killed")
    seconds = min(without()) - began
    groups.wait_until(lambda: groups.is_whole(victim, process), f"group {victim} takes part again")
    whole_seconds = time.monotonic() - began
    rows = [row for _, row in since(others[0])]
    again = sum(not row.committed for row in rows)
    missed = [COURSE.batch * (count - row.participants) // count for row in rows if row.committed]
    return Kill(
        side=side,
        victim=f"group-{victim}",
        step=step,
        seconds=seconds,
        ahead_seconds=seconds,
        whole_seconds=whole_seconds,
        way=WENT_ON,
        steps_again=again,
        steps_replayed=0,
        samples_again=again * COURSE.batch,
        samples_left_out=sum(missed),
    )
