"""A broker, workers and a submitter as processes of this machine, to be killed, frozen and started again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from farflung.client.output.history import effective_rows
from farflung.client.output.records import StepRow

JOB = Path(__file__).with_name("chaos_job.py")
START_SECONDS = 60.0


def free_port() -> int:
    """A port of this machine that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class ChaosFleet:
    """`workers` workers of one broker, each with a folder of its own below `folder`; ends with the block."""

    def __init__(self, folder: Path, workers: int, lease: float) -> None:
        self._folder = folder
        self._lease = lease
        self._address = f"127.0.0.1:{free_port()}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.workers = [f"w{number}" for number in range(workers)]

    def __enter__(self) -> ChaosFleet:
        self._folder.mkdir(parents=True, exist_ok=True)
        self.start_broker()
        token = self._token("worker", "--uses", str(len(self.workers)))
        for name in self.workers:
            self.start_worker(name, token)
        self._ask("desk", "status", "--broker", self._address, "--token", self._token("submitter"))
        self.wait_for_workers()
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
        for process in self._processes.values():
            process.wait()

    def start_broker(self) -> None:
        """Start the broker on its folder and wait until it listens."""
        lease = f"{self._lease:g}"
        self._start("broker", "hub", "broker", "--listen", self._address, "--lease", lease, "--no-survey")
        host, port = self._address.split(":")
        _eventually(lambda: _accepts(host, int(port)), "the broker listens")

    def start_worker(self, name: str, token: str = "") -> None:
        """Start a worker, which needs the token once."""
        arguments = ["join", self._address, "--name", name, "--listen", "127.0.0.1:0"]
        self._start(name, name, *arguments, *(["--token", token] if token else []))

    def wait_for_workers(self, idle: int | None = None) -> None:
        """Wait until all workers are idle, or so many."""
        wanted = len(self.workers) if idle is None else idle
        _eventually(
            lambda: len(self._ask("desk", "status")["backup_pool"]) == wanted, f"{wanted} workers idle"
        )

    def train(self, run: Path, *arguments: str, job: Path = JOB) -> None:
        """Start the submitter."""
        self._start("submitter", "desk", "train", str(job), *arguments, log=run.with_suffix(".log"))

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process; a killed one has ended when this returns."""
        process = self._processes[name]
        process.send_signal(number)
        if number == signal.SIGKILL:
            process.wait()

    def exit_code(self, name: str) -> int | None:
        """How a process has ended; None while it runs."""
        return self._processes[name].poll()

    def _start(self, key: str, home: str, *arguments: str, log: Path | None = None) -> None:
        path = log or self._folder / f"{key}.log"
        with path.open("ab") as output, Path(os.devnull).open("rb") as nothing:
            self._processes[key] = subprocess.Popen(
                [sys.executable, "-m", "farflung", *arguments], env=self._environment(home),
                stdin=nothing, stdout=output, stderr=output, cwd=self._folder,
            )  # fmt: skip

    def _environment(self, home: str) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if key != "FARFLUNG_TOKEN"}
        return {**inherited, "FARFLUNG_HOME": str(self._folder / home), "OMP_NUM_THREADS": "1"}

    def _ask(self, home: str, *arguments: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "farflung", *arguments, "--json"], env=self._environment(home),
            capture_output=True, check=False, cwd=self._folder,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"farflung {arguments[0]} failed: {done.stderr.decode()[-500:]}")
        return json.loads(done.stdout)

    def _token(self, role: str, *arguments: str) -> str:
        return str(self._ask("hub", "token", "create", "--role", role, *arguments)["token"])


class RunFiles:
    """What a run has written so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def written(self) -> int:
        """Rows of steps, those that were repeated too."""
        path = self.folder / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    @property
    def rows(self) -> list[StepRow]:
        """The rows that count."""
        return effective_rows(self.folder)

    @property
    def workers(self) -> list[str]:
        """The workers of the newest plan."""
        plan = json.loads((self.folder / "plan.json").read_text())
        return sorted({worker for placed in plan["placements"] for worker in placed["workers"]})

    @property
    def checkpoints(self) -> int:
        """Whole checkpoints."""
        folder = self.folder / "checkpoints"
        return sum(path.name.isdecimal() for path in folder.iterdir()) if folder.exists() else 0


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1.0).close()
    except OSError:
        return False
    return True


def _eventually(condition: Any, what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"never within {START_SECONDS:g} s: {what}")
        time.sleep(0.1)
