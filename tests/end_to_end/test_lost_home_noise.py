"""A home worker is lost while noise is on what leaves home: strangers still see no clean value."""

from __future__ import annotations

import json
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
from tests.support.processes import JOB, Command, Machines, Run, eventually, machines, train

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.faults]

LEVEL = 0.3
TAP = """
import json, os, sys
from pathlib import Path
import numpy as np
from farflung.cli import main
from farflung.runtime.executor import Executor
from farflung.worker.computing.running_job import RunningJob

name = Path(os.environ["FARFLUNG_HOME"]).name
out = (Path(__file__).parent / "seen" / f"{name}-{os.getpid()}").open("w", buffering=1)
noised, receive = RunningJob._noised, Executor.receive

def keep(parcel, *arrays):
    place = (parcel.unit, parcel.microbatch, parcel.value, bool(parcel.gradient))
    print(json.dumps([place, *(np.frombuffer(one, np.float32).tolist() for one in arrays)]), file=out)

def memory(tensor):
    return tensor.detach().contiguous().numpy().tobytes()

def tapped_noised(self, parcel, noise):
    found = noised(self, parcel, noise)
    keep(parcel, memory(parcel.payload), memory(found))
    return found

def tapped_receive(self, parcel):
    from_home = parcel.source in self._plan.home and parcel.payload is not None
    if from_home and name in ("a", "b"):
        keep(parcel, memory(parcel.payload))
    receive(self, parcel)

RunningJob._noised, Executor.receive = tapped_noised, tapped_receive
sys.exit(main.run(sys.argv[3:]))  # after `-m farflung`
"""
"""A worker that keeps what it adds noise to, without and with it, or what a stranger receives from home."""

Place = tuple[int, int, int, bool]
"""Unit, microbatch, value, whether it is a gradient."""


class Tapped(Machines):
    """Machines of which the workers keep what they send and receive."""

    def python(self, home: str) -> list[str]:
        is_worker = home in ("a", "h1", "h2", "h3")
        return [sys.executable, str(self.folder / "tap.py")] if is_worker else super().python(home)

    def kept(self, process: Command) -> dict[Place, list[list[np.ndarray]]]:
        """What a process kept: for each place in the job the arrays of each time."""
        found: dict[Place, list[list[np.ndarray]]] = defaultdict(list)
        (path,) = (self.folder / "seen").glob(f"*-{process.process.pid}")
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # the last one is cut off where its process was killed
                place, *arrays = json.loads(line)
                found[tuple(place)].append([np.array(one) for one in arrays])
        return found


class Homes(NamedTuple):
    """Machines with the submitter's id, and the processes of each worker, oldest first."""

    on: Tapped
    submitter: str
    processes: dict[str, list[Command]]

    def start(self, name: str, token: str | None = None) -> Command:
        home = ["--home-of", self.submitter] if name.startswith("h") else []
        started = self.on.worker(name, token, None, *home)
        self.processes[name].append(started)
        return started

    def kill(self, name: str) -> None:
        self.processes[name][-1].signal(signal.SIGKILL)
        self.processes[name][-1].code()


@pytest.fixture
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homes]:
    """A stranger a, and home workers h1 and h2; h3 has been there."""
    with machines(tmp_path_factory.mktemp("lost"), Tapped) as on:
        (on.folder / "tap.py").write_text(TAP)
        (on.folder / "seen").mkdir()
        kept = JOB.replace(
            "steps=1_000_000", f'steps=1_000_000, home_noise={LEVEL}, keep_home=["inputs", "targets"]'
        )
        (on.folder / "net.py").write_text(kept)
        broker = on.broker()
        on.document("desk", "status", "--broker", on.address, "--token", on.token("submitter"))
        record = json.loads((on.folder / "desk" / "submitter" / "identity.json").read_text())
        token = on.token("worker", "--uses", "4")
        homes = Homes(on, str(record["id"]), defaultdict(list))
        for name in ("h3", "a", "h1", "h2"):
            homes.start(name, token).says("idle in the backup pool")
            if name == "h3":
                homes.processes[name].pop().stop()
        yield homes
        broker.stop()


