"""How much memory a worker's segments really take: they train in a process whose peak the kernel tells.

They run under the executor of a worker as hard as a plan may ask: all microbatches of the window come before
the first gradient does, then all gradients at once, inputs two windows ahead; then the state is handed out.
What the process held before, warm as one is that has trained a step, does not count beside the state. Nor do
gaps that glibc leaves between tensors: each above 32 kB gets pages of its own, which go back with it.

    python -m benchmarks.estimates.footprint < QUESTION   (msgpack; `ask` does it)
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from farflung.opdag import wire
from farflung.opdag.analysis import changed_by_training
from farflung.opdag.form import Form
from farflung.opdag.graph import ValueType
from farflung.opdag.segment import Segment
from farflung.plans import FEEDER, Edge, Plan
from farflung.runtime.backend import AnyBackend
from farflung.runtime.executor import Executor
from farflung.runtime.frameworks import backend_called
from farflung.runtime.optimizers.slots import slot_bytes
from farflung.runtime.parcel import Parcel
from farflung.runtime.training import Training
from farflung.workload.footprint import NOTHING, Needs

ROOT = Path(__file__).resolve().parents[2]

PAGED = 32 * 1024
"""Bytes: what is larger leaves no gap. With 128 kB gaps were 5.5 of 197 MB in a segment of ResNet-101."""


class Question(msgspec.Struct, frozen=True):
    """The segments of one worker of a plan, by number, and what computes them."""

    programs: dict[int, bytes]
    plan: Plan
    training: Training
    recompute: bool
    backend: str = "torch"


class Answer(msgspec.Struct, frozen=True):
    """Peak bytes of the segments, and what their compiled programs are said to take, if they are compiled."""

    peak_bytes: int
    compiled_bytes: int | None


def ask(question: Question) -> Answer:
    """Of a fresh process."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.estimates.footprint"],
        input=msgspec.msgpack.encode(question),
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MALLOC_MMAP_THRESHOLD_": str(PAGED),
            "PYTHONPATH": paths,
        },
        stdout=subprocess.PIPE,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Answer)


def answer(question: Question) -> Answer:
    """Train the segments here."""
    batch = question.training.microbatch_size
    segments = {number: wire.load_segment(data, batch) for number, data in question.programs.items()}
    backend = backend_called(question.backend)
    if question.backend == "torch":
        warm_up(backend)
    state = _state(segments, batch, backend)
    options = {"recompute": True} if question.recompute else {}
    runners = {n: backend.runner(s, state, question.training, **options) for n, s in segments.items()}
    said = [runner.compile() for runner in runners.values()]
    driver = _Driver(question.plan, segments, runners, question.training, backend)
    driver.step(0)
    before = _settle() - _held(segments, question.training)
    driver.step(1)
    changed = {number: changed_by_training(segment) for number, segment in segments.items()}
    handed_out = [copy for n, runner in runners.items() for copy in runner.snapshot(changed[n]).values()]
    assert len(handed_out) == sum(len(changed[n].intersection(s.owned)) for n, s in segments.items())
    return Answer(_status("VmHWM") - before, _compiled_bytes(said, question))


def _held(segments: dict[int, Segment], training: Training) -> int:
    """Bytes of the state between two steps: what is trained, with its moments, and buffers."""
    found: dict[str, int] = {}
    for segment in segments.values():
        for entry in segment.inputs:
            if entry.kind in ("parameter", "buffer"):
                kind = segment.values[entry.value]
                found[entry.name] = size = kind.bytes(training.microbatch_size)
                if entry.trainable:
                    shape = kind.shape_at(training.microbatch_size)
                    found[entry.name] += sum(slot_bytes(training.optimizer, entry.name, shape, size).values())
    return sum(found.values())


def _compiled_bytes(said: list[Needs[float] | None], question: Question) -> int | None:
    together = NOTHING
    for needs in said:
        if needs is None:
            return None
        together = together.beside(needs.footprint(question.plan.window, question.recompute))
    return int(together.bytes)


def warm_up(backend: AnyBackend) -> None:
    """Have everything loaded that torch loads when something computes for the first time."""
    import torch
    from torch import nn

    backend.measure_tflops()

    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 8)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    loss = nn.functional.cross_entropy(model(torch.randn(2, 3, 8, 8)), torch.zeros(2, dtype=torch.long))
    loss.backward()
    optimizer.step()
    query = torch.randn(1, 2, 8, 8, requires_grad=True)
    nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()


