"""The cut model trains as the user's module does: bit for bit wherever the same sums run in the same order.

Two things add the same numbers in another order than one autograd run, and so agree to rounding only:
a parameter with several uses in several segments (eager adds both uses in each microbatch, we add each use
over all microbatches and then the uses), and a value with three or more consumers (eager adds their gradients
in the order of its graph, we add what came from each segment).
"""

from __future__ import annotations

import copy
import random

import msgspec
import pytest
import torch
from benchmarks.zoo import CASES, Batch, Case, case
from benchmarks.zoo.batches import tokens
from benchmarks.zoo.gpt import config
from benchmarks.zoo.side_by_side import SideBySide, captured, microbatches, placed, planned, workers
from benchmarks.zoo.structures import Chain
from examples.gpt import GPT
from torch import Tensor, nn

from farflung.errors import PlanError
from farflung.opdag.graph import Graph
from farflung.opdag.partition import legal_positions
from farflung.planner import PlannedJob
from farflung.runtime.optimizers.clipping import clip_scale, gradient_norm
from farflung.runtime.optimizers.declared import SGD, AdamW, Optimizer
from farflung.runtime.parity.steps import gradient_difference, named_state, parameter_difference
from farflung.runtime.training import Training

torch.set_num_threads(1)

OPTIMIZERS = [AdamW(lr=1e-2), SGD(lr=0.05, momentum=0.9)]
MICROBATCHES = 3
SAMPLES = 2
NAMES = [entry.name for entry in CASES]
LEGAL = {
    "chain": 10, "long-skip": 16, "frozen": 14, "shared-module": 12, "masked-pair": 19, "shared-buffer": 15,
    "batch-norm": 17,
}  # fmt: skip
"""How many places there are to cut a small structure at: all of them are tried."""


def subject(name: str) -> tuple[nn.Module, Graph]:
    return captured(case(name), SAMPLES)


def training(optimizer: Optimizer, samples: int = SAMPLES, clip: float | None = None) -> Training:
    return Training(100, MICROBATCHES, samples, optimizer, seed=5, clip=clip)


def same_bits(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)


def require_equal(side: SideBySide, subject_case: Case, steps: int, samples: int = SAMPLES) -> None:
    for step in range(steps):
        ours, theirs = side.accumulate(microbatches(subject_case, samples, MICROBATCHES, step))
        assert ours == theirs
        assert same_bits(*side.gradients())
        side.apply()
        assert same_bits(*side.states())


def require_close(side: SideBySide, subject_case: Case, steps: int) -> None:
    for step in range(steps):
        ours, theirs = side.accumulate(microbatches(subject_case, SAMPLES, MICROBATCHES, step))
        assert ours == pytest.approx(theirs, rel=1e-6)
        assert gradient_difference(*side.gradients())[0] < 1e-5
        side.apply()
    if isinstance(side.training.optimizer, SGD):
        assert parameter_difference(*side.states())[0] < 1e-5