def lose_each(homes: Homes, run: Run) -> int:
    """Kill the stranger, which comes back, and the home worker with the inputs, whose place h3 takes.

    How many steps were applied before that.
    """
    on = homes.on
    run.reaches(3)
    assert run.workers == ["h1", "a", "h2"]
    eventually("a version", lambda: "protected up to" in on.status()["jobs"][-1]["protection"], 0.4)
    homes.kill("a")
    homes.start("a")
    run.reaches(len(run.rows) + 3)
    homes.start("h3").says("standing by for")
    run.reaches(len(run.rows) + 5)
    homes.kill("h1")
    done = len(run.rows)
    homes.processes["h3"][-1].says("job-1: running")
    run.reaches(len(run.rows) + 5)
    run.stops()
    for name in ("a", "h2", "h3"):
        homes.processes[name][-1].stop()
    assert (run.folder / "model.safetensors").exists()
    return done


def off_by(received: np.ndarray, cleans: list[np.ndarray]) -> float:
    """How far a value is from the closest clean one, by the root mean square of that."""
    return min(
        float(np.sqrt(np.square(received - one).mean()) / np.sqrt(np.square(one).mean())) for one in cleans
    )


def received_noise(homes: Homes) -> list[dict[Place, list[list[np.ndarray]]]]:
    """What both processes of the stranger received; each value of it must be off from what was computed."""
    sent: dict[Place, list[np.ndarray]] = defaultdict(list)
    for process in (*homes.processes["h1"], *homes.processes["h2"], *homes.processes["h3"]):
        for place, times in homes.on.kept(process).items():
            sent[place] += [clean for clean, _ in times]
    received = [homes.on.kept(process) for process in homes.processes["a"]]
    off = [off_by(one, sent[at]) for seen in received for at, times in seen.items() for (one,) in times]
    assert len(off) > 200 and min(off) > LEVEL / 8  # of 16 draws in each
    assert -0.15 < float(np.mean(off)) / LEVEL - 1 < 0.4  # larger rows have more
    before, after = received
    again = before.keys() & after.keys()
    assert {unit for unit, *_ in again} and all(
        np.array_equal(before[at][0][0], after[at][0][0]) for at in again
    )  # which the stranger ran again
    return received


@pytest.mark.full
def test_another_home_worker_runs_steps_again_and_no_stranger_sees_a_clean_value(homes: Homes) -> None:
    run = train(homes.on, "dense", "--home", "h1,h2,h3", "--workers", "3")
    lose_each(homes, run)
    assert not run.events("rolled back")
    assert [row["step"] for row in run.rows] == list(range(1, len(run.rows) + 1))
    (lost,), (taker,) = (map(homes.on.kept, homes.processes[name]) for name in ("h1", "h3"))
    both = {at: (lost[at][0], taker[at][0]) for at in lost.keys() & taker.keys()}
    assert len({unit for unit, *_ in both}) > 1  # it ran more than the step in flight
    for (clean, noisy), (same, other) in both.values():
        assert np.array_equal(clean, same) and not np.array_equal(noisy, other)
    _, seen = received_noise(homes)
    twice = {unit for (unit, *_), times in seen.items() if len(times) > 1}
    assert len(twice) <= 1  # the step in flight: no other noise on the same value could be averaged


@pytest.mark.full
def test_with_codecs_all_go_back_to_a_version_and_no_stranger_sees_a_clean_value(homes: Homes) -> None:
    run = train(homes.on, "coded", "--home", "h1,h2,h3", "--workers", "3", "--codec", "int8")
    done = lose_each(homes, run)
    (event,) = run.events("rolled back")
    assert "no other worker draws the noise on what left home again" in event["reason"]
    assert 0 < event["step"] <= done
    received_noise(homes)
