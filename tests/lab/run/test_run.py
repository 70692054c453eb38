"""`farflung lab run` as a user starts it: real processes on an emulated network, and nothing left of them."""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.processes import Machines, Run, eventually, machines, train

from farflung.lab import registry
from farflung.plans import FEEDER, Topology, WorkerSpec, read_plan, write_topology

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("lab_machine"), pytest.mark.lab]


def left_behind() -> list[str]:
    """Namespaces and records of labs with a node `oslo`; others may run labs meanwhile."""
    left = [path.name for path in Path("/run/netns").glob("farflung-*-oslo")]
    for path in registry.FOLDER.glob("*.json"):
        with suppress(FileNotFoundError):
            left += [path.name] if "-oslo" in path.read_text() else []
    return left


@pytest.fixture
def on(tmp_path: Path) -> Iterator[Machines]:
    """Two homes whose ids are not in alphabetical order, and a job for them."""
    homes = tuple(WorkerSpec(id, id, 1.0, 1.0, 50.0, 50.0) for id in ("oslo", "bern"))
    links = ((0.0, 5.0), (5.0, 0.0))
    topology = Topology(homes, links, ((0.0, 50.0), (50.0, 0.0)), title="two homes", submitter="bern")
    with machines(tmp_path / "machines") as started:
        write_topology(topology, started.folder / "two.json")
        yield started
        eventually("no namespace of it is left", lambda: not left_behind())


def lab_run(on: Machines, name: str, *arguments: str) -> Run:
    # So small a model would be left to one home, whose line nothing could be lost on.
    both = ("--scheduler", "equal-compute")
    where = ("--topology", "two.json", "--out", name)
    return Run(on.start("desk", "lab", "run", "net.py", *where, *both, *arguments), on.folder / name)


def process_of(on: Machines, worker: str) -> int:
    found = []
    for process in on.orphans():
        with suppress(psutil.Error):  # another one, which ends as we look
            found += [process.pid] if {"join", worker} <= set(process.cmdline()) else []
    (number,) = found
    return number


def losses(run: Run) -> list[float]:
    return [row["loss"] for row in run.rows]


def test_a_run_in_the_lab_is_bit_for_bit_the_run_on_loopback(on: Machines) -> None:
    lab = lab_run(on, "lab", "--steps", "4", "--json")
    assert lab.command.code() == 0, lab.command.err
    plain = train(on, "plain", "--local", "2", "--steps", "4")
    assert plain.command.code() == 0, plain.command.err
    assert losses(lab) == losses(plain) and len(losses(lab)) == 4
    model = "model.safetensors"
    assert (lab.folder / model).read_bytes() == (plain.folder / model).read_bytes()
    assert lab.workers == ["oslo", "bern"]
    document: dict[str, Any] = json.loads(lab.command.out)
    report = json.loads((lab.folder / "lab.json").read_text())
    assert document.pop("lab") == report and document.pop("resume") is None
    spent = document.pop("account")
    assert document == lab.summary
    assert spent["training steps"] > 0 and sum(spent.values()) <= document["seconds"] + 1
    assert report["title"] == "two homes" and report["void"] is report["stats"]["void"]
    pairs = {(link["source"], link["target"]): link["bytes"] for link in report["stats"]["links"]}
    assert pairs["oslo", "bern"] > 0 and pairs["submitter", "oslo"] > 0 and pairs["bern", "broker"] > 0
    assert {log.stem for log in (lab.folder / "logs").iterdir()} == {"broker", "oslo", "bern"}


@pytest.mark.full
def test_ctrl_c_saves_the_weights(on: Machines) -> None:
    run = lab_run(on, "run")
    run.reaches(2)
    run.command.signal(signal.SIGINT)
    assert run.command.code() == 130, run.command.err
    assert run.summary["state"] == "cancelled" and run.summary["weights_step"] == len(run.rows)
    assert run.command.errors == [] and "stopped by the user after" in run.command.err
    assert (run.folder / "lab.json").exists()


@pytest.mark.full
def test_a_killed_worker_is_named(on: Machines) -> None:
    run = lab_run(on, "run")
    run.reaches(1)
    os.kill(process_of(on, "oslo"), signal.SIGKILL)
    assert run.command.code() != 0
    assert run.command.errors[-1].startswith("error: oslo was killed by signal 9")


@pytest.mark.full
def test_a_killed_switch_ends_the_run_at_once_in_one_line(on: Machines) -> None:
    lab = secrets.token_hex(4)
    run = lab_run(on, "run", "--name", lab)
    run.reaches(1)
    record = json.loads((registry.FOLDER / f"{lab}.json").read_text())
    os.kill(record["process_id"], signal.SIGKILL)
    assert run.command.code() == 2, run.command.err
    assert run.command.errors == [f"error: lab {lab} is gone: its switch was killed while the run lasted"]
    assert "lost" not in run.command.err  # as it would be said a lease later
    eventually("all of it has ended", lambda: not on.orphans())


@pytest.mark.full
def test_taking_a_lab_down_ends_its_run_with_a_message(on: Machines) -> None:
    """The broker says goodbye to the submitter, who may still tell that and where its metrics are."""
    lab = secrets.token_hex(4)
    run = lab_run(on, "run", "--name", lab)
    run.reaches(1)
    down = on.start("desk", "lab", "down", "--name", lab)
    assert down.code() == 0, down.err
    assert run.command.code() != 0
    *before, last = run.command.errors
    assert last == f"error: lab {lab} was taken down while the run lasted"
    assert len(before) <= 1 and all("the broker is shutting down; the metrics of" in line for line in before)


