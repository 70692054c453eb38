"""Jobs whose links are compressed: worker processes against one process with the same codecs, bit for bit."""

from __future__ import annotations

import copy
import dataclasses
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.end_to_end.fleets import Fleet, running, trained_state
from tests.end_to_end.zoo_jobs import BATCH, job_of, microbatches_of
from tests.support.half_frozen import HALF_FROZEN
from torch import Tensor

import farflung
from farflung.client.capture.check import capture_shapes
from farflung.client.output.progress import Observer
from farflung.opdag import wire
from farflung.planner import plan_graph
from farflung.planner.codecs.wishes import fixed, phased
from farflung.plans import CodecWishes, LinkWish, Topology, Wishes, WorkerSpec, read_plan
from farflung.protocol.messages import CodecsChosen
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.parity.steps import named_state, received

pytestmark = [pytest.mark.processes, pytest.mark.slow]

STEPS, WORKERS = 3, 3
SLOW_STEP_SECONDS = 5.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    torch.set_num_threads(1)
    with running(WORKERS, tmp_path_factory.mktemp("fleet")) as started:
        yield started


def job(name: str, codec: str) -> farflung.Job:
    return job_of(name, STEPS, farflung.SGD(lr=0.05, momentum=0.9), codec=codec)


def in_one_process(
    job: farflung.Job, codecs: CodecWishes, folder: Path
) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and trained state of the run's plan with the same codecs, in this process."""
    training = msgspec.structs.replace(job.training(), codecs=codecs.codebook)
    graph = wire.load_graph(wire.dump(capture_shapes(job).graph), job.microbatch_size)
    names = [f"worker-{number}" for number in range(WORKERS)]
    planned = plan_graph(graph, job.microbatches, job.microbatch_size, names)
    plan = msgspec.structs.replace(planned.plan, codecs=list(fixed(planned.plan, codecs)))
    plan = phased(plan, codecs, job.steps)
    assert read_plan(folder) == plan
    module = copy.deepcopy(job.model)
    state = named_state(module, graph)
    segments = received(planned.programs, job.microbatch_size)
    pipeline = InProcessPipeline(graph, plan, segments, state, training)
    losses = []
    for step in range(job.steps):
        shares = pipeline.run(step, microbatches_of(job, step))
        losses.append(sum(share.loss for share in shares))
        pipeline.decide(step, 1.0)
    return losses, module.state_dict()


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("name", "rung"),
    [
        ("gpt", "int8/int4-stochastic"),
        ("gpt", "axes30/axes100-dithered"),
        ("gpt", "token-mean:axes30/axes100-dithered"),
        pytest.param("resnet", "int8/int4-stochastic", marks=pytest.mark.full),
        ("resnet", "row-topk30-int4/masked30-int4+zstd"),
    ],
)
def test_workers_compute_what_one_process_does_with_the_same_codecs(
    fleet: Fleet, name: str, rung: str
) -> None:
    declared = job(name, rung)
    summary, rows, folder = fleet.run(declared, WORKERS)
    assert summary.state == "done", summary.reason
    losses, state = in_one_process(declared, CodecWishes(rung), folder)
    assert [row["loss"] for row in rows] == losses
    ours = trained_state(folder, copy.deepcopy(declared.model))
    assert all(torch.equal(ours[key], value) for key, value in state.items())
    pairs = {(0, 1), (1, 0), (1, 2), (2, 1)}
    links = {(f"worker-{a}", f"worker-{b}") for a, b in pairs}
    assert {(link.source, link.target) for link in summary.links} == links
    assert summary.ratio is not None and summary.ratio > 1.5
    assert all(link.ratio is not None and link.ratio > 1 for link in summary.links)
    assert sum(link.wire_bytes for link in summary.links) < summary.bytes_on_wire


