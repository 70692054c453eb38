"""What a home worker's compute thread sends to a stranger: with noise, whatever the framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest
import torch
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import captured, microbatches, placed
from tests.worker.loads import limits
from tests.worker.running_thread import PATIENCE_SECONDS, eventually

from farflung.plans import FEEDER, LinkCodec
from farflung.plans.codec_pair import codebook_of
from farflung.protocol.messages import Load
from farflung.protocol.worker import SegmentProgram
from farflung.runtime.backend import AnyBackend
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.parcel import Coded, Parcel
from farflung.runtime.parity.steps import named_state
from farflung.runtime.state import trained_shapes
from farflung.runtime.torch_backend import tensors
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.runtime.training import Training
from farflung.worker.computing.compute import ComputeThread
from farflung.worker.computing.outcomes import Outgoing
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.worker.events import Filled, Verified

torch.set_num_threads(1)
SAMPLES, LEVEL = 2, 0.25


def load_of(noise: float, codec: str = "") -> tuple[Load, dict[str, bytes], list[tuple[int, memoryview]]]:
    """The home worker's half of a GPT, with its state and one microbatch of inputs."""
    module, graph = captured(case("gpt"), SAMPLES)
    job = placed(graph, [len(graph.nodes) // 2], ["home", "stranger"], 1, SAMPLES)
    codecs = [LinkCodec("home", "stranger", codec, 4.0)] if codec else []
    plan = msgspec.structs.replace(job.plan, home=[0], codecs=codecs)
    training = Training(3, 1, SAMPLES, SGD(0.1), home_noise=noise)
    training = training.with_codecs(codebook_of([codec])) if codec else training
    state = {name: bytes(tensors.memory(t.detach())) for name, t in named_state(module, graph).items()}
    sizes = {name: len(state[name]) for name in job.segments[0].owned}
    programs = [SegmentProgram(0, job.programs[0], sizes, trained_shapes(job.segments[0]))]
    (batch,) = microbatches(case("gpt"), SAMPLES, 1, 0)
    names = {entry.value: entry.name for entry in graph.inputs_of("input")}
    inputs = [
        (edge.value, tensors.memory(batch[names[edge.value]].contiguous()))
        for edge in plan.edges
        if edge.source == FEEDER and edge.target == 0
    ]
    return Load("job-1", 1, plan, training, programs, {}, "desk"), state, inputs


class HomeWorker:
    """A compute thread that runs the half, and what it said and sent."""

    def __init__(self, noise: float, backend: AnyBackend, codec: str = "") -> None:
        self.load, state, self._inputs = load_of(noise, codec)
        self.said: list[object] = []
        self.thread = ComputeThread("home", 10**9, backend, self.said.append, self.said.append)
        self.thread.start()
        receiver = StateReceiver(self.load, [0], 10**9, backend.allocate)
        for (_, name), buffer in receiver.buffers.items():
            buffer[:] = state[name]
        self.thread.prepare(self.load, receiver, limits())
        eventually(lambda: any(isinstance(one, Verified) for one in list(self.said)))

    def sent(self) -> dict[int, bytes]:
        """The bytes of each value that it sends the stranger in its first unit."""
        self.thread.begin(self.load.key)
        for value, data in self._inputs:
            self.thread.receive(self.load.key, Parcel(0, 0, FEEDER, 0, value, False, Coded(0, data)))
        due = {edge.value for edge in self.load.plan.edges if edge.source == 0}

        def found() -> dict[int, bytes]:
            parcels = [one.parcel for one in list(self.said) if isinstance(one, Outgoing)]
            return {p.value: bytes(p.payload.data) for p in parcels if p.target == 1 and p.payload}

        eventually(lambda: found().keys() == due)
        return found()

    def regroup(self) -> None:
        """Go on in another attempt, with the state as it is."""
        self.said.clear()
        self.load = msgspec.structs.replace(self.load, attempt=2)
        self.thread.regroup(self.load)
        eventually(lambda: any(isinstance(one, Filled) for one in list(self.said)))


@contextmanager
def home_worker(noise: float, backend: AnyBackend | None = None, codec: str = "") -> Iterator[HomeWorker]:
    worker = HomeWorker(noise, backend or TorchBackend(), codec)
    try:
        yield worker
    finally:
        worker.thread.close()
        worker.thread.join(PATIENCE_SECONDS)


def jax() -> AnyBackend:
    pytest.importorskip("jax")
    from farflung.runtime.jax_backend.backend import JaxBackend

    return JaxBackend()


@pytest.mark.parametrize("backend", [TorchBackend, jax])
def test_a_stranger_receives_values_with_the_noise_that_was_asked_for(
    backend: Callable[[], AnyBackend],
) -> None:
    with home_worker(0.0, backend()) as plain, home_worker(LEVEL, backend()) as noisy:
        clean, blurred = plain.sent(), noisy.sent()
    for value, data in clean.items():
        exact = np.frombuffer(data, np.float32)
        noise = np.frombuffer(blurred[value], np.float32) - exact
        deviations = 6.0  # of the estimate: a false alarm in 500 million values
        tolerance = deviations * LEVEL / np.sqrt(2 * noise.size)
        found = noise.std() / np.sqrt(np.square(exact).mean())
        assert -tolerance < found - LEVEL < LEVEL / 4 + tolerance  # larger rows have more noise


def test_a_unit_that_runs_again_sends_the_same_bits_and_another_process_other_ones() -> None:
    with home_worker(LEVEL) as first, home_worker(LEVEL) as second:
        sent = first.sent()
        first.regroup()
        assert first.sent() == sent
        other = second.sent()
        assert all(other[value] != data for value, data in sent.items())


def test_a_codec_writes_the_value_with_its_noise() -> None:
    with home_worker(0.0, codec="int8/int8") as plain, home_worker(LEVEL, codec="int8/int8") as noisy:
        clean, blurred = plain.sent(), noisy.sent()
    assert all(clean[value] != data and len(clean[value]) == len(data) for value, data in blurred.items())
