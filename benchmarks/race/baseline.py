"""One rank of a baseline over gloo: a pipeline or DDP. Started once in each node's namespace.

The rank that has the loss prints one JSON object a step: it, and the seconds since the step before ended.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable

import msgspec
import torch
import torch.distributed as dist
import torch.nn.functional as F
from benchmarks.race.counting.boundary import leaves
from benchmarks.race.course import Batches, Course
from benchmarks.race.schedules import PIPELINES, made, parts_of
from benchmarks.race.sleeping import BACKWARD_FACTOR, SleepingStage, share_buffers
from benchmarks.race.stage import Stage
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.pipelining import PipelineStage
from torch.nn.parallel import DistributedDataParallel

from farflung.runtime.emulated.backend import EmulatedDevice
from farflung.runtime.parity.optimizers import build, set_learning_rate

Step = Callable[[dict[str, Tensor], int], float]
DDP, POWERSGD = "ddp", "ddp-powersgd"
POWERSGD_RANK = 4
POWERSGD_FROM = 2  # the first step that torch allows: a leg has few
"""Steps of plain DDP before PowerSGD begins (arXiv 1905.13727), while gradients change fast."""
ALONE = "alone"
"""One process that trains the whole model, on the first node."""
BASELINES = (*PIPELINES, DDP, POWERSGD, ALONE)
LINGER_SECONDS = 1.0  # behind the last row, while whoever follows it reads the counters of this process


class Sleep(msgspec.Struct, frozen=True):
    """Of an emulated device: what it sustains, and its stage's forward operations a microbatch."""

    tflops: float
    flops: float


class Rank(msgspec.Struct, frozen=True):
    """What one process of a baseline is told, as JSON in its first argument; its device is real or sleeps."""

    system: str
    rank: int
    world: int
    address: str
    course: Course
    sleep: Sleep | None = None


def reporter(system: str, world: int) -> int:
    """The rank that has the loss, and prints rows."""
    return parts_of(system)[0].last(world) if system in PIPELINES else world - 1


def mean_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy in nats per byte."""
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def pipeline_step(told: Rank) -> Step:
    """A step of a pipeline; its loss is known to the rank of the last stage only."""
    course = told.course
    model, count = course.model(), told.world * parts_of(told.system)[0].stages
    rounding = parts_of(told.system)[1]
    modules = [Stage(model, number, count, rounding).train() for number in _numbers(told)]
    parameters = [one for module in modules for one in module.parameters()]
    optimizer = build(course.optimizer(), parameters)
    run = _scheduled(told, modules, mean_loss)

    def step(batch: dict[str, Tensor], number: int) -> float:
        set_learning_rate(optimizer, number)
        optimizer.zero_grad(set_to_none=True)
        losses = run(batch["tokens"], batch["targets"])
        if course.clip is not None:
            _clip(parameters, course.clip)
        optimizer.step()
        return float(torch.stack(losses).detach().double().mean()) if losses else float("nan")

    return step


def _numbers(told: Rank) -> list[int]:
    return parts_of(told.system)[0].numbers(told.rank, told.world)


def _scheduled(
    told: Rank, modules: list[nn.Module], loss: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[Tensor, Tensor], list[Tensor]]:
    """Runs a batch through the schedule; gives the losses of its microbatches where the last stage is."""
    count = told.world * parts_of(told.system)[0].stages
    stages = [
        PipelineStage(module, number, count, torch.device("cpu"))
        for module, number in zip(modules, _numbers(told), strict=True)
    ]
    schedule = made(told.system, stages, told.course.microbatches, loss)
    has_first, has_last = 0 in _numbers(told), count - 1 in _numbers(told)

    def run(tokens: Tensor, targets: Tensor) -> list[Tensor]:
        losses: list[Tensor] = []
        inputs = (tokens,) if has_first else ()
        if has_last:
            schedule.step(*inputs, target=targets, losses=losses, return_outputs=False)
        else:
            schedule.step(*inputs, return_outputs=False)
        return losses

    return run


def _clip(parameters: list[nn.Parameter], most: float) -> None:
    """Bound the norm of all ranks' gradients together."""
    gradients = [one.grad for one in parameters if one.grad is not None]
    square = nn.utils.get_total_norm(gradients).square() if gradients else torch.zeros(())
    dist.all_reduce(square)
    nn.utils.clip_grads_with_norm_(parameters, most, square.sqrt())


