"""The comparison that every captured job goes through: it covers all that training changes, within bounds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
import torch
from benchmarks.zoo import Case, case
from tests.client.capture.test_check import job_of
from tests.support.memory import ROOT
from torch import Tensor, nn
from torch.nn import functional

from farflung.client.api.job import Job
from farflung.client.capture import check
from farflung.client.capture.check import (
    capture_job,
    capture_shapes,
    check_itself,
    check_job,
    first_microbatch,
)
from farflung.errors import CaptureError
from farflung.opdag.capture import Capture
from farflung.opdag.graph import Graph, Node, Ref
from farflung.runtime.optimizers.declared import SGD

pytestmark = pytest.mark.slow

torch.set_num_threads(1)


def verdict(captured: Capture, lint: str) -> tuple[str, str]:
    (found,) = [v for v in captured.verdicts if v.lint == lint]
    return found.outcome, found.words


def checked(job: Job, graph: Graph) -> Capture:
    """The job's capture with another graph, checked."""
    captured = capture_shapes(job)
    return check_itself(job, replace(captured, graph=graph), first_microbatch(job))


@pytest.mark.cases(4)
@pytest.mark.parametrize("name", ["gpt-dropout", "gpt2-fused-dropout", "gpt-tied", "frozen", "batch-norm"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_gradient_is_compared_and_nothing_changes(name: str, precision: str) -> None:
    job = job_of(case(name), batch=6, microbatches=2, precision=precision)
    before = {n: (id(t), t.clone()) for n, t in job.model.state_dict(keep_vars=True).items()}
    captured = capture_job(job)
    trainable = sum(parameter.requires_grad for parameter in job.model.parameters())
    assert verdict(captured, "self-check") == ("ok", f"{trainable} gradients compared on 3 samples")
    assert verdict(captured, "evaluation") == ("ok", "")
    after = job.model.state_dict(keep_vars=True)
    assert all(id(after[n]) == i and torch.equal(after[n], t) for n, (i, t) in before.items())
    assert all(parameter.grad is None for parameter in job.model.parameters())


def classified(labels: list[list[int]], counted: str | None) -> Job:
    """A job that classifies positions, of which -100 are not counted."""

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = nn.Linear(4, 3)

        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            return functional.cross_entropy(self.scores(x).flatten(0, 1), labels.flatten())

    data = [{"x": torch.ones(4, 4), "labels": torch.tensor(of_one)} for of_one in labels]
    return Job(
        model=Classifier(),
        data=data,
        optimizer=SGD(lr=0.1),
        batch=4,
        microbatches=2,
        steps=1,
        counted=counted,
    )


UNEVEN = [[0, 1, 2, 0], [0, 1, 2, -100], [0, 1, -100, -100], [0, -100, -100, -100]]


@pytest.mark.parametrize(
    ("labels", "counted", "outcome"),
    [
        (UNEVEN, None, "remark"),
        (UNEVEN, "labels", "ok"),
        ([[-100, 1, 2, 0], [-100, 2, 0, 1]] * 2, None, "ok"),
    ],
    ids=["uneven", "counted", "even"],
)
def test_labels_that_are_masked_unevenly_get_a_remark(
    labels: list[list[int]], counted: str | None, outcome: str
) -> None:
    found, words = verdict(capture_job(classified(labels, counted)), "self-check")
    assert found == outcome and ("Job(counted=...)" in words) == (outcome == "remark")


def with_detached(graph: Graph, op: str) -> Graph:
    """The graph with a `detach` after its first node of `op`."""
    nodes, fresh = list(graph.nodes), len(graph.values)
    at = next(number for number, node in enumerate(nodes) if node.op == op)
    (made,) = nodes[at].outputs
    nodes[at] = msgspec.structs.replace(nodes[at], outputs=[fresh])
    nodes.insert(at + 1, Node(1000, "aten.detach.default", {"self": Ref(fresh)}, [made]))
    return msgspec.structs.replace(graph, nodes=nodes, values=[*graph.values, graph.values[made]])


BLAMES_THE_JOB = pytest.mark.parametrize(
    "checked_by", [capture_job, lambda job: check_job(job, 1)], ids=["capture", "check"]
)


@BLAMES_THE_JOB
@pytest.mark.parametrize(("scale", "found"), [(1e30, "inf"), (float("nan"), "nan")])
def test_a_loss_that_is_no_number_is_the_models_own(
    scale: float, found: str, checked_by: Callable[[Job], object]
) -> None:
    entry = case("chain")

    def scaled(count: int, seed: int) -> dict[str, torch.Tensor]:
        return {name: tensor * scale for name, tensor in entry.batch(count, seed).items()}

    with pytest.raises(CaptureError, match=rf"^the model's loss is {found} on the first batch, before"):
        checked_by(job_of(Case("scaled", entry.build, scaled)))


@BLAMES_THE_JOB
def test_data_of_another_type_than_the_models_is_named(checked_by: Callable[[Job], object]) -> None:
    """Neither capture, which computes nothing, nor the loss, which is float32, shows it."""
    entry = case("chain")

    class Single(torch.nn.Linear):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return ((super().forward(x).float() - y) ** 2).mean()

    def doubled(count: int, seed: int) -> dict[str, torch.Tensor]:
        batch = entry.batch(count, seed)
        return batch | {"x": batch["x"].double()}

    words = r"^the model's own forward fails on a microbatch of .*; float64 in the data: 'x', use \.float"
    with pytest.raises(CaptureError, match=words):
        checked_by(job_of(Case("doubled", lambda: Single(16, 16), doubled)))


def test_a_lost_gradient_is_refused() -> None:
    job = job_of(case("chain"))
    with pytest.raises(
        CaptureError, match=r"results: the gradient of layers\.0\.weight is missing on one side"
    ) as raised:
        checked(job, with_detached(capture_shapes(job).graph, "aten.tanh.default"))
    assert raised.value.lint == "self-check"


def test_a_gradient_that_eager_has_not_is_refused() -> None:
    class Cut(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(2))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return ((self.layers[1](self.layers[0](x).detach()) - y) ** 2).mean()

    job = job_of(Case("cut", Cut, case("chain").batch))
    graph = capture_shapes(job).graph
    (node,) = [n for n in graph.nodes if n.op == "aten.detach.default"]
    (source,), (made,) = node.reads(), node.outputs

    def renamed(other: Node) -> Node:
        arguments = {k: Ref(source) if v == Ref(made) else v for k, v in other.arguments.items()}
        return msgspec.structs.replace(other, arguments=arguments)

    nodes = [renamed(other) for other in graph.nodes if other is not node]
    with pytest.raises(CaptureError, match=r"the gradient of layers\.0\.bias is missing on one side"):
        checked(job, msgspec.structs.replace(graph, nodes=nodes))


def test_a_buffer_that_no_longer_changes_is_refused() -> None:
    job = job_of(case("batch-norm"))
    graph = capture_shapes(job).graph
    kept = {name: value for name, value in graph.mutations.items() if name != "mean_input"}
    with pytest.raises(CaptureError, match=r"results: buffer mean_input differs by .* \(1e-04 is allowed\)$"):
        checked(job, msgspec.structs.replace(graph, mutations=kept))


def test_a_microbatch_that_the_model_cannot_have_is_refused() -> None:
    """BatchNorm has no variance of a single sample, and capture has seen two."""
    entry = case("batch-norm")
    with pytest.raises(CaptureError, match="cannot run a microbatch of 1 sample"):
        capture_job(job_of(entry, batch=2, microbatches=2))


def test_a_large_model_is_compared_on_fewer_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "MOST_OPERATIONS", 1.0)
    captured = capture_job(job_of(case("chain"), batch=8, microbatches=2))
    assert "on 2 of 4 samples" in verdict(captured, "self-check")[1]


def test_what_does_not_fit_is_not_checked_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    free = SimpleNamespace(available=1000)
    monkeypatch.setattr(check.psutil, "virtual_memory", lambda: free)
    captured = capture_job(job_of(case("chain"), batch=8, microbatches=2))
    outcome, words = verdict(captured, "self-check")
    assert outcome == "not checked" and "on 2 samples takes" in words


def test_a_model_without_values_is_captured_and_not_checked() -> None:
    with torch.device("meta"):
        model = case("gpt").build()
    captured = capture_job(job_of(case("gpt"), model=model))
    assert verdict(captured, "self-check") == ("not checked", "no weights")
    assert captured.graph == capture_job(job_of(case("gpt"))).graph


LARGE = """
import torch
from torch import nn
from farflung.client.capture.check import check_itself
from farflung.client.capture.check import capture_shapes, first_microbatch
import farflung
from tests.support.memory import peak_bytes

class Items:
    def __len__(self): return 8
    def __getitem__(self, index): return {"x": torch.full((2048,), float(index)), "y": torch.zeros(2048)}

class Large(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2048, 2048) for _ in range(12))
    def forward(self, x, y):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return ((x - y) ** 2).mean()

torch.set_num_threads(1)
job = farflung.Job(model=Large(), data=Items(), optimizer=farflung.SGD(lr=0.1),
                   batch=4, microbatches=2, steps=1)
captured = capture_shapes(job)
before = peak_bytes()
captured = check_itself(job, captured, first_microbatch(job))
print(peak_bytes() - before, captured.verdicts[-1].outcome)
"""


@pytest.mark.full
def test_memory_is_that_of_the_gradients() -> None:
    """Not of two further copies of the model with gradients of their own."""
    argv = [sys.executable, "-c", LARGE]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=ROOT)
    grown, outcome = done.stdout.split()
    parameters = 12 * (2048 * 2048 + 2048) * 4
    assert outcome == "ok"
    assert int(grown) < 1.6 * parameters


