"""One executor for each worker, driven by hand: order of messages, empty gradients, evaluation, deadlocks."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
import torch
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import SideBySide, captured, microbatches, placed, planned, workers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.random_graphs import random_batch, random_graph, random_state
from torch import Tensor

from farflung.errors import PlanError
from farflung.opdag.graph import Graph
from farflung.opdag.partition import legal_positions
from farflung.planner import PlannedJob
from farflung.plans import FEEDER
from farflung.runtime.executor import Executor, SegmentShare
from farflung.runtime.footprint import required_bytes
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.parcel import Parcel
from farflung.runtime.parity.steps import gradient_difference
from farflung.runtime.torch_backend.segment import TorchSegment
from farflung.runtime.training import Training
from farflung.schedule import Unit

torch.set_num_threads(1)
SAMPLES, MICROBATCHES = 2, 3


def training(**changes: int) -> Training:
    return msgspec.structs.replace(Training(5, MICROBATCHES, SAMPLES, SGD(lr=0.1), seed=3), **changes)


class Network:
    """Executors whose parcels are delivered in a random order."""

    def __init__(self, graph: Graph, job: PlannedJob, state: dict[str, Tensor], settings: Training) -> None:
        self.graph, self.plan = graph, job.plan
        self.segments = [
            TorchSegment(segment, state, settings, placement.recompute)
            for segment, placement in zip(job.segments, job.plan.placements, strict=True)
        ]
        self.most_held = 0
        self.parcels: list[Parcel[Tensor]] = []
        self.log: list[Parcel[Tensor]] = []
        self.shares: list[SegmentShare] = []
        self.executors = {
            worker: Executor(
                job.plan, {n: self.segments[n] for n in job.plan.segments_of(worker)}, settings, self
            )
            for worker in job.plan.workers()
        }

    def send(self, parcel: Parcel[Tensor]) -> None:
        self.parcels.append(parcel)
        self.log.append(parcel)

    def ready(self, unit: Unit, shares: list[SegmentShare]) -> None:
        self.shares += shares

    def run(self, unit: int, batches: list[dict[str, Tensor]], draw: random.Random) -> float:
        self.feed(unit, batches)
        while len(self.shares) < len(self.segments):
            self.turn(draw)
        return sum(share.loss for share in sorted(self.shares, key=lambda share: share.segment))

    def feed(self, unit: int, batches: list[dict[str, Tensor]]) -> None:
        names = {entry.value: entry.name for entry in self.graph.inputs_of("input")}
        for edge in self.plan.edges:
            if edge.source == FEEDER:
                self.parcels += [
                    Parcel(unit, m, FEEDER, edge.target, edge.value, False, batch[names[edge.value]])
                    for m, batch in enumerate(batches)
                ]
        self.shares = []

    def turn(self, draw: random.Random) -> None:
        """Deliver a parcel, or run a task."""
        if self.parcels and draw.random() < 0.6:
            parcel = self.parcels.pop(draw.randrange(len(self.parcels)))
            if parcel.target != FEEDER:
                self.executors[self.plan.worker_of(parcel.target)].receive(parcel)
        else:
            draw.choice(list(self.executors.values())).run_next()
            self.most_held = max(self.most_held, *(len(s._tapes) for s in self.segments))

    def restart(self) -> None:
        """Drop the unit in flight everywhere, and all parcels that travel."""
        for executor in self.executors.values():
            executor.restart()
        self.parcels.clear()

    def gradients(self) -> dict[str, Tensor]:
        return {n: g for segment in self.segments for n, g in segment.gradients().items()}


def random_plan(graph: Graph, draw: random.Random) -> PlannedJob:
    legal = [at for at, ok in enumerate(legal_positions(graph)) if ok and 0 < at < len(graph.nodes)]
    cuts = sorted(draw.sample(legal, min(len(legal), draw.randint(1, 6))))
    placement = [draw.choice(workers(3)) for _ in range(len(cuts) + 1)]
    try:
        job = placed(graph, cuts, placement, MICROBATCHES, SAMPLES)
    except PlanError:
        job = placed(graph, cuts, ["worker-0"] * len(placement), MICROBATCHES, SAMPLES)
    window = draw.choice([1, 2, MICROBATCHES])
    return PlannedJob(msgspec.structs.replace(job.plan, window=window), job.segments)


@settings(max_examples=50)
@given(seed=st.integers(0, 10**6), one_use=st.booleans())
def test_random_graphs_on_random_workers(seed: int, one_use: bool) -> None:
    """Any cut on any workers computes what one segment does, with the same bits in any order of messages."""
    draw = random.Random(seed)
    graph = random_graph(seed, draw.randint(5, 25), 1 if one_use else None)
    batches = [random_batch(SAMPLES, seed + number) for number in range(MICROBATCHES)]
    whole = placed(graph, [], ["worker-0"], MICROBATCHES, SAMPLES)
    single = Network(graph, whole, random_state(graph, seed), training())
    expected = single.run(0, batches, draw)
    job = random_plan(graph, draw)
    losses, gradients = [], []
    for _ in range(2):
        network = Network(graph, job, random_state(graph, seed), training())
        losses.append(network.run(0, batches, draw))
        gradients.append(network.gradients())
    assert losses[0] == losses[1] == pytest.approx(expected, rel=1e-6, abs=1e-12)
    assert gradients[0].keys() == gradients[1].keys() == single.gradients().keys()
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])
    assert gradient_difference(gradients[0], single.gradients())[0] < 1e-4


def test_every_edge_is_answered_once() -> None:
    """Each value that was sent gets one gradient, empty where none travels: the window counts on it."""
    _, graph = captured(case("masked-pair"), SAMPLES)
    job = planned(graph, training(), 3)
    module = case("masked-pair").build()
    network = Network(graph, job, dict(module.named_parameters()), training())
    network.run(0, microbatches(case("masked-pair"), SAMPLES, MICROBATCHES, 0), random.Random(1))
    values = [(p.source, p.target, p.value, p.microbatch) for p in network.log if not p.gradient]
    answers = [(p.target, p.source, p.value, p.microbatch) for p in network.log if p.gradient]
    assert len(set(values)) == len(values)
    fed = [answer for answer in answers if answer[0] == FEEDER]
    assert sorted(set(answers) - set(fed)) == sorted(values)
    assert all(p.payload is None for p in network.log if p.gradient and p.target == FEEDER)
    differentiable = {(e.source, e.target, e.value) for e in job.plan.edges if e.differentiable}
    for parcel in network.log:
        if parcel.gradient:
            travels = (parcel.target, parcel.source, parcel.value) in differentiable
            assert (parcel.payload is not None) == travels


def test_units_that_are_over_are_ignored() -> None:
    module, graph = captured(case("chain"), SAMPLES)
    side = SideBySide(module, graph, planned(graph, training(), 2), training())
    side.accumulate(microbatches(case("chain"), SAMPLES, MICROBATCHES, 0))
    side.apply()
    executor = next(iter(side.pipeline._executors.values()))
    executor.receive(Parcel(0, 0, FEEDER, 0, 0, False, torch.zeros(1)))
    ours, theirs = side.accumulate(microbatches(case("chain"), SAMPLES, MICROBATCHES, 1))
    assert ours == theirs


@pytest.mark.parametrize("again", [False, True], ids=["keeping", "recomputing"])
def test_dropping_a_step_in_its_middle_keeps_nothing_of_it(again: bool) -> None:
    """A job that is stopped hands out its state in the room that gradients and tapes took."""
    module, graph = captured(case("batch-norm"), SAMPLES)
    job = planned(graph, training(), 1)
    placements = [msgspec.structs.replace(p, recompute=again) for p in job.plan.placements]
    job = PlannedJob(msgspec.structs.replace(job.plan, placements=placements), job.segments)
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    network = Network(graph, job, state, training())
    (executor,), (segment,) = network.executors.values(), network.segments
    before = {name: bytes(data) for name, data in segment.snapshot(state).items()}
    batches = microbatches(case("batch-norm"), SAMPLES, MICROBATCHES, 0)
    names = {entry.value: entry.name for entry in graph.inputs_of("input")}
    fed = [
        Parcel(0, m, FEEDER, edge.target, edge.value, False, batch[names[edge.value]])
        for m, batch in enumerate(batches)
        for edge in job.plan.edges
    ]
    for parcel in fed:
        executor.receive(parcel)
    while not segment.gradients() or not segment._tapes:
        assert executor.run_next()
    executor.end()
    for parcel in fed:
        executor.receive(parcel)
    assert not executor.run_next() and not executor._units
    assert not segment.gradients() and not segment._tapes and not segment._pending
    assert {name: bytes(data) for name, data in segment.snapshot(state).items()} == before


@pytest.mark.parametrize("again", [False, True], ids=["keeping", "recomputing"])
@pytest.mark.parametrize("name", ["gpt-dropout", "batch-norm"])
def test_a_unit_that_is_dropped_runs_again_with_the_same_bits(name: str, again: bool) -> None:
    """At any moment, also once all is ready; the executors go on to the next unit."""
    module, graph = captured(case(name), SAMPLES)
    job = planned(graph, training(), 3)
    placements = [msgspec.structs.replace(p, recompute=again) for p in job.plan.placements]
    job = PlannedJob(msgspec.structs.replace(job.plan, placements=placements), job.segments)
    batches = [microbatches(case(name), SAMPLES, MICROBATCHES, step) for step in range(2)]
    networks = [Network(graph, job, state_of(module), training()) for _ in range(2)]
    draw = random.Random(7)
    for unit in range(2):
        expected = networks[0].run(unit, batches[unit], draw)
        networks[1].run(unit, batches[unit], draw)
        for turns in (1, 40, 90, 0):
            networks[1].restart()
            networks[1].feed(unit, batches[unit])
            for _ in range(turns):
                networks[1].turn(draw)
        while not any(segment._losses for segment in networks[1].segments):
            networks[1].turn(draw)
        networks[1].restart()
        assert networks[1].run(unit, batches[unit], draw) == expected
        one, other = (network.gradients() for network in networks)
        assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
        assert sorted(networks[0].shares) == sorted(networks[1].shares)
        for network in networks:
            for executor in network.executors.values():
                executor.decide(unit, 0.5)
    states = [{n: t for s in network.segments for n, t in s.state().items()} for network in networks]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def state_of(module: torch.nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters and buffers."""
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in named.items()}


