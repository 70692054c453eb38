"""One rank of a baseline over gloo: GPipe, 1F1B or DDP. Started once in each node's namespace.

The last rank prints one JSON object a step: its loss and the seconds since the step before ended.
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
from benchmarks.race.course import Batches, Course
from benchmarks.race.sleeping import SleepingStage
from benchmarks.race.stage import Stage
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

from farflung.runtime.emulated.backend import EmulatedDevice
from farflung.runtime.parity.optimizers import build

Step = Callable[[dict[str, Tensor]], float]
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
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


def mean_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy in nats per byte."""
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def pipeline_step(told: Rank) -> Step:
    """A step of GPipe or 1F1B; its loss is known to the last rank only."""
    course, device = told.course, torch.device("cpu")
    module = Stage(course.model(), told.rank, told.world).train()
    optimizer = build(course.optimizer(), module.parameters())
    stage = PipelineStage(module, told.rank, told.world, device)
    schedule = SCHEDULES[told.system](stage, course.microbatches, loss_fn=mean_loss)
    is_first, is_last = told.rank == 0, told.rank == told.world - 1

    def step(batch: dict[str, Tensor]) -> float:
        optimizer.zero_grad(set_to_none=True)
        losses: list[Tensor] = []
        inputs = (batch["tokens"],) if is_first else ()
        if is_last:
            schedule.step(*inputs, target=batch["targets"], losses=losses, return_outputs=False)
        else:
            schedule.step(*inputs, return_outputs=False)
        optimizer.step()
        return float(torch.stack(losses).detach().double().mean()) if losses else float("nan")

    return step


def sleeping_step(told: Rank, sleep: Sleep) -> Step:
    """A step of GPipe or 1F1B on emulated devices: the same tensors on their way, and no loss."""
    course, is_last = told.course, told.rank == told.world - 1
    shape = (course.microbatch_size, course.sequence, course.width)
    module = SleepingStage(EmulatedDevice(sleep.tflops), sleep.flops, () if is_last else shape)
    stage = PipelineStage(module, told.rank, told.world, torch.device("cpu"))
    schedule = SCHEDULES[told.system](stage, course.microbatches, loss_fn=lambda made, target: made)
    tokens = torch.zeros(course.batch, course.sequence, dtype=torch.int64)

    def step(batch: dict[str, Tensor]) -> float:
        inputs = (tokens,) if told.rank == 0 else ()
        schedule.step(*inputs, target=tokens if is_last else None, return_outputs=False)
        return math.nan

    return step


def ddp_step(told: Rank) -> Step:
    """A step of data parallelism: each rank takes its share; gradients meet during its last part."""
    course = told.course
    model = DistributedDataParallel(course.model().train())
    optimizer = build(course.optimizer(), model.parameters())

    def step(batch: dict[str, Tensor]) -> float:
        optimizer.zero_grad(set_to_none=True)
        mine = {name: part.tensor_split(told.world)[told.rank] for name, part in batch.items()}
        count = len(mine["tokens"])
        pieces = max(1, -(-count // course.microbatch_size))
        total = torch.zeros((), dtype=torch.float64)
        for number in range(pieces):
            part = {name: t.tensor_split(pieces)[number] for name, t in mine.items()}
            weight = len(part["tokens"]) * told.world / course.batch
            model.require_backward_grad_sync = number == pieces - 1
            loss = model(**part) * weight
            loss.backward()
            total += loss.detach().double() / told.world
        dist.all_reduce(total)
        optimizer.step()
        return float(total)

    return step


def main() -> None:
    """Train `course.steps` steps."""
    told = msgspec.json.decode(sys.argv[1], type=Rank)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{told.address}", rank=told.rank, world_size=told.world
    )
    if told.sleep is not None:
        batches, step = None, sleeping_step(told, told.sleep)
    else:
        batches, step = Batches(told.course), ddp_step(told) if told.system == "ddp" else pipeline_step(told)
    dist.barrier()
    last = time.monotonic()
    for number in range(told.course.steps):
        loss = step(batches.step(number) if batches is not None else {})
        now = time.monotonic()
        if told.rank == told.world - 1:
            row = {"step": number + 1, "loss": None if told.sleep else loss, "seconds": now - last}
            print(json.dumps(row), flush=True)
        last = now
    dist.barrier()
    time.sleep(LINGER_SECONDS)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
