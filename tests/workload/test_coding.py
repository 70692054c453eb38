"""What codecs take of a worker: the planner says never less than the worker asks for, and not much more."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

import msgspec
import pytest
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import captured
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planner.codecs.test_compressed import fleet, workload
from tests.support.random_graphs import random_graph

from farflung.errors import PlanError
from farflung.opdag.form import Form
from farflung.opdag.graph import Graph
from farflung.opdag.partition import legal_positions
from farflung.planner import place
from farflung.planner.assignment import Assignment, Options, memory_by_worker
from farflung.planner.codecs.wishes import memory_of, scheduler_for
from farflung.planner.registry import scheduler
from farflung.planner.schedulers.opfence import opfence
from farflung.plans import CodecWishes, Topology
from farflung.plans.codec_pair import DENSE, codebook_of
from farflung.runtime.coding import coding_bytes
from farflung.runtime.footprint import worker_bytes
from farflung.runtime.optimizers.declared import AdamW
from farflung.runtime.optimizers.memory import memory_of_updates
from farflung.runtime.training import Training
from farflung.simulator import Conditions
from farflung.workload import workload_of
from farflung.workload.coding import CodingMemory

BATCH, WINDOW, MICROBATCHES = 2, 2, 3
RUNGS = ["int8", "row-topk30-int4/masked30-int4", "axes10/axes100-dithered", "token-mean:axes30"]
CONDITIONS = Conditions()


def on_workers(graph: Graph, seed: int, workers: int) -> Assignment | None:
    """A random cut, on workers in turn: some come back."""
    legal = [at for at, ok in enumerate(legal_positions(graph)) if ok and 0 < at < len(graph.nodes)]
    draw = random.Random(seed)
    cuts = tuple(sorted(draw.sample(legal, min(len(legal), draw.randint(1, 4)))))
    names = tuple((f"w{draw.randrange(workers)}",) for _ in range(len(cuts) + 1))
    return Assignment(cuts, names, MICROBATCHES, WINDOW) if len(set(names)) > 1 else None


def as_planned(graph: Graph, seed: int) -> Assignment | None:
    """A random cut, on workers each of whom has one segment; the last may have the first one's, too."""
    drawn = on_workers(graph, seed, 3)
    if drawn is None:
        return None
    count = len(drawn.workers)
    names = [f"w{number}" for number in range(count)]
    if seed % 2 and count > 2:
        names[-1] = names[0]
    return replace(drawn, workers=tuple((name,) for name in names))


def asked_and_said(
    graph: Graph, assignment: Assignment, rung: str, sample: bool, receivers: int | None = None
) -> list[tuple[int, float]]:
    """For each worker what it asks for its codecs, and by how much more the planner plans with them.

    A value goes to at most so many `receivers`; without, to as many segments as there are workers.
    """
    codebook = codebook_of([rung])
    training = Training(2, MICROBATCHES, BATCH, AdamW(lr=1e-3)).with_codecs(codebook, sample)
    made, bare = (
        place(graph, assignment, BATCH),
        workload_of(graph, MICROBATCHES, BATCH, updates=memory_of_updates(training.optimizer)),
    )
    names = {name for (name,) in assignment.workers}
    coded = bare.coded(CodingMemory.of(codebook, sample), receivers or len(names))
    dense, said = (memory_by_worker(each, assignment) for each in (bare, coded))
    found = []
    for name in sorted(names):
        mine = [made.segments[number] for number in made.plan.segments_of(name)]
        asked = coding_bytes(name, made.plan, training, mine)
        if all(segment.nodes for segment in mine):  # else it is no segment that the planner makes
            remade = dict.fromkeys(range(len(made.segments)), False)
            whole = worker_bytes(mine, BATCH, WINDOW, remade, memory_of_updates(training.optimizer))
            assert whole + asked <= said[name]
        found.append((asked, said[name] - dense[name]))
    return found


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("name", ["gpt", "gpt-autocast", "unet"])
def test_the_planner_plans_with_what_workers_ask_for_their_codecs(name: str, rung: str) -> None:
    _, graph = captured(case(name), BATCH)
    for seed in range(6):
        assignment = on_workers(graph, seed, 3)
        if assignment is not None:
            for asked, said in asked_and_said(graph, assignment, rung, sample=seed % 2 == 0):
                assert asked <= said + 1


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), rung=st.sampled_from(RUNGS))
def test_no_graph_has_codecs_that_take_more_than_was_planned(seed: int, rung: str) -> None:
    graph = random_graph(seed)
    assignment = on_workers(graph, seed, 3)
    if assignment is None or not any(entry.trainable for entry in graph.inputs):
        return
    with suppress(PlanError):  # a parameter of several segments must stay on one worker
        for asked, said in asked_and_said(graph, assignment, rung, sample=False):
            assert asked <= said + 1


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), rung=st.sampled_from(RUNGS))
def test_where_each_worker_has_one_segment_or_the_first_and_the_last_no_value_goes_to_more_than_the_others(
    seed: int, rung: str
) -> None:
    """As schedulers are asked: with one receiver less than there are workers."""
    graph = random_graph(seed)
    assignment = as_planned(graph, seed)
    if assignment is None or not any(entry.trainable for entry in graph.inputs):
        return
    others = len(set(assignment.workers)) - 1
    with suppress(PlanError):
        for asked, said in asked_and_said(graph, assignment, rung, sample=False, receivers=others):
            assert asked <= said + 1


