from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from benchmarks.zoo import Batch, Case, case
from torch import Tensor, nn
from torch.utils.data import Dataset

import farflung
from farflung.client.api.job import Job
from farflung.client.capture.check import capture_job, check_job
from farflung.errors import CaptureError, FarflungError, JobError, PlanError

pytestmark = pytest.mark.slow

torch.set_num_threads(1)


class Items(Dataset[Batch]):
    """Single samples of a case."""

    def __init__(self, entry: Case, count: int = 40) -> None:
        self.batch = entry.batch(count, 9)

    def __len__(self) -> int:
        return len(next(iter(self.batch.values())))

    def __getitem__(self, index: int) -> Batch:
        return {name: tensor[index] for name, tensor in self.batch.items()}


def job_of(entry: Case, **changes: object) -> Job:
    data = Items(entry)
    settings: dict[str, object] = {
        "model": entry.build(),
        "data": data,
        "optimizer": farflung.AdamW(lr=1e-2),
        "batch": 8,
        "microbatches": 4,
        "steps": 3,
    }
    return Job(**(settings | changes))  # type: ignore[arg-type]


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", ["gpt-dropout", "gpt2-mask-dropout", "gpt2-fused", "resnet", "batch-norm"])
def test_right_jobs_pass(name: str) -> None:
    """AdamW's own noise (a key bias, whose gradient is zero in theory) does not count against a model."""
    job = job_of(case(name))
    before = {n: t.clone() for n, t in job.model.state_dict().items()}
    words: list[str] = []
    report = check_job(job, segments=3, steps=2, tell=words.append)
    assert report.ok, report
    assert report.segments == 3
    assert words
    assert all(torch.equal(t, before[n]) for n, t in job.model.state_dict().items())


class Turned(nn.Module):
    """Dropout on values that eager holds in rows, and a graph, which leaves the copy out, in columns."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        turned = self.first(x).transpose(1, 2).contiguous()
        dropped = F.dropout(turned, 0.5, self.training)
        return F.dropout(self.second(dropped), 0.5, self.training).square().mean()


class Squares(Dataset[Batch]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Batch:
        return {"x": torch.randn(4, 6, generator=torch.Generator().manual_seed(index))}


@pytest.mark.parametrize("segments", [1, 2])
def test_dropout_does_not_depend_on_the_order_of_memory(segments: int) -> None:
    job = Job(
        model=Turned(), data=Squares(), optimizer=farflung.SGD(lr=0.1), batch=4, microbatches=2, steps=2
    )
    report = check_job(job, segments=segments, steps=2)
    assert report.ok and report.loss_difference == 0.0, report


@pytest.mark.parametrize("clip_by", ["global", "segment"])
def test_a_job_that_clips_is_checked_as_it_clips(clip_by: str) -> None:
    job = job_of(case("chain"), clip=1e-3, clip_by=clip_by)
    report = farflung.check(job, segments=3, steps=3)
    assert report.ok and report.worst_parameter_difference == 0.0, report


def test_microbatches_of_one_sample() -> None:
    report = check_job(job_of(case("gpt"), batch=2, microbatches=2), segments=2, steps=1)
    assert report.ok, report


def test_more_segments_than_the_model_has() -> None:
    with pytest.raises(PlanError, match="at most 5 segments, 9 were asked for"):
        check_job(job_of(case("chain")), segments=9)


@pytest.mark.parametrize(("segments", "steps"), [(0, 1), (1, 0), (-1, 1)])
def test_segments_and_steps_are_positive(segments: int, steps: int) -> None:
    with pytest.raises(JobError, match="at least 1 segment and 1 step"):
        check_job(job_of(case("chain")), segments, steps)


class Branching(nn.Module):
    """Scales its result in evaluation, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.layer(x) if self.training else 0.5 * self.layer(x)
        return F.mse_loss(z, y)


def test_a_branch_on_training_is_remarked_or_refused() -> None:
    entry = Case("branching", Branching, case("chain").batch)
    captured = capture_job(job_of(entry))
    assert any("branches on self.training" in lint for lint in captured.lints)
    with pytest.raises(CaptureError, match="leave `validation` out"):
        capture_job(job_of(entry, validation=Items(entry)))


def test_a_model_without_trainable_parameters_is_refused() -> None:
    entry = Case("still", lambda: Branching().requires_grad_(False), case("chain").batch)
    with pytest.raises(FarflungError, match="no trainable parameter"):
        capture_job(job_of(entry))


