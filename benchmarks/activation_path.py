"""The files and calls that one activation passes from one worker's executor to the next worker's.

A broker, two workers with a real link over loopback TLS, and a submitter train a small model in this process.
The two workers share an event loop; the broker and the submitter run on another one, which is not traced. A
window opens when the first worker's executor sends an activation and closes when the second worker's executor
is given it. Counted are the calls of functions of farflung on the workers' threads: of the sending compute
thread only those within the send, of the other threads all, since they have nothing else to do. A window that
a heartbeat or a receipt falls into counts too much, so the window with the fewest calls is reported.

    python benchmarks/activation_path.py [--json] [--codec PAIR]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

import farflung

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import codec_name

from farflung.broker.security.authority import create_token
from farflung.broker.service import BrokerService
from farflung.broker.storage.store import Store
from farflung.client.api.job import Job
from farflung.client.output.run_folder import RunFolder
from farflung.client.run.submitter import train
from farflung.runtime.executor import Executor
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.transport.security.enrolment import enrol
from farflung.transport.security.identity import Identity
from farflung.transport.timeouts import Timeouts
from farflung.worker.options import WorkerOptions
from farflung.worker.service import WorkerService

SOURCE = str(Path(farflung.__file__).parent) + "/"
WIDTH, SAMPLES, STEPS = 256, 16, 12
WORKER_THREADS = ("farflung-compute", "farflung-codec", "workers")
Window = Counter[tuple[str, str]]


class Model(nn.Module):
    """Two equal layers, one for each worker, with a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean squared error."""
        return nn.functional.mse_loss(self.second(torch.tanh(self.first(x))), y)


class Tracer:
    """A profile function that counts calls between a send and the receipt of the same activation."""

    def __init__(self) -> None:
        self.windows: list[Window] = []
        self._window: Window | None = None
        self._sending: FrameType | None = None
        self._sender = 0
        self._place: tuple[int, ...] = ()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "return" and frame is self._sending:
            self._sending = None
        if event != "call" or not threading.current_thread().name.startswith(WORKER_THREADS):
            return
        code = frame.f_code
        if code is Executor._send.__code__:
            self._open(frame)
        if self._window is None or not code.co_filename.startswith(SOURCE):
            return
        here = threading.get_ident()
        if here != self._sender or self._sending is not None:
            self._window[_named(code)] += 1
        if code is Executor.receive.__code__ and here != self._sender:
            self._close(frame.f_locals["parcel"])

    def _open(self, frame: FrameType) -> None:
        given = frame.f_locals
        if self._window is None and not given["gradient"] and given["target"] not in given["self"]._segments:
            self._window, self._sending = Counter(), frame
            self._sender = threading.get_ident()
            self._place = (given["unit"].number, given["task"].microbatch, given["value"])

    def _close(self, parcel: Any) -> None:
        if self._window is not None and (parcel.unit, parcel.microbatch, parcel.value) == self._place:
            self.windows.append(self._window)
            self._window = None


def _named(code: CodeType) -> tuple[str, str]:
    return code.co_filename.removeprefix(SOURCE), code.co_qualname


async def identity_of(service: BrokerService, folder: Path, role: Any, name: str) -> Identity:
    """Join the broker."""
    token = await asyncio.to_thread(create_token, folder / "broker", role)
    return (await enrol(service.address, token, folder / name, role, name)).identity


async def work(identities: list[Identity], is_over: threading.Event) -> None:
    """Run the workers until the job is over."""
    services = []
    for identity in identities:
        services.append(WorkerService(WorkerOptions(identity, "127.0.0.1:0", 2**30, TorchBackend())))
        await services[-1].start()
    staying = [asyncio.create_task(service.stay_registered()) for service in services]
    await asyncio.to_thread(is_over.wait)
    for task in staying:
        task.cancel()
    await asyncio.gather(*staying, return_exceptions=True)
    for service in services:
        await service.stop("the benchmark is over")


async def trace(folder: Path, codec: str | None) -> Window:
    """Train, and give back the calls of the cleanest window."""
    generator = torch.Generator().manual_seed(0)
    items = [{name: torch.randn(WIDTH, generator=generator) for name in "xy"} for _ in range(SAMPLES)]
    job = Job(
        model=Model(), data=items, optimizer=SGD(lr=0.01), batch=SAMPLES, microbatches=1, steps=STEPS,
        **({"codec": codec} if codec else {}),
    )  # fmt: skip
    tracer, is_over = Tracer(), threading.Event()
    with Store(folder / "broker") as store:
        service = BrokerService(folder / "broker", store, Timeouts())
        await service.start("127.0.0.1:0")
        running = asyncio.create_task(service.run())
        workers = [await identity_of(service, folder, "worker", name) for name in ("one", "two")]
        submitter = await identity_of(service, folder, "submitter", "desk")
        threading.setprofile(tracer)
        thread = threading.Thread(target=lambda: asyncio.run(work(workers, is_over)), name="workers")
        thread.start()
        try:
            summary = await train(job, submitter, RunFolder.create(folder / "run"), workers=2)
        finally:
            is_over.set()
            await asyncio.to_thread(thread.join)
            threading.setprofile(None)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await service.stop()
    if not tracer.windows:
        sys.exit(f"no activation went from one worker to the other: {summary}")
    return min(tracer.windows, key=lambda window: window.total())


def result_of(window: Window) -> dict[str, Any]:
    """The figures, and every function with its number of calls, by file."""
    files: dict[str, dict[str, int]] = {}
    for (file, function), count in sorted(window.items()):
        files.setdefault(file, {})[function] = count
    return {"files": len(files), "calls": window.total(), "functions": files}


def main() -> None:
    """Trace a plain and a coded activation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--codec", type=codec_name, default="int8", metavar="PAIR", help="of the coded activation"
    )
    options = parser.parse_args()
    results = {}
    for name, codec in (("dense", None), (options.codec, options.codec)):
        with tempfile.TemporaryDirectory() as folder:
            results[name] = result_of(asyncio.run(trace(Path(folder), codec)))
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for name, result in results.items():
        print(f"{name}: {result['files']} files, {result['calls']} calls")
        for file, functions in result["functions"].items():
            print(f"  {file}: " + ", ".join(f"{f} {n}" if n > 1 else f for f, n in functions.items()))


if __name__ == "__main__":
    main()
