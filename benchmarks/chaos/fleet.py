"""A broker, workers and a submitter as processes of this machine, to be killed, frozen and started again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.chaos.place import DESK, HUB, Place

JOB = Path(__file__).with_name("job.py")
ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 90.0
PORT = 7700
LISTENS, SURVEYED = b"listens on", b"survey: finished"
BROKER, SUBMITTER = "broker", "submitter"
RELAYED = "relay through "
FARFLUNG = "farflung"


class NoAnswer(RuntimeError):
    """A command of farflung failed."""


def free_port() -> int:
    """A port of this machine that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class ChaosFleet:
    """`workers` workers of one broker, each with a folder of its own below `folder`; ends with the block.

    The broker listens at `address`. All are at `place`, or else on the loopback. Workers named in `relays`
    carry links of others; all `join` with these options. With `is_surveyed`, the broker lets workers measure
    their links first. With `is_open`, others may dial it at each IPv4 address of this machine. `own`
    are further options of single workers.
    """

    def __init__(
        self,
        folder: Path,
        workers: int,
        lease: float,
        place: Place | None = None,
        relays: tuple[str, ...] = (),
        join: tuple[str, ...] = (),
        is_surveyed: bool = False,
        is_open: bool = False,
        own: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self._folder = folder
        self._lease = lease
        self._place = place
        self._relays = relays
        self._join = join
        self._is_surveyed = is_surveyed
        self._is_open = is_open
        self._own = own or {}
        host = place.network.address(HUB) if place else "127.0.0.1"
        self.address = f"{host}:{PORT if place else free_port()}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.workers = [f"w{number}" for number in range(workers)]

    def __enter__(self) -> ChaosFleet:
        self._folder.mkdir(parents=True, exist_ok=True)
        self.start_broker()
        self._eventually(lambda: self._has_said(LISTENS), "the broker listens")
        token = self.token("worker", "--uses", str(len(self.workers)))
        for name in self.workers:
            self.start_worker(name, token)
        self._ask(DESK, "status", "--broker", self.address, "--token", self.token("submitter"))
        self.wait_for_workers()
        if self._is_surveyed:
            self._eventually(lambda: self._has_said(SURVEYED), "the links are measured")
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
        for process in self._processes.values():
            process.wait()

    def start_broker(self) -> None:
        """Start the broker on its folder."""
        lease = f"{self._lease:g}"
        survey = [] if self._is_surveyed else ["--no-survey"]
        listen = f"0.0.0.0:{self.address.rpartition(':')[2]}" if self._is_open else self.address
        self._start(BROKER, HUB, "broker", "--listen", listen, "--lease", lease, *survey)

    def start_worker(self, name: str, token: str = "") -> None:
        """Start a worker, which needs the token once."""
        listen = "[::]:0" if self._place else "127.0.0.1:0"
        arguments = ["join", self.address, "--name", name, "--listen", listen]
        arguments += ["--relay", "50"] if name in self._relays else []
        arguments += [*self._join, *self._own.get(name, ())]
        self._start(name, name, *arguments, *(["--token", token] if token else []))

    def wait_for_workers(self, idle: int | None = None) -> None:
        """Wait until all workers are idle, or so many."""
        wanted = len(self.workers) if idle is None else idle
        self._eventually(lambda: len(self._idle()) == wanted, f"{wanted} workers idle")

    def token(self, role: str, *arguments: str) -> str:
        """A new token of the broker for this role."""
        return str(self._ask(HUB, "token", "create", "--role", role, *arguments)["token"])

    def relays(self) -> set[str]:
        """The workers that carry links of others now; empty while no broker answers."""
        try:
            found = [view["report"]["link"] for view in self._ask(DESK, "status")["links"]]
        except NoAnswer:
            return set()
        return {link["path"].removeprefix(RELAYED) for link in found if link} & set(self.workers)

    def _idle(self) -> list[str]:
        try:
            return list(self._ask(DESK, "status")["backup_pool"])
        except NoAnswer:
            return []

    def train(self, run: Path, *arguments: str, job: Path = JOB, name: str = SUBMITTER) -> None:
        """Start the submitter, as the process `name`."""
        self._start(name, DESK, "train", str(job), *arguments, log=run.with_suffix(".log"))

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process; a killed one has ended when this returns."""
        process = self._processes[name]
        process.send_signal(number)
        if number == signal.SIGKILL:
            process.wait()

    def exit_code(self, name: str) -> int | None:
        """How a process has ended; None while it runs."""
        return self._processes[name].poll()

    def process(self, name: str) -> int:
        """The id of a process."""
        return self._processes[name].pid

    def _start(
        self, key: str, home: str, *arguments: str, log: Path | None = None, program: str = FARFLUNG
    ) -> None:
        path = log or self._folder / f"{key}.log"
        prefix = self._prefix(home)
        with path.open("ab") as output, Path(os.devnull).open("rb") as nothing:
            self._processes[key] = subprocess.Popen(
                [*prefix, sys.executable, "-m", program, *arguments], env=self._environment(home),
                stdin=nothing, stdout=output, stderr=output, cwd=self._folder,
            )  # fmt: skip

    def _prefix(self, home: str) -> list[str]:
        return self._place.prefix(home) if self._place else []

    def _environment(self, home: str) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if key != "FARFLUNG_TOKEN"}
        paths = os.pathsep.join(map(str, (ROOT / "src", ROOT)))
        own = {"FARFLUNG_HOME": str(self._folder / home), "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        return {**inherited, **own}

    def _ask(self, home: str, *arguments: str) -> Any:
        prefix = self._prefix(home)
        done = subprocess.run(
            [*prefix, sys.executable, "-m", "farflung", *arguments, "--json"], env=self._environment(home),
            capture_output=True, check=False, cwd=self._folder,
        )  # fmt: skip
        if done.returncode:
            raise NoAnswer(f"farflung {arguments[0]} failed: {done.stderr.decode()[-500:]}")
        return json.loads(done.stdout)

    def _has_said(self, words: bytes) -> bool:
        return words in (self._folder / f"{BROKER}.log").read_bytes()

    def _eventually(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise SystemExit(f"never within {START_SECONDS:g} s: {what}; see {self._folder}")
            time.sleep(0.3)