def test_evaluation_changes_nothing_and_keeps_no_tape() -> None:
    """BatchNorm's statistics and the parameters stay; the loss is that of `module.eval()`."""
    module, graph = captured(case("batch-norm"), SAMPLES)
    settings = training(validation_microbatches=2)
    side = SideBySide(module, graph, planned(graph, settings, 3), settings)
    before = {name: tensor.clone() for name, tensor in side.state.items()}
    batches = microbatches(case("batch-norm"), SAMPLES, 2, 0)
    loss = sum(share.loss for share in side.pipeline.run(0, batches))
    side.pipeline.decide(0, 1.0)
    assert all(torch.equal(side.state[name], tensor) for name, tensor in before.items())
    assert not side.gradients()[0]
    side.eager.eval()
    with torch.no_grad():
        expected = sum(float(side.eager(**batch)) for batch in batches) / 2
    assert loss == pytest.approx(expected, rel=1e-6)


def test_gradients_that_are_not_finite_are_reported() -> None:
    module, graph = captured(case("chain"), SAMPLES)
    side = SideBySide(module, graph, planned(graph, training(), 2), training())
    batches = microbatches(case("chain"), SAMPLES, MICROBATCHES, 0)
    batches[1]["y"] = torch.full_like(batches[1]["y"], math.inf)
    shares = side.pipeline.run(0, batches)
    assert not any(share.finite for share in shares)


