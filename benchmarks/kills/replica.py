"""One replica group of torchft, as its `train_ddp.py` has it: started by `torchft_side.py`.

It trains the whole model on its part of each batch, and appends a row to a file for each step that it tried.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import torch
from benchmarks.race.course import Batches, Course
from torch import Tensor
from torch.distributed import GradBucket, TCPStore
from torch.futures import Future
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from farflung.runtime.parity.optimizers import build

LOOPBACK = "127.0.0.1"


class Timeouts(msgspec.Struct, frozen=True):
    """Seconds of torchft's timeouts; None: its default."""

    manager: float | None = None
    gloo: float | None = None


class Replica(msgspec.Struct, frozen=True):
    """What the process is told, as JSON in its first argument. `rows` is the file that it writes."""

    group: int
    groups: int
    lighthouse: str
    course: Course
    rows: str
    timeouts: Timeouts


class Tried(msgspec.Struct, frozen=True):
    """One row: a step that was tried by `participants` groups. `process` tells starts of a group apart."""

    process: int
    step: int
    committed: bool
    participants: int
    seconds: float


class LastingDDP(DistributedDataParallel):
    """Torchft's DDP, which outlives a lost peer.

    The hook of torchft 0.2.0 ends the process with an AssertionError when an allreduce over gloo fails,
    though the manager has noted that and drops the step. DDP reads the annotations of this one, as types.
    """

    @staticmethod
    def _comm_hook(state: Manager, bucket: GradBucket) -> Future[Tensor]:
        state.allreduce(bucket.buffer()).wait()
        done: Future[Tensor] = Future()
        done.set_result(bucket.buffer())
        return done


def part(batch: dict[str, Tensor], told: Replica) -> dict[str, Tensor]:
    """This group's samples, in torchft's way: split by the number of groups that there should be."""
    return {name: values.tensor_split(told.groups)[told.group] for name, values in batch.items()}


def main() -> None:
    """Train until killed."""
    told = msgspec.json.decode(sys.argv[1], type=Replica)
    torch.set_num_threads(1)
    store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    module, batches = told.course.model().train(), Batches(told.course)
    given, limits = told.timeouts, {}
    if given.manager is not None:
        limits["timeout"] = timedelta(seconds=given.manager)
    gloo = {} if given.gloo is None else {"timeout": timedelta(seconds=given.gloo)}
    manager = Manager(
        pg=ProcessGroupGloo(**gloo),
        min_replica_size=1,
        load_state_dict=lambda state: (
            module.load_state_dict(state["model"]),
            optimizer.load_state_dict(state["optimizer"]),
        ),
        state_dict=lambda: {"model": module.state_dict(), "optimizer": optimizer.state_dict()},
        replica_id=f"group_{told.group}",
        store_addr=LOOPBACK,
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=told.lighthouse,
        hostname=LOOPBACK,
        **limits,
    )
    model = LastingDDP(manager, module)
    optimizer = Optimizer(manager, build(told.course.optimizer(), model.parameters()))
    with Path(told.rows).open("ab", buffering=0) as rows:
        last = time.monotonic()
        while True:
            before = manager.batches_committed()
            batch = part(batches.step(manager.current_step()), told)
            optimizer.zero_grad()
            model(**batch).backward()
            optimizer.step()
            now = time.monotonic()
            row = Tried(
                os.getpid(),
                manager.current_step(),
                manager.batches_committed() > before,
                manager.num_participants(),
                now - last,
            )
            rows.write(msgspec.json.encode(row) + b"\n")
            last = now


if __name__ == "__main__":
    main()