@pytest.mark.cases(40)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["adamw", "sgd"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("name", NAMES)
def test_cut_model_trains_as_eager(name: str, count: int, optimizer: Optimizer) -> None:
    module, graph = subject(name)
    plan = planned(graph, training(optimizer), count)
    assert plan.plan.workers() == workers(count)
    side = SideBySide(module, graph, plan, training(optimizer))
    if count > 1 and case(name).tolerance:
        require_close(side, case(name), 3)
    else:
        require_equal(side, case(name), 3)


def random_placement(graph: Graph, draw: random.Random, settings: Training) -> PlannedJob:
    """Segments cut anywhere that is legal, dealt to workers in any order, several to a worker."""
    legal = legal_cuts(graph)
    cuts = sorted(draw.sample(legal, min(len(legal), draw.randint(1, 6))))
    names = workers(draw.randint(1, 4))
    return placed_somewhere(graph, cuts, [draw.choice(names) for _ in range(len(cuts) + 1)])


def legal_cuts(graph: Graph) -> list[int]:
    return [at for at, ok in enumerate(legal_positions(graph)) if ok and 0 < at < len(graph.nodes)]


def placed_somewhere(graph: Graph, cuts: list[int], placement: list[str]) -> PlannedJob:
    try:
        return placed(graph, cuts, placement, MICROBATCHES, SAMPLES)
    except PlanError:  # a parameter's uses would lie on two workers
        return placed(graph, cuts, [placement[0]] * len(placement), MICROBATCHES, SAMPLES)


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", NAMES)
def test_any_legal_cut_on_any_workers_trains_as_eager(name: str) -> None:
    module, graph = subject(name)
    draw = random.Random(name)
    for _ in range(30 if name in LEGAL else 6):
        settings = training(draw.choice(OPTIMIZERS))
        side = SideBySide(module, graph, random_placement(graph, draw, settings), settings)
        if case(name).tolerance:
            require_close(side, case(name), 2)
        else:
            require_equal(side, case(name), 2)


@pytest.mark.parametrize("name", LEGAL)
def test_a_structure_trains_as_eager_at_every_legal_cut_there_is(name: str) -> None:
    """Each by itself between two workers, and at all of them at once."""
    module, graph = subject(name)
    legal = legal_cuts(graph)
    assert len(legal) == LEGAL[name]
    for cuts in ([], *([at] for at in legal), legal):
        names = [f"worker-{number % 2}" for number in range(len(cuts) + 1)]
        settings = training(SGD(lr=0.05, momentum=0.9))
        side = SideBySide(module, graph, placed_somewhere(graph, cuts, names), settings)
        if case(name).tolerance:
            require_close(side, case(name), 2)
        else:
            require_equal(side, case(name), 2)


@pytest.mark.parametrize("name", ["gpt", "gpt-dropout", "resnet", "batch-norm", "frozen", "chain"])
def test_clipping_does_not_follow_the_cut(name: str) -> None:
    """The norm is added by parameter, so a clipped run has eager's bits at every cut."""
    module, graph = subject(name)
    draw = random.Random(name)
    norms = set()
    for number in range(8):
        settings = training(SGD(lr=0.1, momentum=0.9), clip=0.05)
        job = planned(graph, settings, number) if 0 < number < 4 else random_placement(graph, draw, settings)
        side = SideBySide(module, graph, job, settings)
        require_equal(side, case(name), 3)
        norms.add(gradient_norm(share.squares for share in side.shares))
    assert len(norms) == 1 and norms.pop() > 0.05
    unclipped = SideBySide(module, graph, job, training(settings.optimizer))
    for step in range(3):
        unclipped.accumulate(microbatches(case(name), SAMPLES, MICROBATCHES, step))
        unclipped.apply()
    assert parameter_difference(side.states()[0], unclipped.states()[0])[0] > 1e-3


@pytest.mark.parametrize("name", ["gpt", "gpt-dropout", "resnet", "frozen", "chain"])
def test_clipping_by_segment_has_the_bits_of_one_process_that_clips_by_the_same_groups(name: str) -> None:
    module, graph = subject(name)
    draw, scales = random.Random(name), set[float]()
    for number in range(6):
        settings = training(SGD(lr=0.1, momentum=0.9), clip=0.05)
        settings = msgspec.structs.replace(settings, clip_by="segment")
        job = planned(graph, settings, number) if 0 < number < 4 else random_placement(graph, draw, settings)
        side = SideBySide(module, graph, job, settings)
        require_equal(side, case(name), 3)
        scales |= {clip_scale(0.05, gradient_norm([share.squares])) for share in side.shares}
    assert len(scales) > 3 and min(scales) < 0.5  # segments were clipped, each by its own scale


def test_clipping_a_tied_model_agrees_to_rounding() -> None:
    """The gradient of a parameter that several segments read is added up in another order than eager's."""
    module, graph = subject("gpt2-mask-dropout")
    settings = training(SGD(lr=0.1, momentum=0.9), clip=0.05)
    side = SideBySide(module, graph, planned(graph, settings, 3), settings)
    require_close(side, case("gpt2-mask-dropout"), 4)


@pytest.mark.parametrize("name", ["gpt-dropout", "gpt2-fused-dropout", "resnet", "batch-norm"])
def test_a_rerun_gives_the_same_bits_on_another_cut_too(name: str) -> None:
    module, graph = subject(name)
    runs = []
    for count in (3, 3, 1):
        side = SideBySide(
            module, graph, planned(graph, training(OPTIMIZERS[0]), count), training(OPTIMIZERS[0])
        )
        losses = []
        for step in range(3):
            losses.append(side.accumulate(microbatches(case(name), SAMPLES, MICROBATCHES, step))[0])
            side.apply()
        runs.append((losses, side.states()[0]))
    assert runs[0][0] == runs[1][0]
    assert same_bits(runs[0][1], runs[1][1])
    assert runs[0][0] == pytest.approx(runs[2][0], rel=1e-6)


def test_the_seed_decides_what_dropout_draws() -> None:
    module, graph = subject("gpt-dropout")
    losses = []
    for seed in (1, 2):
        settings = Training(1, MICROBATCHES, SAMPLES, OPTIMIZERS[0], seed=seed)
        side = SideBySide(module, graph, planned(graph, settings, 2), settings)
        losses.append(side.accumulate(microbatches(case("gpt-dropout"), SAMPLES, MICROBATCHES, 0)))
    assert losses[0] != losses[1]
    assert all(ours == theirs for ours, theirs in losses)


@pytest.mark.parametrize("samples", [1, 5])
@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("resnet", "batch-norm")])
def test_another_microbatch_size_than_captured(name: str, samples: int) -> None:
    module, graph = subject(name)  # captured with 2 samples
    settings = training(OPTIMIZERS[1], samples)
    side = SideBySide(module, graph, planned(graph, settings, 2), settings)
    ours, theirs = side.accumulate(microbatches(case(name), samples, MICROBATCHES, 0))
    assert ours == pytest.approx(theirs, rel=1e-6)
    assert gradient_difference(*side.gradients())[0] < 1e-5


def test_microbatches_train_as_the_whole_batch() -> None:
    """Beside the plain loop: one forward and backward over all samples of a step."""
    module, graph = captured(Case("small", lambda: GPT(config(layers=2)), tokens), 4)
    settings = Training(50, 4, 4, AdamW(lr=1e-3), seed=0)
    side = SideBySide(module, graph, planned(graph, settings, 2), settings)
    plain = copy.deepcopy(module).train()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    for step in range(50):
        parts = [tokens(4, 7 * step + number) for number in range(4)]
        ours, _ = side.accumulate(parts)
        whole: Batch = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        optimizer.zero_grad()
        loss = plain(**whole)
        loss.backward()
        if step == 0:
            gradients = {n: t.grad for n, t in named_state(plain, graph).items() if t.grad is not None}
            assert gradient_difference(side.gradients()[0], gradients)[0] < 1e-5
        assert ours == pytest.approx(float(loss.detach()), rel=1e-6)
        optimizer.step()
        side.apply()


def test_the_users_module_is_only_written_where_it_is_handed_over() -> None:
    module = Chain()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    _, graph = subject("chain")
    side = SideBySide(module, graph, planned(graph, training(OPTIMIZERS[0]), 2), training(OPTIMIZERS[0]))
    side.accumulate(microbatches(case("chain"), SAMPLES, MICROBATCHES, 0))
    side.apply()
    assert same_bits(dict(module.state_dict()), before)
    assert not same_bits(side.states()[0], before)
