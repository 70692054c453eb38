"""A stranger in a real fleet receives what its home worker computed with the noise that was asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.processes import JOB, Machines, Run, machines, train

pytestmark = [pytest.mark.processes, pytest.mark.slow]

STEPS, LEVEL = 4, 0.3
TAP = """
import sys
from pathlib import Path
import numpy as np
from farflung.cli import main
from farflung.runtime.executor import Executor

receive = Executor.receive

def tapped(self, parcel):
    if parcel.unit == 0 and parcel.source in self._plan.home and not parcel.gradient:
        folder = Path(__file__).with_name("seen")
        np.save(folder / f"{parcel.value}-{parcel.microbatch}.npy", parcel.payload.detach().numpy())
    receive(self, parcel)

Executor.receive = tapped
sys.exit(main.run(sys.argv[3:]))  # after `-m farflung`
"""
"""A worker that keeps what it receives from home in a job's first step."""


class Tapped(Machines):
    """Machines of which the one called a keeps what it receives."""

    def python(self, home: str) -> list[str]:
        return [sys.executable, str(self.folder / "tap.py")] if home == "a" else super().python(home)


@pytest.fixture
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tapped]:
    with machines(tmp_path_factory.mktemp("noise"), Tapped) as started:
        (started.folder / "tap.py").write_text(TAP)
        broker = started.broker()
        stranger = started.worker("a", started.token("worker"))
        stranger.says("idle in the backup pool")
        submitter = started.token("submitter", home="hub")
        started.document("desk", "status", "--broker", started.address, "--token", submitter)
        kept = JOB.replace("steps=1_000_000", 'steps=1_000_000, keep_home=["inputs", "targets"]')
        (started.folder / "net.py").write_text(kept)
        yield started
        stranger.stop()
        broker.stop()


def seen(on: Tapped, name: str, *options: str) -> tuple[Run, dict[str, np.ndarray]]:
    """A run, and what the stranger received from home in its first step."""
    folder: Path = on.folder / "seen"
    folder.mkdir()
    run = train(on, name, "--with-local-worker", "--workers", "2", "--steps", str(STEPS), *options)
    assert run.command.code() == 0, run.command.err
    received = {file.name: np.load(file) for file in folder.iterdir()}
    folder.rename(on.folder / f"seen-{name}")
    on.idle("a")
    return run, received


def test_a_stranger_receives_values_that_are_off_by_the_noise(
    on: Tapped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARFLUNG_WORKER_TOKEN", on.token("worker"))
    _, clean = seen(on, "clean")
    monkeypatch.delenv("FARFLUNG_WORKER_TOKEN")  # it has joined by now
    noisy_run, noisy = seen(on, "noisy", "--set", f"home_noise={LEVEL}")
    assert clean.keys() == noisy.keys() and len(clean) == 4  # microbatches
    exact = np.concatenate([value.reshape(-1) for _, value in sorted(clean.items())])
    noise = np.concatenate([value.reshape(-1) for _, value in sorted(noisy.items())]) - exact
    found = noise.std() / np.sqrt(np.square(exact).mean())
    assert -0.12 < found - LEVEL < 0.2  # of 64 draws; larger rows have more
    assert abs(np.corrcoef(noise, exact)[0, 1]) < 0.5
    first = json.loads((noisy_run.folder / "events.jsonl").read_text().splitlines()[0])
    assert "noise of 0.3 times the root mean square of each row" in json.dumps(first) + noisy_run.command.err