def sleeping_step(told: Rank, sleep: Sleep) -> Step:
    """A step of a pipeline on emulated devices: the same tensors on their way, and no loss."""
    share_buffers()
    course, count = told.course, told.world * parts_of(told.system)[0].stages
    sent = leaves(torch.zeros(1, course.width), parts_of(told.system)[1])
    shape = (course.microbatch_size, course.sequence, sent.shape[-1])
    device, flops = EmulatedDevice(sleep.tflops), sleep.flops / len(_numbers(told))
    modules: list[nn.Module] = [
        SleepingStage(device, flops, shape, sent.dtype)
        if number < count - 1
        else SleepingStage(device, flops, ())
        for number in _numbers(told)
    ]
    run = _scheduled(told, modules, lambda made, target: made)
    tokens = torch.zeros(course.batch, course.sequence, dtype=torch.int64)

    def step(batch: dict[str, Tensor], number: int) -> float:
        run(tokens, tokens)
        return math.nan

    return step


def alone_step(told: Rank) -> Step:
    """A step of one process, microbatch by microbatch."""
    course = told.course
    model = course.model().train()
    parameters = [one for one in model.parameters() if one.requires_grad]
    optimizer = build(course.optimizer(), parameters)

    def step(batch: dict[str, Tensor], number: int) -> float:
        set_learning_rate(optimizer, number)
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        parts = {name: tensor.chunk(course.microbatches) for name, tensor in batch.items()}
        for piece in range(course.microbatches):
            loss = model(**{name: part[piece] for name, part in parts.items()}) / course.microbatches
            loss.backward()
            total += float(loss.detach().double())
        if course.clip is not None:
            nn.utils.clip_grad_norm_(parameters, course.clip)
        optimizer.step()
        return total

    return step


def sleeping_alone(told: Rank, sleep: Sleep) -> Step:
    """A step of one emulated device."""
    device, course = EmulatedDevice(sleep.tflops), told.course

    def step(batch: dict[str, Tensor], number: int) -> float:
        device.work((1 + BACKWARD_FACTOR) * sleep.flops * course.microbatches)
        return math.nan

    return step


def ddp_step(told: Rank) -> Step:
    """A step of data parallelism: each rank takes its share; gradients meet during its last part."""
    course = told.course
    model = DistributedDataParallel(course.model().train())
    if told.system == POWERSGD:
        state = PowerSGDState(
            None, matrix_approximation_rank=POWERSGD_RANK, start_powerSGD_iter=POWERSGD_FROM
        )
        model.register_comm_hook(state, powerSGD_hook)
    optimizer = build(course.optimizer(), model.parameters())

    def step(batch: dict[str, Tensor], number: int) -> float:
        set_learning_rate(optimizer, number)
        optimizer.zero_grad(set_to_none=True)
        mine = {name: part.tensor_split(told.world)[told.rank] for name, part in batch.items()}
        count = len(mine["tokens"])
        pieces = max(1, -(-count // course.microbatch_size))
        total = torch.zeros((), dtype=torch.float64)
        for piece in range(pieces):
            part = {name: t.tensor_split(pieces)[piece] for name, t in mine.items()}
            weight = len(part["tokens"]) * told.world / course.batch
            model.require_backward_grad_sync = piece == pieces - 1
            loss = model(**part) * weight
            loss.backward()
            total += loss.detach().double() / told.world
        dist.all_reduce(total)
        if course.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), course.clip)
        optimizer.step()
        return float(total)

    return step


STEPS = {DDP: ddp_step, POWERSGD: ddp_step, ALONE: alone_step}


def main() -> None:
    """Train `course.steps` steps."""
    told = msgspec.json.decode(sys.argv[1], type=Rank)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{told.address}", rank=told.rank, world_size=told.world
    )
    if told.sleep is not None:
        batches = None
        step = (sleeping_alone if told.system == ALONE else sleeping_step)(told, told.sleep)
    else:
        batches = Batches(told.course)
        step = STEPS.get(told.system, pipeline_step)(told)
    dist.barrier()
    last = time.monotonic()
    for number in range(told.course.steps):
        loss = step(batches.step(number) if batches is not None else {}, number)
        now = time.monotonic()
        if told.rank == reporter(told.system, told.world):
            row = {"step": number + 1, "loss": None if told.sleep else loss, "seconds": now - last}
            print(json.dumps(row), flush=True)
        last = now
    dist.barrier()
    time.sleep(LINGER_SECONDS)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