def test_an_unusable_run_folder_is_an_error_before_the_lab_starts(on: Machines) -> None:
    (on.folder / "run").mkdir()
    (on.folder / "run" / "thesis.txt").write_text("mine")
    command = on.start("desk", "lab", "run", "net.py", "--topology", "two.json", "--out", "run")
    assert command.code() != 0
    assert "has files that are not of a run" in command.err and "laying out" not in command.err


@pytest.mark.full
def test_a_killed_run_leaves_nothing(on: Machines) -> None:
    run = lab_run(on, "run")
    run.reaches(1)
    run.command.signal(signal.SIGKILL)
    run.command.code()
    eventually("all of it has ended", lambda: not on.orphans())
    eventually("its files are gone", lambda: not on.left_behind())


def test_a_job_that_cannot_be_trained_is_an_error_of_one_line(on: Machines) -> None:
    (on.folder / "wrong.py").write_text("def job():\n    return 7\n")
    line = on.fails("desk", "lab", "run", "wrong.py", "--topology", "two.json", "--out", "run")
    assert "must return a farflung.Job" in line
    assert not (on.folder / "run").exists()


@pytest.mark.full
@pytest.mark.parametrize("emulated", [(), ("--emulate-devices",)], ids=["real", "emulated"])
def test_too_many_workers_are_an_error_that_names_the_most(on: Machines, emulated: tuple[str, ...]) -> None:
    (on.folder / "one.py").write_text((on.folder / "net.py").read_text().replace("range(6)", "range(1)"))
    line = on.fails("desk", "lab", "run", "one.py", "--topology", "two.json", "--out", "run", *emulated)
    assert line.endswith("into at most 1 segment, 2 were asked for: use --workers 1")
    assert not (on.folder / "run").exists()


def test_emulated_devices_run_the_steps_without_losses(on: Machines) -> None:
    arguments = ("--emulate-devices", "--steps", "3", "--json", "--efficiency", "0.5", "--scale", "2")
    run = lab_run(on, "run", *arguments)
    assert run.command.code() == 0, run.command.err
    assert run.workers == ["oslo", "bern"]
    assert [row["loss"] for row in run.rows] == [None] * 3
    document = json.loads(run.command.out)
    assert document["emulated"] and document["train_loss"] is None and document["weights_step"] is None
    emulation = document["lab"]["emulation"]
    assert emulation["divisor"] == 2 and emulation["tflops"] == {"oslo": 0.25, "bern": 0.25}
    assert document["lab"]["scale"] == {"factor": 0.5, "of": "all rates, of lines and of devices"}
    assert not (run.folder / "model.safetensors").exists()
    assert "devices are emulated, at 50% of their TFLOP/s: no losses, no weights" in run.command.err
    for log in ("oslo", "bern"):
        assert "running" in (run.folder / "logs" / f"{log}.log").read_text()


BLOCKS = """
import farflung
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 1024), nn.Linear(1024, 64)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(8))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


class Items:
    def __len__(self):
        return 256

    def __getitem__(self, index):
        return {"x": torch.full((64,), float(index))}


def job():
    with torch.device("meta"):
        net = Net()
    return farflung.Job(
        model=net, data=Items(), optimizer=farflung.SGD(lr=0.1), batch=64, microbatches=4, steps=3
    )
"""


@pytest.mark.full
def test_a_lab_is_planned_on_its_own_topology(on: Machines) -> None:
    """Six workers share eight blocks: equal shares cut inside blocks, where 16 times the bytes cross."""
    (on.folder / "blocks.py").write_text(BLOCKS)
    arguments = ["lab", "run", "blocks.py", "--topology", "three-sites", "--out", "run", "--emulate-devices"]
    run = Run(on.start("desk", *arguments, "--json"), on.folder / "run")
    assert run.command.code() == 0, run.command.err
    plan = read_plan(on.folder / "run")
    assert len(plan.workers()) == 6
    narrow = 16 * 64 * 4
    crossing = [
        edge
        for edge in plan.edges
        if edge.source != FEEDER and plan.worker_of(edge.source)[0] != plan.worker_of(edge.target)[0]
    ]
    assert crossing and {edge.bytes for edge in crossing} == {narrow}
    summary = json.loads(run.command.out)
    assert summary["scheduler"] == "auto" and summary["predicted_step_seconds"] > 0
    assert summary["step_seconds"] > 0 and summary["predicted_bottleneck"]
    assert "planned by auto" in run.command.err and "; predicted: " in run.command.err


@pytest.mark.full
def test_replicas_in_a_lab_train_apart_and_merge(on: Machines) -> None:
    where = ("--topology", "two.json", "--out", "run", "--steps", "4")
    alone = on.start("desk", "lab", "run", "net.py", *where, "--inner-steps", "2")
    assert (
        alone.code() != 0 and "ask for more with --replicas 2" in alone.err and "laying out" not in alone.err
    )
    asked = ("--replicas", "2", "--inner-steps", "2")
    run = Run(on.start("desk", "lab", "run", "net.py", *where, *asked), on.folder / "run")
    assert run.command.code() == 0, run.command.err
    events = map(json.loads, (run.folder / "events.jsonl").read_text().splitlines())
    assert [event["step"] for event in events if event["event"] == "merged"] == [2, 4]