@pytest.mark.full
def test_activations_of_frozen_layers_are_coded_on_their_way_to_trained_ones(fleet: Fleet) -> None:
    rung = "axes30/axes100-dithered"
    declared = dataclasses.replace(job("gpt", rung), model=HALF_FROZEN.build())
    summary, rows, folder = fleet.run(declared, WORKERS)
    assert summary.state == "done", summary.reason
    losses, _ = in_one_process(declared, CodecWishes(rung), folder)
    assert [row["loss"] for row in rows] == losses
    ratios = {(link.source, link.target): link.ratio for link in summary.links}
    assert [edge.target for edge in read_plan(folder).edges if edge.frozen] == [1]
    assert ratios["worker-0", "worker-1"] is not None and ratios["worker-0", "worker-1"] > 1.5
    assert ("worker-1", "worker-0") not in {(one.source, one.target) for one in read_plan(folder).codecs}


def test_a_run_that_ends_gentler_switches_at_one_step_everywhere_and_equals_one_process(fleet: Fleet) -> None:
    rungs = "axes30/axes100-dithered@0.6,axes10/int8"
    declared = job("gpt", rungs)
    declared = dataclasses.replace(declared, validation=declared.data, validation_batches=1)
    summary, rows, folder = fleet.run(declared, WORKERS)
    assert summary.state == "done", summary.reason
    assert [later.step for later in read_plan(folder).later] == [2]
    losses, state = in_one_process(dataclasses.replace(declared, validation=None), CodecWishes(rungs), folder)
    assert [row["loss"] for row in rows] == losses
    ours = trained_state(folder, copy.deepcopy(declared.model))
    assert all(torch.equal(ours[key], value) for key, value in state.items())
    lines = (folder / "events.jsonl").read_text().splitlines()
    (event,) = [event for event in map(json.loads, lines) if event["event"] == "codecs"]
    assert event["step"] == 2 and len(event["changes"]) == 4
    assert {change["codec"] for change in event["changes"]} == {"axes10/int8"}
    assert {change["reason"] for change in event["changes"]} == {"as the job asks for from step 3 of 3 on"}


@pytest.mark.full
def test_one_link_may_be_written_in_its_own_way(fleet: Fleet) -> None:
    wishes = CodecWishes(
        "int8", (LinkWish("worker-0", "worker-1", "dense"), LinkWish("worker-1", "worker-0", "eden4"))
    )
    declared = job("gpt", "dense")
    summary, rows, folder = fleet.run(declared, WORKERS, Wishes(codecs=wishes))
    assert summary.state == "done", summary.reason
    codecs = {(link.source, link.target): link.codec for link in read_plan(folder).codecs}
    assert codecs == {
        ("worker-1", "worker-0"): "eden4",
        ("worker-1", "worker-2"): "int8",
        ("worker-2", "worker-1"): "int8",
    }
    losses, _ = in_one_process(declared, wishes, folder)
    assert [row["loss"] for row in rows] == losses


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        (CodecWishes("int9"), "there is no codec 'int9'"),
        (CodecWishes(links=(LinkWish("worker-0", "nobody", "int8"),)), "there is no worker nobody"),
    ],
)
def test_what_cannot_be_is_one_line(fleet: Fleet, wishes: CodecWishes, words: str) -> None:
    summary, _, _ = fleet.run(job("gpt", "dense"), WORKERS, Wishes(codecs=wishes))
    assert summary.state == "failed"
    assert words in summary.reason and "\n" not in summary.reason


class Uneven(torch.nn.Module):
    """Wherever it is cut, one number in 256 is a hundred times as large as the others."""

    def __init__(self) -> None:
        super().__init__()
        self.rise = torch.nn.Parameter(torch.randn(256) / 8)
        self.before, self.behind = torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)
        self.fall = torch.nn.Linear(256, 1)
        with torch.no_grad():
            self.rise[7] = 12.0
            self.before.weight[7] *= 100
            self.behind.weight[7] *= 100
            self.fall.weight /= 100

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.mse_loss(self.fall(self.behind(self.before(x * self.rise))), y)


