"""A machine without torch: what works there does, and what cannot says so in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.end_to_end.torchless import Python, beside, installed
from tests.support.processes import Machines, machines, train

pytestmark = pytest.mark.processes

STEPS = 5


class Mixed(Machines):
    """Machines of which one, called `bare`, has no torch."""

    lease_seconds = 10.0
    bare: Python

    def python(self, home: str) -> list[str]:
        return list(self.bare.command) if home == "bare" else super().python(home)

    def environment(self, home: str, sources: Path | None = None) -> dict[str, str]:
        return super().environment(home, sources) | (self.bare.environment if home == "bare" else {})


@pytest.fixture(scope="module", params=["beside", pytest.param("installed", marks=pytest.mark.full)])
def bare(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Python:
    """A Python without torch: made of links, or really installed."""
    make = {"beside": beside, "installed": installed}[request.param]
    made = make(tmp_path_factory.mktemp("bare"))
    found = made.run("-c", "import jax, importlib.util as u; print(u.find_spec('torch'))")
    assert found.stdout.strip() == "None", found.stderr
    return made


@pytest.fixture
def fleet(bare: Python, tmp_path: Path) -> Iterator[Mixed]:
    with machines(tmp_path, Mixed) as started:
        started.bare = bare
        yield started


@pytest.mark.full
def test_a_worker_on_jax_trains_beside_one_on_torch(fleet: Mixed) -> None:
    broker = fleet.broker()
    token = fleet.token("worker", "--uses", "2")
    workers = [fleet.worker("with-torch", token), fleet.worker("bare", token)]
    fleet.document("desk", "status", "--broker", fleet.address, "--token", fleet.token("submitter"))
    fleet.idle("bare", "with-torch")
    run = train(fleet, "run", "--broker", fleet.address, "--workers", "2", "--steps", str(STEPS))
    assert run.command.code() == 0, run.command.err
    assert len(run.rows) == run.summary["steps"] == STEPS
    assert sorted(run.workers) == ["bare", "with-torch"]
    shown = {worker["worker"]: worker["framework"].split()[0] for worker in fleet.status()["workers"]}
    assert shown == {"with-torch": "torch", "bare": "jax"}
    assert len({worker["kernels"] for worker in fleet.status()["workers"]} - {""}) == 2
    if Path("/proc").exists():
        assert "libtorch" not in Path(f"/proc/{workers[1].process.pid}/maps").read_text()
    for command in [*workers, broker]:
        command.stop()


def test_what_needs_torch_says_so_in_one_line(bare: Python, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("import torch\n")
    job = str(tmp_path / "net.py")
    for command in (["train", job, "--local", "1"], ["check", job], ["capture", job]):
        said = failure(bare, *command)
        assert said == (
            "error: a job's model is a PyTorch module, and this Python has no torch:"
            " pip install 'farflung[torch]'"
        )
    said = failure(bare, "join", "127.0.0.1:9", "--backend", "torch")
    assert said == "error: this Python has no torch: pip install 'farflung[torch]'"


def failure(bare: Python, *arguments: str) -> str:
    """The one line of a command that must fail."""
    done = bare.run("-m", "farflung", *arguments)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.strip().splitlines()
    return line
