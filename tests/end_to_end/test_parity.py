"""Four worker processes over TLS against one eager process, bit for bit where the ops allow it."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import msgspec
import pytest
import torch
from tests.client.run.test_weights import job as masked_job
from tests.end_to_end.fleets import Fleet, running, trained_state
from tests.end_to_end.zoo_jobs import MICROBATCHES, job_of, microbatches_of
from torch import Tensor, nn

import farflung
from farflung.client.capture.check import capture_shapes
from farflung.opdag.capture.capture import LossModule
from farflung.plans import Wishes, subtopology
from farflung.plans.testbeds.catalogue import load_testbed
from farflung.runtime.optimizers.declared import Optimizer
from farflung.runtime.parity.eager import Reference
from farflung.runtime.parity.steps import gradient_difference, parameter_difference

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    torch.set_num_threads(1)
    with running(4, tmp_path_factory.mktemp("fleet")) as started:
        yield started


def eager(job: farflung.Job, parts: int = MICROBATCHES) -> tuple[list[float], dict[str, Tensor], nn.Module]:
    """Losses of every step, gradients of the first, and the trained module, in this process."""
    module = copy.deepcopy(job.model)
    wrapper = LossModule(module, None, job.precision)
    graph = capture_shapes(job).graph
    reference = Reference(module, lambda batch: wrapper(dict(batch)), graph, job.training())
    losses: list[float] = []
    first: dict[str, Tensor] = {}
    for step in range(job.steps):
        losses.append(reference.accumulate(microbatches_of(job, step, parts)))
        if step == 0:
            first = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
        reference.apply()
    return losses, first, module


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("name", "steps"),
    [("gpt", 50), ("gpt-dropout", 50), ("resnet", 10), ("masked-pair", 10), ("shared-buffer", 10)],
)
def test_losses_and_state_equal_one_process_bit_for_bit(fleet: Fleet, name: str, steps: int) -> None:
    job = job_of(name, steps, farflung.AdamW(lr=3e-3, schedule=farflung.WarmupCosine(5, 50)))
    losses, _, module = eager(job)
    workers = 4
    summary, rows, folder = fleet.run(job, workers)
    assert (summary.state, summary.workers, summary.steps) == ("done", workers, steps)
    assert [row["loss"] for row in rows] == losses
    ours = trained_state(folder, copy.deepcopy(job.model))
    assert all(torch.equal(ours[key], value) for key, value in module.state_dict().items())


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "optimizer",
    [
        farflung.Lion(lr=3e-4, weight_decay=0.3, no_decay="auto", schedule=farflung.WSD(2, 2, 4)),
        farflung.Adafactor(lr=0.01, groups=(farflung.Group("head.*", lr_scale=0.5),)),
        farflung.Muon(lr=0.02, others=farflung.AdamW(lr=3e-3), excluded=("symbol.*", "head.*")),
    ],
    ids=lambda optimizer: type(optimizer).__name__,
)
def test_every_optimizer_equals_one_process_bit_for_bit(fleet: Fleet, optimizer: Optimizer) -> None:
    job = job_of("gpt", 6, optimizer)
    losses, _, module = eager(job)
    summary, rows, folder = fleet.run(job, 3)
    assert (summary.state, [row["loss"] for row in rows]) == ("done", losses)
    ours = trained_state(folder, copy.deepcopy(job.model))
    assert all(torch.equal(ours[key], value) for key, value in module.state_dict().items())


def test_masked_labels_count_as_in_one_process_that_takes_whole_batches(fleet: Fleet) -> None:
    job = masked_job(optimizer=farflung.SGD(lr=0.1), steps=4)
    module = copy.deepcopy(job.model)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    for step in range(job.steps):
        batch = job.collated([job.items[index] for index in job.order().indices(step)])
        loss = module(**batch)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    summary, rows, folder = fleet.run(job, 2)
    assert summary.state == "done"
    assert [row["loss"] for row in rows] == pytest.approx(losses, rel=1e-6)
    ours = trained_state(folder, copy.deepcopy(job.model))
    assert all(
        torch.allclose(ours[name], value, rtol=0, atol=1e-6) for name, value in module.state_dict().items()
    )


def test_bfloat16_equals_eager_under_autocast_at_half_the_bytes(fleet: Fleet) -> None:
    """Each layer's weight is used once, so no sum has another order: bit for bit, in bfloat16 too."""
    bytes_on_wire = {}
    for precision in ("float32", "bfloat16"):
        job = job_of("chain", 10, farflung.AdamW(lr=3e-3), precision=precision)  # type: ignore[arg-type]
        losses, _, module = eager(job)
        _, rows, folder = fleet.run(job, 3)
        assert [row["loss"] for row in rows] == losses
        ours = trained_state(folder, copy.deepcopy(job.model))
        assert all(torch.equal(ours[key], value) for key, value in module.state_dict().items())
        assert {tensor.dtype for tensor in ours.values()} == {torch.float32}
        # Over the run, for what is still queued counts a step later.
        bytes_on_wire[precision] = sum(row["bytes_on_wire"] for row in rows)
    assert bytes_on_wire["bfloat16"] < bytes_on_wire["float32"]