def test_a_plan_without_progress_is_an_error() -> None:
    module, graph = captured(case("chain"), SAMPLES)
    job = planned(graph, training(), 2)
    pipeline = InProcessPipeline(graph, job.plan, job.segments, dict(module.named_parameters()), training())
    too_few = microbatches(case("chain"), SAMPLES, MICROBATCHES, 0)[:-1]
    with pytest.raises(PlanError, match="cannot make progress"):
        pipeline.run(0, too_few)


@pytest.mark.parametrize("again", [False, True])
def test_many_microbatches_hold_no_more_than_the_window(again: bool) -> None:
    """Gradient accumulation: 64 microbatches in a window of 4 are the sum that one process makes."""
    module, graph = captured(case("chain"), SAMPLES)
    settings = training(microbatches=64)
    job = planned(graph, settings, 3)
    placements = [msgspec.structs.replace(p, recompute=again) for p in job.plan.placements]
    plan = msgspec.structs.replace(job.plan, window=4, placements=placements)
    job = PlannedJob(plan, job.segments)
    batches = microbatches(case("chain"), SAMPLES, 64, 0)
    network = Network(graph, job, {n: t.detach().clone() for n, t in module.named_parameters()}, settings)
    loss = network.run(0, batches, random.Random(4))
    assert network.most_held <= 4
    side = SideBySide(module, graph, job, settings)
    ours, theirs = side.accumulate(batches)
    assert loss == ours == theirs
    gradients, expected = network.gradients(), side.gradients()[1]
    assert all(torch.equal(gradients[name], expected[name]) for name in expected)


