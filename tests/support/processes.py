"""Machines made of real processes: each command has a home of its own, and nothing of it may stay behind."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
from tests.support.forked import ForkedCommand, forked, is_possible
from tests.support.ports import held_port

DEADLINE_SECONDS = 120.0
LEASE_SECONDS = 5.0
COMMAND_PAUSE_SECONDS = 0.4  # before a command is run again to ask: each takes as long of a core
MARK = "FARFLUNG_TEST_MARK"

JOB = """
import time
import torch
import farflung
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x, y):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return nn.functional.mse_loss(x, y)


class Items:
    seconds = 0.005  # so that whatever happens to a run happens in the middle of a step

    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(self.seconds)
        x = torch.sin(torch.arange(8.0) + index)
        return {"x": x, "y": x.flip(0)}


def job():
    torch.manual_seed(1)
    return farflung.Job(model=Net(), data=Items(), optimizer=farflung.AdamW(lr=1e-2),
                        batch=8, microbatches=4, steps=1_000_000)
"""


def eventually(what: str, condition: Callable[[], bool], pause_seconds: float = 0.05) -> None:
    """Wait until `condition`, asked with such pauses, holds; fail with `what` if it never does."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(pause_seconds)


class Command:
    """A running farflung command and what it says."""

    def __init__(self, process: subprocess.Popen[bytes] | ForkedCommand, out: Path, err: Path) -> None:
        self.process = process
        self._out, self._err = out, err

    @property
    def out(self) -> str:
        """Its standard output so far."""
        return self._out.read_text()

    @property
    def err(self) -> str:
        """Its standard error so far."""
        return self._err.read_text()

    @property
    def errors(self) -> list[str]:
        """Its `error:` lines; a traceback is a defect of ours."""
        assert "Traceback" not in self.err, self.err
        return [line for line in self.err.splitlines() if line.startswith("error: ")]

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def code(self) -> int:
        """Wait for its end; its exit code."""
        return self.process.wait(DEADLINE_SECONDS)

    def says(self, *words: str) -> None:
        """Wait until one line of its log holds all of `words`."""

        def said() -> bool:
            return any(all(word in line for word in words) for line in self.err.splitlines())

        eventually(f"{words} in\n{self.err}", lambda: said() or self.process.poll() is not None)
        assert said(), f"{words} not in\n{self.err}"

    def stop(self) -> None:
        """Interrupt it; it must end well: a worker that may go says so by code 0."""
        self.signal(signal.SIGINT)
        assert self.code() in (0, 130), self.err
        assert "Traceback" not in self.err, self.err


class Machines:
    """Starts commands, each as on a machine whose home is named; the broker's listens on `port`."""

    lease_seconds = LEASE_SECONDS
    listen = "127.0.0.1:0"
    sources: Path | None = None
    """The folder of another farflung, which commands run in place of this one."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.temporary = folder / "temporary"
        self.temporary.mkdir(parents=True)
        self._mark = uuid.uuid4().hex
        self._started: list[Command] = []
        self.address = f"127.0.0.1:{port}"

    def start(
        self, home: str, *arguments: str, limit_bytes: int | None = None, sources: Path | None = None
    ) -> Command:
        """Start `farflung ARGUMENTS` (of `sources`), which may write files of at most `limit_bytes`."""
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        out, err = (logs / f"{len(self._started)}-{home}.{end}" for end in ("out", "err"))
        python, environment = self.python(home), self.environment(home, sources)
        sources = sources or self.sources
        is_plain = python == [sys.executable] and limit_bytes is None
        process: subprocess.Popen[bytes] | ForkedCommand

        def limit() -> None:
            if limit_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

        with out.open("wb") as to_out, err.open("wb") as to_err, Path(os.devnull).open("rb") as nothing:
            if is_possible() and is_plain:
                files = nothing.fileno(), to_out.fileno(), to_err.fileno()
                process = forked(arguments, environment, self.folder, files, self.namespace(home), sources)
            else:
                process = subprocess.Popen(
                    [*self.prefix(home), *python, "-m", "farflung", *arguments], env=environment,
                    stdin=nothing, stdout=to_out, stderr=to_err, cwd=self.folder, preexec_fn=limit,
                )  # fmt: skip
        self._started.append(Command(process, out, err))
        return self._started[-1]

    def prefix(self, home: str) -> list[str]:
        """What a command of this machine begins with, if it is not forked."""
        return []

    def namespace(self, home: str) -> str:
        """The network namespace of this machine, if it has one."""
        return ""

    def python(self, home: str) -> list[str]:
        """The Python of this machine."""
        return [sys.executable]

    def fails(self, home: str, *arguments: str) -> str:
        """Run a command that must fail: its one line, without `error: `."""
        command = self.start(home, *arguments)
        assert command.code() not in (0, 130), command.err
        (line,) = command.errors
        assert command.err.splitlines()[-1] == line
        return line.removeprefix("error: ")

    def document(self, home: str, *arguments: str) -> Any:
        """Run a command that must succeed, with --json: what it printed."""
        command = self.start(home, *arguments, "--json")
        assert command.code() == 0, command.err
        return json.loads(command.out)

    def broker(self) -> Command:
        """The broker, on the folder that it may have had before; this machine's loopback is not surveyed."""
        lease = f"{self.lease_seconds:g}"
        started = self.start("hub", "broker", "--listen", self.address, "--lease", lease, "--no-survey")
        started.says("listens on", self.address)
        return started

    def token(self, role: str, *arguments: str, home: str = "hub") -> str:
        """A new token of the broker whose home it is."""
        return str(self.document(home, "token", "create", "--role", role, *arguments)["token"])

    def worker(
        self, name: str, token: str | None = None, sources: Path | None = None, *options: str
    ) -> Command:
        """A worker of that name; without a token it has joined before."""
        arguments = ["join", self.address, "--name", name, "--listen", self.listen, *options]
        told = ["--token", token] if token else []
        return self.start(name, *arguments, *told, sources=sources)

    def status(self) -> Any:
        """What `farflung status --json` prints for the submitter."""
        return self.document("desk", "status")

    def idle(self, *workers: str) -> None:
        """Wait until exactly these workers are in the backup pool."""
        idle = sorted(workers)
        eventually(f"{workers} idle", lambda: self.status()["backup_pool"] == idle, COMMAND_PAUSE_SECONDS)

    def orphans(self) -> list[psutil.Process]:
        """Processes that still run of all that was started here, children of children too."""
        own = {command.process.pid for command in self._started if command.process.poll() is None}
        return [p for p in psutil.process_iter() if p.pid in own or self._is_ours(p)]

    def command_lines(self) -> str:
        """The command lines of all processes that run of what was started here, as other users see them."""
        lines = []
        for process in self.orphans():
            with suppress(psutil.Error):
                lines.append(" ".join(process.cmdline()))
        return "\n".join(lines)

    def left_behind(self) -> list[Path]:
        """Temporary files of all these commands; torch's own cache, which it makes on import, is its own."""
        return [path for path in self.temporary.iterdir() if not path.name.startswith("torchinductor_")]

    def end(self) -> None:
        """End whatever a failed test left running."""
        for process in self.orphans():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for command in self._started:
            command.process.wait()

    def environment(self, home: str, sources: Path | None = None) -> dict[str, str]:
        """The environment of its commands (of `sources`)."""
        sources = sources or self.sources
        own = {"FARFLUNG_HOME": str(self.folder / home), "TMPDIR": str(self.temporary), MARK: self._mark}
        inherited = {key: value for key, value in os.environ.items() if key != "FARFLUNG_TOKEN"}
        if sources is not None:
            own["PYTHONPATH"] = str(sources)
        return {**inherited, "OMP_NUM_THREADS": "1", "NPROC": "1", **own}

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            ended = process.status() == psutil.STATUS_ZOMBIE
            return not ended and process.environ().get(MARK) == self._mark
        except psutil.Error:
            return False


