"""How much memory a worker's segments really take: they train in a process whose peak the kernel tells.

They run under the executor of a worker as hard as a plan may ask: all microbatches of the window come before
the first gradient does, then all gradients at once, inputs two windows ahead, for two steps; then the state
is handed out. What the process held before, warm as a worker is that has measured its speed, does not count.
Nor do gaps that glibc leaves between tensors: each above 128 kB gets pages of its own, which go back with it.

    python -m benchmarks.estimates.footprint < QUESTION   (msgpack; `ask` does it)
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from farflung.opdag import wire
from farflung.opdag.graph import ValueType
from farflung.opdag.segment import Segment
from farflung.plan import FEEDER, Edge, Plan
from farflung.runtime.training import Training

if TYPE_CHECKING:
    from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]


class Question(msgspec.Struct, frozen=True):
    """The segments of one worker of a plan, by number."""

    programs: dict[int, bytes]
    plan: Plan
    training: Training
    recompute: bool


def ask(question: Question) -> int:
    """Peak bytes of the segments, from a fresh process."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.estimates.footprint"],
        input=msgspec.msgpack.encode(question),
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MALLOC_MMAP_THRESHOLD_": str(128 * 1024),
            "PYTHONPATH": paths,
        },
        stdout=subprocess.PIPE,
        check=True,
    )
    return int(done.stdout)


def answer(question: Question) -> int:
    """Train the segments and return the bytes by which the process grew at its peak."""
    batch = question.training.microbatch_size
    segments = {number: wire.load_segment(data, batch) for number, data in question.programs.items()}
    warm_up()
    before = _settle()
    run(segments, question)
    return _status("VmHWM") - before


def warm_up() -> None:
    """Have everything loaded that is loaded when something computes for the first time."""
    import torch
    from torch import nn

    import farflung.runtime.executor  # noqa: F401
    from farflung.runtime.torch_backend.backend import TorchBackend

    TorchBackend().measure_tflops()

    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 8)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    loss = nn.functional.cross_entropy(model(torch.randn(2, 3, 8, 8)), torch.zeros(2, dtype=torch.long))
    loss.backward()
    optimizer.step()
    query = torch.randn(1, 2, 8, 8, requires_grad=True)
    nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()


def run(segments: dict[int, Segment], question: Question) -> None:
    """Two steps, and the state handed out."""
    from farflung.runtime.torch_backend.backend import TorchBackend

    training, state = question.training, _state(segments, question.training.microbatch_size)
    options = {"recompute": True} if question.recompute else {}
    runners = {n: TorchBackend().runner(s, state, training, **options) for n, s in segments.items()}
    driver = _Driver(question.plan, segments, runners, training)
    for unit in range(2):
        driver.step(unit)
    handed_out = [copy for runner in runners.values() for copy in runner.snapshot(state).values()]
    assert len(handed_out) == sum(len(segment.owned) for segment in segments.values())


def _state(segments: dict[int, Segment], batch: int) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for segment in segments.values():
        for entry in segment.inputs:
            if entry.kind in ("parameter", "buffer") and entry.name not in state:
                state[entry.name] = _made_up(segment.values[entry.value], batch)
    return state


def _made_up(kind: ValueType, batch: int) -> Tensor:
    import torch

    from farflung.runtime.torch_backend.tensors import DTYPES

    made = torch.empty(kind.shape_at(batch), dtype=DTYPES[kind.dtype])
    return made.normal_(std=0.02) if made.is_floating_point() else made.zero_()


class _Driver:
    """Plays everybody else: sends values and gradients, takes what is sent."""

    def __init__(
        self, plan: Plan, segments: dict[int, Segment], runners: dict[int, Any], training: Training
    ) -> None:
        from farflung.runtime.executor import Executor

        self._plan, self._segments, self._training = plan, segments, training
        self._executor = Executor(plan, runners, training, self)
        self._edges_in = [e for e in plan.edges if e.target in segments and e.source not in segments]
        self._edges_out = [e for e in plan.edges if e.source in segments and e.target not in segments]
        self._ready = False
        self._sent: Counter[tuple[int, bool]] = Counter()
        self._forwarded: set[int] = set()

    def send(self, parcel: Any) -> None:
        """It is on its way; nobody here holds it any longer."""
        if parcel.gradient:
            self._sent[parcel.microbatch, parcel.target == FEEDER] += 1
        else:
            self._forwarded.add(parcel.microbatch)

    def ready(self, unit: object, shares: object) -> None:
        self._ready = True

    def step(self, unit: int) -> None:
        """One training step: gradients come all at once, values as soon as they may."""
        count, window = self._plan.microbatches, self._plan.window
        self._ready = False
        for fed, ahead in ((True, 2 * window), (False, window)):
            for microbatch in range(min(ahead, count)):
                self._deliver(unit, microbatch, fed)
        while not self._ready:
            while self._executor.run_next():
                self._refill(unit)
            for microbatch in sorted(self._forwarded):
                self._return(unit, microbatch)
            self._forwarded.clear()
        self._executor.decide(unit, 1.0)

    def _refill(self, unit: int) -> None:
        """In place of a microbatch that has been given back comes another."""
        for fed, ahead in ((True, 2), (False, 1)):
            edges = sum((edge.source == FEEDER) == fed for edge in self._edges_in)
            whole = [m for (m, to_feeder), sent in self._sent.items() if to_feeder == fed and sent == edges]
            for microbatch in whole:
                del self._sent[microbatch, fed]
                if microbatch + ahead * self._plan.window < self._plan.microbatches:
                    self._deliver(unit, microbatch + ahead * self._plan.window, fed)

    def _deliver(self, unit: int, microbatch: int, fed: bool) -> None:
        for edge in self._edges_in:
            if (edge.source == FEEDER) == fed:
                self._post(unit, microbatch, edge, gradient=False)

    def _return(self, unit: int, microbatch: int) -> None:
        for edge in self._edges_out:
            self._post(unit, microbatch, edge, gradient=True)

    def _post(self, unit: int, microbatch: int, edge: Edge, gradient: bool) -> None:
        from farflung.runtime.parcel import Parcel

        source, target = (edge.target, edge.source) if gradient else (edge.source, edge.target)
        kind = self._segments[target].values[edge.value]
        full = edge.differentiable or not gradient
        payload = _made_up(kind, self._training.microbatch_size) if full else None
        self._executor.receive(Parcel(unit, microbatch, source, target, edge.value, gradient, payload))


def _settle() -> int:
    """Give back what is free, forget the peak so far; returns the resident bytes."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(name: str) -> int:
    (line,) = (line for line in _lines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def _lines() -> Iterator[str]:
    yield from Path("/proc/self/status").read_text().splitlines()


def main() -> None:
    """Answer the question on standard input."""
    question = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Question)
    gc.collect()
    sys.stdout.write(str(answer(question)))


if __name__ == "__main__":
    main()