class Drawn(torch.nn.Module):
    """Scales by numbers that are drawn like a parameter, in place or not."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.layer, self.scale = torch.nn.Linear(16, 16), torch.nn.Parameter(torch.ones(16))
        self.in_place = in_place

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        like = self.scale * 2
        drawn = like.bernoulli_(0.5) if self.in_place else torch.bernoulli(like, 0.5)
        return ((self.layer(x) * drawn - y) ** 2).mean()


def test_what_is_drawn_like_a_parameter_gives_it_a_gradient_of_zeros() -> None:
    captured = capture_job(job_of(Case("drawn", lambda: Drawn(True), case("chain").batch)))
    assert verdict(captured, "self-check")[1].startswith("3 gradients compared")


def test_a_backward_pass_that_eager_cannot_make_is_one_line() -> None:
    with pytest.raises(
        CaptureError, match=r"^the model's own backward pass fails .* derivative for aten::bern"
    ):
        capture_job(job_of(Case("drawn", lambda: Drawn(False), case("chain").batch)))


class Doubled(torch.autograd.Function):
    """Its backward multiplies by whatever it is given."""

    @staticmethod
    def forward(ctx: SimpleNamespace, x: Tensor, slope: float) -> Tensor:
        ctx.slope = slope
        return 2 * x

    @staticmethod
    def backward(ctx: SimpleNamespace, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.slope, None


def doubling(slope: float, device: str = "cpu") -> Job:
    class Doubling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = nn.Linear(4, 3, device=device)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = Doubled.apply(self.scores(x), slope)
            return made.square().mean()

    data = [{"x": torch.ones(4)} for _ in range(4)]
    return Job(model=Doubling(), data=data, optimizer=SGD(lr=0.1), batch=4, microbatches=2, steps=1)


def test_a_custom_function_is_compared_with_the_derivative_of_its_forward() -> None:
    captured = capture_job(doubling(2.0))
    assert "Doubled is a custom autograd.Function" in captured.lints[0]
    assert verdict(captured, "self-check")[0] == "ok"
    assert check_job(doubling(2.0), 1, 1).ok
    for compared in (capture_job, check_job):
        with pytest.raises(CaptureError, match=r"the backward of Doubled \(.* is not the derivative"):
            compared(doubling(3.0))


def test_a_custom_function_that_cannot_be_compared_is_refused() -> None:
    assert capture_shapes(doubling(2.0, "meta")).custom_functions
    with pytest.raises(
        CaptureError, match=r"Doubled .*could not be compared with its backward \(no weights\)"
    ):
        capture_job(doubling(2.0, "meta"))