class Points:
    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        x = torch.tensor([(index + 1) / 256])
        return {"x": x, "y": torch.sin(9 * x)}


class Told(Observer):
    """A data set that is slow after so many steps, until this run was told of other codecs.

    The broker chooses them while the run goes on, which could be over by then.
    """

    def __init__(self, data: Sequence[dict[str, Tensor]], steps: int, batch: int) -> None:
        self._data = data
        self._most, self._pause = steps * batch, SLOW_STEP_SECONDS / batch
        self._given = 0
        self._told = threading.Event()

    def codecs_chosen(self, chosen: CodecsChosen) -> None:
        self._told.set()

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: Any) -> Any:
        self._given += 1
        if self._given > self._most:
            self._told.wait(self._pause)
        return self._data[index]


@pytest.mark.full
def test_workers_try_codecs_on_their_own_tensors_and_what_fares_badly_is_relaxed(fleet: Fleet) -> None:
    """int8 has one scale for 256 numbers, so it is some times as wrong here as on usual tensors."""
    ids = [f"worker-{number}" for number in range(WORKERS)]
    slow = tuple((0.5,) * WORKERS for _ in ids)
    net = Topology(
        tuple(WorkerSpec(id, "", 1.0, 1.0) for id in ids), tuple((0.0,) * WORKERS for _ in ids), slow
    )
    torch.manual_seed(3)
    data = Told(Points(), steps=30, batch=64)
    declared = farflung.Job(
        model=Uneven(), data=data, optimizer=farflung.SGD(lr=1e-7), batch=64, microbatches=2, steps=60
    )
    wishes = Wishes(topology=net, codecs=CodecWishes("auto:int8", max_loss_gap=0.004))
    summary, rows, folder = fleet.run(declared, 2, wishes, observer=data)
    assert summary.state == "done", summary.reason
    assert "int8" in {link.codec for link in read_plan(folder).codecs}
    lines = (folder / "events.jsonl").read_text().splitlines()
    found = [event for event in map(json.loads, lines) if event["event"] == "codecs"]
    changes = [change for event in found for change in event["changes"]]
    assert changes and changes[0]["codec"] in ("bf16", "dense")
    assert "codecs were tried on this job's own tensors" in changes[0]["reason"]
    assert all(link["coding_seconds"] > 0 for link in rows[0]["links"])  # type: ignore[attr-defined]


@pytest.mark.full
def test_a_codec_that_costs_held_out_loss_is_relaxed_and_the_log_says_why(fleet: Fleet) -> None:
    """bf16 counts as lossless, so a budget of nothing allows it; evaluated it does change something."""
    ids = [f"worker-{number}" for number in range(WORKERS)]
    slow = tuple((0.05,) * WORKERS for _ in ids)
    still = tuple((0.0,) * WORKERS for _ in ids)
    net = Topology(tuple(WorkerSpec(id, "", 1.0, 1.0) for id in ids), still, slow)
    declared = job("gpt", "dense")
    data = Told(declared.data, steps=5, batch=BATCH)
    declared = dataclasses.replace(declared, steps=8, data=data, validation=declared.data, validate_every=4)
    wishes = Wishes(topology=net, codecs=CodecWishes("auto", max_loss_gap=0.0))
    summary, _, folder = fleet.run(declared, WORKERS, wishes, observer=data)
    assert summary.state == "done", summary.reason
    assert {link.codec for link in read_plan(folder).codecs} == {"bf16"}
    lines = (folder / "events.jsonl").read_text().splitlines()
    found = [event for event in map(json.loads, lines) if event["event"] == "codecs"]
    first = found[0]["changes"][0]
    assert "held-out loss after step 0" in first["reason"] and "the budget is 0 %" in first["reason"]
    assert first["codec"] == "dense"
    assert summary.validation_loss is not None and summary.validation_loss_with_codecs is not None