def tensors_of(held: object, seen: set[int]) -> list[Tensor]:
    """Every tensor that an object of ours, or a container, leads to."""
    if isinstance(held, Tensor):
        return [held]
    if id(held) in seen:
        return []
    seen.add(id(held))
    if isinstance(held, dict):
        inner = list(held.values())
    elif isinstance(held, list | tuple):
        inner = list(held)
    else:
        inner = list(getattr(held, "__dict__", {}).values())
    return [tensor for each in inner for tensor in tensors_of(each, seen)]


@pytest.mark.parametrize("name", ["gpt", "gpt2-mask", "gpt2-fused-dropout", "resnet", "chain", "batch-norm"])
def test_memory_that_waits_for_accumulation_is_at_most_a_tape(name: str) -> None:
    """As the memory estimate counts tapes: values of a microbatch that take memory of their own."""
    module, graph = captured(case(name), SAMPLES)
    job = planned(graph, training(), 3)
    side = SideBySide(module, graph, job, training())
    names = {entry.value: entry.name for entry in graph.inputs_of("input")}
    batch = microbatches(case(name), SAMPLES, 1, 0)[0]
    known = {value: batch[name] for value, name in names.items()}
    unit = Unit(0, True, 0, MICROBATCHES)
    for segment in side.pipeline.segments:
        given = [e.value for e in segment.segment.inputs if e.kind == "input"] + segment.segment.receives
        known |= segment.forward(unit, 0, {value: known[value] for value in given})
    gradients: dict[int, Tensor] = {}
    for segment in reversed(side.pipeline.segments[1:]):
        segment.backward(unit, 0, gradients, gradients.__setitem__)
        tape = segment._tapes[0]
        state = {t.untyped_storage().data_ptr() for t in segment._state}
        waiting = {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
            for t in tensors_of({k: v for k, v in vars(tape).items() if k != "_way"}, set())
        }
        held = sum(size for pointer, size in waiting.items() if pointer not in state)
        eight, nine = (required_bytes(segment.segment, SAMPLES, window) for window in (8, 9))
        assert held <= nine - eight