@pytest.mark.full
@pytest.mark.parametrize("scheduler", ["auto", pytest.param("op-fence", marks=pytest.mark.full)])
def test_numbers_do_not_depend_on_the_plan(fleet: Fleet, scheduler: str) -> None:
    """Cut and placed for four workers of three sites far apart, nothing of what is learned changes."""
    part = subtopology(load_testbed("three-sites"), [0, 1, 2, 4])
    workers = [
        msgspec.structs.replace(worker, id=f"worker-{number}") for number, worker in enumerate(part.workers)
    ]
    wishes = Wishes(scheduler, msgspec.structs.replace(part, workers=tuple(workers)))
    job = job_of("gpt", 10, farflung.AdamW(lr=3e-3))
    losses, _, module = eager(job)
    summary, rows, folder = fleet.run(job, 4, wishes)
    assert summary.workers == 4 and summary.scheduler == scheduler
    assert summary.predicted_step_seconds is not None and summary.predicted_bottleneck
    assert [row["loss"] for row in rows] == losses
    ours = trained_state(folder, copy.deepcopy(job.model))
    assert all(torch.equal(ours[key], value) for key, value in module.state_dict().items())


def test_gradients_equal_one_process_bit_for_bit(fleet: Fleet) -> None:
    """With SGD at rate 1 the first update is the gradient itself, so equal parameters are equal gradients."""
    job = job_of("gpt", 1, farflung.SGD(lr=1.0))
    _, gradients, _ = eager(job)
    _, _, folder = fleet.run(job, 4)
    ours = trained_state(folder, copy.deepcopy(job.model))
    before = job.model.state_dict()
    assert set(gradients) == set(before)
    for name, gradient in gradients.items():
        assert gradient.any()
        assert torch.equal(ours[name], before[name] - gradient)


@pytest.mark.full
def test_a_clipped_run_equals_one_process_bit_for_bit(fleet: Fleet) -> None:
    job = job_of("gpt", 50, farflung.AdamW(lr=3e-3), clip=0.5)
    losses, _, module = eager(job)
    norms = []
    for workers in (4, 2):
        _, rows, folder = fleet.run(job, workers)
        assert [row["loss"] for row in rows] == losses
        ours = trained_state(folder, copy.deepcopy(job.model))
        assert all(torch.equal(ours[key], value) for key, value in module.state_dict().items())
        norms.append([row["gradient_norm"] for row in rows])
    assert norms[0] == norms[1] and max(norms[0]) > 0.5


@pytest.mark.full
def test_tied_weights_on_one_worker_stay_within_a_millionth(fleet: Fleet) -> None:
    """The table's two gradients are summed over the microbatches apart, then added: the last bits differ."""
    job = job_of("gpt2-fused-dropout", 10, farflung.SGD(lr=0.05, momentum=0.9))
    losses, _, module = eager(job)
    summary, rows, folder = fleet.run(job, 3)
    assert summary.workers == 3
    for row, loss in zip(rows, losses, strict=True):
        assert row["loss"] == pytest.approx(loss, rel=1e-6)
    ours = trained_state(folder, copy.deepcopy(job.model))
    assert parameter_difference(ours, module.state_dict())[0] < 1e-4


@pytest.mark.full  # the same in one process: test_microbatches_train_as_the_whole_batch in tests/runtime
def test_the_plain_full_batch_loop_is_matched(fleet: Fleet) -> None:
    job = job_of("gpt", 50, farflung.AdamW(lr=3e-3))
    losses, gradients, _ = eager(job, parts=1)
    _, in_parts, _ = eager(job)
    _, rows, _ = fleet.run(job, 4)
    assert gradient_difference(in_parts, gradients)[0] < 1e-5
    for row, loss in zip(rows, losses, strict=True):
        assert row["loss"] == pytest.approx(loss, rel=1e-6)


@pytest.mark.full  # a run with dropout equals one process above, and so does any rerun
def test_a_rerun_gives_the_same_losses(fleet: Fleet) -> None:
    """With dropout, and on fewer workers: a loss depends on the job, not on where it ran."""
    runs = [fleet.run(job_of("gpt-dropout", 10, farflung.AdamW(lr=3e-3)), n)[1] for n in (4, 4, 2)]
    losses = [[row["loss"] for row in rows] for rows in runs]
    assert losses[0] == losses[1] == losses[2]