SomeMachines = TypeVar("SomeMachines", bound=Machines)


@contextmanager
def machines(folder: Path, kind: type[SomeMachines] = Machines) -> Iterator[SomeMachines]:  # type: ignore[assignment]
    """Machines for one block; it must stop what it started, and then nothing may be left of it."""
    with held_port() as port:
        started = kind(folder, port)
        (folder / "net.py").write_text(JOB)
        try:
            yield started
            left = started.orphans()
            assert not left, left
            assert not started.left_behind()
        finally:
            started.end()


class QuickMachines(Machines):
    """A worker is lost soon, and a pass may take fifteen seconds."""

    lease_seconds = 2.5


@contextmanager
def quick_machines(folder: Path) -> Iterator[Machines]:
    """Such machines with a broker that answers."""
    with machines(folder, QuickMachines) as place:
        broker = place.broker()
        place.document("desk", "status", "--broker", place.address, "--token", place.token("submitter"))
        yield place
        broker.stop()


class Run:
    """One `farflung train` and its run folder."""

    def __init__(self, command: Command, folder: Path) -> None:
        self.command = command
        self.folder = folder

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The steps of `metrics.jsonl`, each row of which must be whole."""
        text = (self.folder / "metrics.jsonl").read_text()
        assert not text or text.endswith("\n")
        return [row for line in text.splitlines() if "loss" in (row := json.loads(line))]

    @property
    def summary(self) -> dict[str, Any]:
        """`summary.json`."""
        return dict(json.loads((self.folder / "summary.json").read_text()))

    @property
    def workers(self) -> list[str]:
        """The workers of its plan."""
        plan = json.loads((self.folder / "plan.json").read_text())
        return [worker for part in plan["placements"] for worker in part["workers"]]

    def reaches(self, step: int) -> None:
        """Wait until so many steps were applied."""

        def reached() -> bool:
            metrics = self.folder / "metrics.jsonl"
            return metrics.exists() and metrics.read_bytes().count(b'"loss":') >= step

        ended = self.command.process.poll
        eventually(f"step {step}: {self.command.err}", lambda: reached() or ended() is not None)
        assert reached(), self.command.err

    def fails(self) -> str:
        """Wait for its end as a failure: the reason, which its one line and its summary both give."""
        assert self.command.code() == 1, self.command.err
        (line,) = self.command.errors
        summary = self.summary
        assert (summary["state"], f"error: {summary['reason']}") == ("failed", line)
        assert summary["steps"] == len(self.rows) or self.events("rolled back")
        return str(summary["reason"])

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The events of that kind in `events.jsonl`."""
        path = self.folder / "events.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        found = [json.loads(line) for line in lines if line.endswith(b"\n")]
        return [event for event in found if event["event"] == kind]

    def ends_an_attempt(self) -> str:
        """Wait until an attempt has ended before the job, whatever follows: the reason."""

        def ended() -> list[dict[str, Any]]:
            return self.events("rolled back") + self.events("regrouping")

        eventually(f"an attempt ends: {self.command.err}", lambda: bool(ended()))
        return str(ended()[-1]["reason"])

    def stops(self) -> None:
        """Stop it as Ctrl-C does."""
        self.command.signal(signal.SIGINT)
        assert self.command.code() == 130, self.command.err


def train(on: Machines, name: str, *arguments: str, job: str = "net.py", home: str = "desk") -> Run:
    """Start to train a job; its run folder is `name`."""
    return Run(on.start(home, "train", job, "--out", name, *arguments), on.folder / name)