@pytest.mark.parametrize("rung", RUNGS)
def test_of_two_neighbours_the_planner_plans_with_no_byte_too_much(rung: str) -> None:
    """One value crosses, and one node reads it."""
    _, graph = captured(case("chain"), BATCH)
    middle = next(at for at in range(len(graph.nodes) // 2, len(graph.nodes)) if legal_positions(graph)[at])
    assignment = Assignment((middle,), (("a",), ("b",)), MICROBATCHES, WINDOW)
    for asked, said in asked_and_said(graph, assignment, rung, sample=True):
        assert asked == pytest.approx(said, abs=1)


@pytest.mark.parametrize("codecs", [(), ("int8",)])
def test_home_workers_ask_for_noised_copies_of_what_they_send_and_the_planner_plans_with_them(
    codecs: tuple[str, ...],
) -> None:
    _, graph = captured(case("gpt"), BATCH)
    plain = Training(2, MICROBATCHES, BATCH, AdamW(lr=1e-3)).with_codecs(codecs)
    noisy = msgspec.structs.replace(plain, home_noise=0.1)
    bare = workload_of(graph, MICROBATCHES, BATCH, updates=memory_of_updates(plain.optimizer))
    for assignment in filter(None, (on_workers(graph, seed, 3) for seed in range(6))):
        made = place(graph, assignment, BATCH)
        without, said = (
            memory_by_worker(bare.coded(CodingMemory.of(codecs, False, noise), 3), assignment)
            for noise in (False, True)
        )
        for name in made.plan.workers():
            numbers = made.plan.segments_of(name)
            mine = [made.segments[number] for number in numbers]
            plan = msgspec.structs.replace(made.plan, home=numbers)
            before, asked = (coding_bytes(name, plan, one, mine) for one in (plain, noisy))
            sent = sum(one.bytes for one in plan.edges if one.source in numbers and one.target not in numbers)
            assert WINDOW * sent <= asked - before <= said[name] - without[name] + 1
            assert coding_bytes(name, made.plan, noisy, mine) == before  # a stranger


@pytest.mark.parametrize("codec", ["int8", "topk10-bf16"])
@pytest.mark.parametrize("replicas", [2, 3])
def test_the_planner_plans_with_what_workers_ask_for_codecs_on_sums(codec: str, replicas: int) -> None:
    _, graph = captured(case("gpt"), BATCH)
    one = on_workers(graph, 1, 3)
    assert one is not None
    names = tuple(tuple(f"{name}-{copy}" for copy in range(replicas)) for (name,) in one.workers)
    shares = tuple(1 + (copy == 0) * (MICROBATCHES - replicas) for copy in range(replicas))
    assignment = replace(one, workers=names, shares=shares, sum_codec=codec)
    training = Training(2, MICROBATCHES, BATCH, AdamW(lr=1e-3)).with_codecs((codec,))
    updates = memory_of_updates(training.optimizer)
    workload = workload_of(graph, MICROBATCHES, BATCH, updates=updates)
    said = memory_by_worker(workload.coded(CodingMemory.of((codec,), False), 3 * replicas), assignment)
    made = place(graph, assignment, BATCH).unfolded(BATCH, {})
    assert made.plan.has_coded_sums
    remade = dict.fromkeys(range(len(made.segments)), False)
    for worker in made.plan.workers():
        numbers = set(made.plan.segments_of(worker))
        mine = [made.segments[number] for number in numbers]
        whole = worker_bytes(mine, BATCH, WINDOW, remade, updates) + made.plan.sum_bytes(numbers)
        assert whole + coding_bytes(worker, made.plan, training, mine) <= said[worker] + 1


def with_memory(gigabytes: float) -> Topology:
    net = fleet(10)
    workers = tuple(replace_memory(worker, gigabytes) for worker in net.workers)
    return Topology(workers, net.latency_ms, net.bandwidth_mbps)


def replace_memory(worker: object, gigabytes: float) -> object:
    return worker.__class__(worker.id, worker.site, worker.tflops, gigabytes)  # type: ignore[attr-defined, call-arg]


@pytest.mark.parametrize("name", ["op-fence", "auto", "equal-count"])
def test_a_plan_leaves_room_for_codecs(name: str) -> None:
    """Devices that hold the plan to the byte get another one with codecs, or none: never one too large."""
    wishes, options, job = CodecWishes("int8/int4-stochastic"), Options(workers=3, window=4), workload()
    search = scheduler(name)
    plain, coded = search, scheduler_for(wishes, search, CONDITIONS)
    needed = {}
    for kind, plan in (("plain", plain), ("coded", coded)):
        made = plan(fleet(10), job, options)
        needed[kind] = max(memory_by_worker(made.workload, made.assignment).values()) * 1.0001 / 1e9
        again = plan(with_memory(needed[kind]), job, options)
        assert max(memory_by_worker(again.workload, again.assignment).values()) <= needed[kind] * 1e9
    assert needed["plain"] < needed["coded"]
    with suppress(PlanError):
        tight = coded(with_memory(needed["plain"]), job, options)
        assert max(memory_by_worker(tight.workload, tight.assignment).values()) <= needed["plain"] * 1e9


@pytest.mark.parametrize(("codec", "noised"), [("int8", False), ("int8", True), (DENSE, True)])
def test_other_numbers_of_microbatches_are_planned_with_codecs_and_noise_too(
    codec: str, noised: bool
) -> None:
    wishes, job = CodecWishes(codec), workload()
    seen = []

    def noting(topology: Topology, given: object, options: Options) -> object:
        seen.extend([given, *options.alternatives])
        return opfence(topology, job, replace(options, alternatives=()))

    options = Options(alternatives=(replace(job, microbatches=2),))
    scheduler_for(wishes, noting, CONDITIONS, noised)(fleet(10), job, options)  # type: ignore[arg-type]
    expected = memory_of(wishes, noised)
    assert len(seen) >= 2 and expected is not None and expected.noised == noised
    assert {each.codecs for each in seen} == {expected}  # type: ignore[attr-defined]


def test_what_is_no_float_that_codecs_write_takes_nothing() -> None:
    memory = CodingMemory.of(("int8",), False)
    assert memory is not None and CodingMemory.of((), True) is None
    for form in (Form("float64", (4, 4)), Form("int64", (4,)), Form("float32", (0, 4))):
        assert memory.value(form).bytes(9) == 0
    assert memory.value(Form("bfloat16", (4, 4))).bytes(9) < memory.value(Form("float32", (4, 4))).bytes(9)