class CutOff(nn.Module):
    """Its loss is cut off from what it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.layer(x), y).detach()


@pytest.mark.parametrize("run", [capture_job, check_job])
def test_a_loss_that_is_cut_off_from_all_parameters_is_refused(run: Callable[[Job], object]) -> None:
    entry = Case("cut off", CutOff, case("chain").batch)
    with pytest.raises(CaptureError, match=r"no trainable parameter.* detach\(\)"):
        run(job_of(entry))


class Hooked(nn.Module):
    """Uses another gradient than its forward has, by a hook that nobody can see."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.layer(x)
        if z.grad_fn is not None:
            z.grad_fn.register_prehook(lambda gradients: tuple(2 * g for g in gradients))
        return F.mse_loss(z, y)


def test_the_self_check_finds_what_no_lint_knows() -> None:
    """A hook of a backward node changes gradients, and export drops it."""
    with pytest.raises(CaptureError, match="the captured graph and your module compute different results"):
        capture_job(job_of(Case("hooked", Hooked, case("chain").batch)))


class Scores(nn.Module):
    """Returns no loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def test_a_loss_function() -> None:
    entry = Case("scores", Scores, case("chain").batch)
    report = check_job(job_of(entry, loss=lambda outputs, batch: F.mse_loss(outputs, batch["y"])), 2)
    assert report.ok, report


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (F.mse_loss, "object has no attribute 'size'"),
        (lambda outputs, batch: F.mse_loss(outputs, batch["z"]), "KeyError: 'z' (at "),
        (lambda outputs, batch: outputs, "a scalar tensor, found a tensor of shape ["),
        (lambda outputs, batch: 1.0, "loss as a Python number"),
    ],
    ids=["signature", "key", "shape", "number"],
)
def test_a_loss_function_that_fails_is_told_how_it_is_called(
    loss: Callable[[object, object], object], found: str
) -> None:
    entry = Case("scores", Scores, case("chain").batch)
    with pytest.raises(CaptureError) as raised:
        check_job(job_of(entry, loss=loss, batch=4, microbatches=2), 2)
    words = str(raised.value)
    assert found in words and "\n" not in words
    if "number" not in found:
        called = "loss(outputs, batch): what the model returned, a tensor, and a dict of tensors, 'x', 'y'"
        assert words.endswith(f"Job(loss=) is called as {called}")


@pytest.mark.parametrize("name", [pytest.param("llama", marks=pytest.mark.full), "gpt2"])
def test_bfloat16_is_held_to_what_bfloat16_can_hold(name: str) -> None:
    """As close as float32 is, also where queries share keys, which a Llama repeats when it is exported."""
    report = check_job(job_of(case(name), precision="bfloat16"), segments=2, steps=1)
    assert report.ok
    assert report.loss_difference <= 1e-5
    assert report.worst_gradient_difference <= 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_of_two_bytes_are_held_to_what_they_can_hold(dtype: torch.dtype) -> None:
    """A tied head is read in two segments, whose gradients are added and rounded in another order."""
    model = case("gpt2-fused").build().to(dtype)
    report = check_job(job_of(case("gpt2-fused"), model=model), segments=4)
    assert report.ok, report
    assert report.worst_gradient_difference > 1e-4


def test_float16_is_remarked_on() -> None:
    captured = capture_job(job_of(case("gpt2-fused"), model=case("gpt2-fused").build().half()))
    assert any("float16 without loss scaling" in lint for lint in captured.lints)


@pytest.mark.parametrize(("name", "segments"), [("gpt2-fused", 4), ("branching", 1)])
def test_without_a_number_there_are_as_many_segments_as_the_model_bears(name: str, segments: int) -> None:
    entry = case(name) if name != "branching" else Case(name, Branching, case("chain").batch)
    report = check_job(job_of(entry))
    assert report.segments == segments and report.ok


class Alternating:
    """Pads each batch to its own length, so that lengths differ between batches."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, items: list[Batch]) -> Batch:
        self.calls += 1
        width = 12 + 2 * (self.calls % 3)
        return {name: torch.stack([item[name][:width] for item in items]) for name in items[0]}


class AnyWidth(nn.Module):
    """Runs on rows of any width."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(1, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.down(self.up(x[..., None])).squeeze(-1), y)


def test_batches_of_several_shapes_are_refused_as_training_refuses_them() -> None:
    entry = Case("any-width", AnyWidth, case("chain").batch)
    with pytest.raises(JobError, match="every batch must be alike") as raised:
        check_job(job_of(entry, collate=Alternating()), segments=2)
    assert "\n" not in str(raised.value)