def _state(segments: dict[int, Segment], batch: int, backend: AnyBackend) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for segment in segments.values():
        for entry in segment.inputs:
            if entry.kind in ("parameter", "buffer") and entry.name not in state:
                state[entry.name] = _made_up(segment.values[entry.value], batch, backend)
    return state


def _made_up(kind: ValueType, batch: int, backend: AnyBackend) -> Any:
    """As if a link had filled it: random numbers, the same block again and again; else zeros."""
    size = kind.bytes(batch)
    buffer = backend.allocate(size) if size else memoryview(b"")
    flat = np.frombuffer(buffer, np.uint8)
    if kind.dtype == "float32":
        block = np.random.default_rng(0).normal(0.0, 0.02, 4096).astype(np.float32).view(np.uint8)
        for start in range(0, size, len(block)):
            part = flat[start : start + len(block)]
            part[:] = block[: len(part)]
    elif size:
        flat[:] = 0
    return backend.array(buffer, Form.of(kind, batch))


class _Driver:
    """Plays everybody else: sends values and gradients, takes what is sent."""

    def __init__(
        self,
        plan: Plan,
        segments: dict[int, Segment],
        runners: dict[int, Any],
        training: Training,
        backend: AnyBackend,
    ) -> None:
        self._plan, self._segments, self._training, self._backend = plan, segments, training, backend
        self._executor = Executor(plan, runners, training, self)
        self._edges_in = [e for e in plan.edges if e.target in segments and e.source not in segments]
        self._edges_out = [e for e in plan.edges if e.source in segments and e.target not in segments]
        self._ready = False
        self._sent: Counter[tuple[int, bool]] = Counter()
        self._forwarded: set[int] = set()
        self._gone: set[tuple[int, int]] = set()
        self._held: list[tuple[int, Edge]] = []
        self._before = {number: _before(number, plan, segments) for number in segments}

    def send(self, parcel: Any) -> None:
        """It is on its way; nobody here holds it any longer."""
        if parcel.gradient:
            self._sent[parcel.microbatch, parcel.target == FEEDER] += 1
        else:
            self._forwarded.add(parcel.microbatch)
            self._gone.add((parcel.source, parcel.microbatch))

    def ready(self, unit: object, shares: object) -> None:
        self._ready = True

    def step(self, unit: int) -> None:
        """One training step: gradients come all at once, values as soon as they may."""
        count, window = self._plan.microbatches, self._plan.window
        self._ready = False
        self._gone.clear()
        for fed, ahead in ((True, 2 * window), (False, window)):
            for microbatch in range(min(ahead, count)):
                self._deliver(unit, microbatch, fed)
        while not self._ready:
            while self._executor.run_next():
                self._refill(unit)
                self._let_go(unit)
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
        """Of others nothing that is made of what segments here have not sent yet."""
        self._held += [(microbatch, edge) for edge in self._edges_in if (edge.source == FEEDER) == fed]
        self._let_go(unit)

    def _let_go(self, unit: int) -> None:
        held, self._held = self._held, []
        for microbatch, edge in held:
            before = () if edge.source == FEEDER else self._before[edge.target]
            if all((number, microbatch) in self._gone for number in before):
                self._post(unit, microbatch, edge, gradient=False)
            else:
                self._held.append((microbatch, edge))

    def _return(self, unit: int, microbatch: int) -> None:
        for edge in self._edges_out:
            self._post(unit, microbatch, edge, gradient=True)

    def _post(self, unit: int, microbatch: int, edge: Edge, gradient: bool) -> None:
        source, target = (edge.target, edge.source) if gradient else (edge.source, edge.target)
        kind = self._segments[target].values[edge.value]
        full = edge.differentiable or not gradient
        payload = _made_up(kind, self._training.microbatch_size, self._backend) if full else None
        self._executor.receive(Parcel(unit, microbatch, source, target, edge.value, gradient, payload))


def _before(segment: int, plan: Plan, here: Container[int]) -> set[int]:
    """Those of the segments `here` that make what `segment` is made of."""
    found = {segment}
    for edge in sorted(plan.edges, key=lambda edge: -edge.target):
        if edge.target in found:
            found.add(edge.source)
    return {number for number in found - {segment} if number in here}


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
    sys.stdout.buffer.write(msgspec.json.encode(answer(question)))


if __name__ == "__main__":
    main()
