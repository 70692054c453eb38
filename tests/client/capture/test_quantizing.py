"""`Job(quantize=)`: what `check` compares, what workers are told, and what cannot be quantized."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.support import adapters
from torch import Tensor, nn

import farflung
from farflung.client.api.job import Job
from farflung.client.capture.check import capture_job, capture_shapes, check_job
from farflung.client.capture.prepared import model_of, prepare
from farflung.client.capture.quantizing import dequantized_copy, quantized_matrices
from farflung.client.capture.report import report_of
from farflung.client.options.overrides import override
from farflung.errors import JobError
from farflung.quantization import FORMATS, quantized_bytes
from farflung.text import format_bytes

pytestmark = pytest.mark.slow
torch.set_num_threads(1)


def job_of(quantize: str | None = "nf4", model: Any = None, **changes: Any) -> Job:
    if model is None:
        model = adapters.with_adapter(adapters.base(width=128), adapters.LORA)
    return adapters.job_of(model, quantize=quantize, **changes)


@pytest.mark.parametrize("form", FORMATS)
def test_a_quantized_base_trains_as_eager_with_dequantized_matrices(form: str) -> None:
    job = job_of(form)
    before = adapters.weights_of(job.model)
    report = check_job(job, 3)
    assert report.ok and report.segments == 3, report
    assert report.loss_difference < 1e-6
    assert all(tensor.equal(before[name]) for name, tensor in job.model.state_dict().items())


@pytest.mark.full
@pytest.mark.parametrize(
    ("form", "has_own"),
    [
        ("int8", False),
        ("nf4", True),
        pytest.param("int8", True, marks=pytest.mark.full),
        pytest.param("nf4", False, marks=pytest.mark.full),
    ],
)
def test_in_bfloat16_it_computes_the_bits_of_a_graph_that_has_the_dequantized_matrices(
    form: str, has_own: bool
) -> None:
    """The base is in bfloat16, or is computed with in it."""
    base = adapters.base(width=128)
    model = adapters.with_adapter(base.bfloat16() if has_own else base, adapters.LORA)
    job = job_of(form, model, precision="float32" if has_own else "bfloat16")
    quantization = capture_shapes(job).quantization
    module = dequantized_copy(job.model, quantized_matrices(job.model, quantization), quantization)
    reports = [check_job(one, 1) for one in (job, dataclasses.replace(job, model=module, quantize=None))]
    assert reports[0] == reports[1] and reports[0].ok


def test_eager_with_its_own_matrices_computes_something_else() -> None:
    job = job_of()
    captured = capture_job(job)
    held = quantized_matrices(job.model, captured.quantization)
    other = dequantized_copy(job.model, held, captured.quantization)
    batch = {n: t[None] for n, t in adapters.Sentences()[0].items()}
    losses = [float(model.eval()(**batch).loss.detach()) for model in (copy.deepcopy(job.model), other)]
    assert losses[0] != losses[1] and losses[0] == pytest.approx(losses[1], rel=0.05)


@pytest.mark.full
@pytest.mark.parametrize("form", FORMATS)
def test_planner_and_report_know_the_smaller_size(form: str) -> None:
    quantized, plain = (job_of(quantize) for quantize in (form, None))
    found = prepare(quantized).quantization
    assert found is not None and len(found.matrices) == 3 * 7 + 1
    before, after = before_and_after(quantized, found.forms)
    saved = before - after
    sizes = [model_of(job).workload.parameter_bytes.sum() for job in (quantized, plain)]
    assert sizes[1] - sizes[0] == saved
    reports = [report_of(job, capture_job(job), False, None) for job in (quantized, plain)]
    assert reports[0].parameters == reports[1].parameters
    assert reports[1].parameter_bytes - reports[0].parameter_bytes == saved


def before_and_after(job: Job, forms: Mapping[str, str]) -> tuple[int, int]:
    """Bytes of the matrices as the model has them, and as workers hold them."""
    named = job.model.named_parameters(remove_duplicate=False)
    sizes = {name: one.numel() for name, one in named if name in forms}
    return 4 * sum(sizes.values()), sum(quantized_bytes(n, forms[name]) for name, n in sizes.items())


def test_what_becomes_smaller_and_what_stays_is_said_once() -> None:
    job = job_of()
    prepared = prepare(job)
    (size,) = [
        one
        for one in prepared.remarks
        if one.startswith("workers hold 22 frozen matrices as nf4 (1 embedding as int8), in ")
    ]
    found = prepared.quantization
    assert found is not None
    before, after = before_and_after(job, found.forms)
    assert f"in {format_bytes(after)} instead of {format_bytes(before)}, " in size
    assert not [one for one in prepared.remarks if "are not quantized" in one]


@pytest.mark.full
def test_dora_needs_the_matrices_themselves_that_it_adapts() -> None:
    model = adapters.with_adapter(adapters.base(width=128), adapters.CONFIGS["dora"])
    found = prepare(job_of(model=model)).quantization
    assert found is not None
    assert not any("q_proj" in name or "down_proj" in name for name in found.matrices)
    assert any("k_proj" in name for name in found.matrices)
    assert check_job(job_of(model=model), 2).ok


class Net(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x))).square().mean()


class Vectors:
    def __init__(self, width: int = 64) -> None:
        self._width = width

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.randn(self._width, generator=torch.Generator().manual_seed(index))}


def net(frozen: bool = True, width: int = 64, **changes: Any) -> Job:
    torch.manual_seed(0)
    model = changes.pop("model", None) or Net(width)
    model.first.requires_grad_(not frozen)
    declared: dict[str, Any] = {"quantize": "nf4", "optimizer": farflung.SGD(lr=0.1), "steps": 2, **changes}
    return Job(model=model, data=Vectors(width), batch=8, microbatches=2, **declared)


def test_without_a_frozen_matrix_the_job_is_refused() -> None:
    with pytest.raises(JobError, match=r"^quantize='nf4' finds nothing to quantize: the model has no frozen"):
        prepare(net(frozen=False))


def test_a_matrix_that_blocks_do_not_divide_is_named() -> None:
    with pytest.raises(JobError, match=r"no frozen matrix can be \(first.weight: its rows have 60 values"):
        prepare(net(width=60))


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_values_that_are_no_numbers_are_named(wrong: float) -> None:
    model = Net().half().float()
    model.first.weight.data[2, 2] = wrong
    with pytest.raises(JobError, match=r"^quantize='nf4': first.weight has values that are infinite or not"):
        model_of(net(model=model))


class Raised(Net):
    """A layer whose matrix of two bytes is cast to float32 where it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Parameter(torch.randn(64, 64).bfloat16(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.linear(x, self.second.float()))


def test_a_matrix_that_is_cast_where_it_is_used_trains_as_eager() -> None:
    report = check_job(net(model=Raised()), 1)
    assert report.ok and report.loss_difference == 0, report


class Tied(nn.Module):
    """A head that is the table, which an embedding reads, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 64)
        self.head = nn.Linear(64, 8, bias=False)
        self.head.weight = self.table.weight
        self.first = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        tokens = (x[:, :3].abs() * 2).long().clamp(max=7)
        return self.head(self.first(self.table(tokens))).logsumexp(-1).mean()


def test_a_tied_table_that_is_trained_under_another_name_stays() -> None:
    model = Tied()
    job = net(model=model)
    found = prepare(job).quantization
    assert found is not None and found.matrices == {"first.weight"} and not found.left
    assert check_job(job, 1).ok
    model.first.requires_grad_(True)
    model.table.requires_grad_(False)
    frozen = Job(model=model, data=Vectors(), batch=8, microbatches=2, quantize="nf4",
                 optimizer=farflung.SGD(lr=0.1), steps=2)  # fmt: skip
    found = prepare(frozen).quantization
    assert found is not None and list(found.forms.values()) == ["int8"] and not found.left
    report = check_job(frozen, 1)
    assert report.ok and report.loss_difference == 0, report


@pytest.mark.parametrize("name", ["fp4", 4, True, ""])
def test_an_unknown_format_is_refused(name: Any) -> None:
    with pytest.raises(JobError, match=r"^quantize must be 'int8' or 'nf4' or None, found "):
        net(quantize=name)


def test_the_command_line_sets_it() -> None:
    assert override(net(quantize=None), ["quantize=int8"]).quantize == "int8"
    assert override(net(), ["quantize=none"]).quantize is None
    with pytest.raises(JobError, match=r"^--set quantize takes int8 or nf4 or none, found 'fp4'"):
        override(net(), ["quantize=fp4"])
