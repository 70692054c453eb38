"""Stalls: found in a real training whose codecs keep its loss up, and not in what only looks like one."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.planner.codecs.chains import chain, topology
from torch import Tensor, nn

from farflung.codec import Coder, Context
from farflung.codec.catalogue import recipe
from farflung.planner.codecs.controller import (
    PROBE_NOISE,
    BeginProbe,
    Controller,
    EndProbe,
    Relax,
    Switch,
)
from farflung.planner.codecs.decisions import decide, on_event
from farflung.planner.codecs.guard import Finding, Guard, ProbeBegins, ProbeEnds, TrainingLoss
from farflung.planner.codecs.limits import Limits
from farflung.planner.codecs.stall import PROBE
from farflung.planner.codecs.stall import ROUGH as ROUGH_NOISE
from farflung.planner.codecs.tuner import CodecTuner, FinishedUnit, Verdict, tuning_basis
from farflung.plans import CodecFindings, LinkCodec, Plan
from farflung.plans.codec_pair import DENSE, CodecPair
from farflung.simulator import Conditions

WORKERS = ("a", "b", "c", "d")
ROUGH = "axes30/axes100-dithered"
STICKY = "row-topk30-int4/masked30-int4"
WIDTH, STEPS = 16, 200


def replay(losses: Iterable[float], is_rough: Callable[[int], bool] = lambda step: True) -> list[Finding]:
    guard, found = Guard(0.01), list[Finding]()
    for step, loss in enumerate(losses, 1):
        guard, more = guard.on_evidence(TrainingLoss(step, loss, is_rough(step)))
        found.extend(more)
    return found


def noisy(loss: Callable[[int], float], steps: int, noise: float = 0.02, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [loss(step) * math.exp(draw.gauss(0, noise)) for step in range(1, steps + 1)]


@pytest.mark.parametrize("seed", range(5))
def test_a_loss_that_falls_only_while_links_write_finely_has_been_stalled(seed: int) -> None:
    """A GPT has learned how frequent bytes are, and learns nothing more until links write finely."""
    draw, guard, found, freed = random.Random(seed), Guard(0.01), list[Finding](), 0
    for step in range(1, 201):
        probes = len(found) == 1
        freed += probes
        loss = max(3.19, 5.5 * step**-0.16) * math.exp(draw.gauss(0, 0.02) - 0.004 * freed)
        guard, more = guard.on_evidence(TrainingLoss(step, loss, not probes))
        found.extend(more)
        if len(found) == 2:
            break
    begins, ends = found
    assert isinstance(begins, ProbeBegins) and "stands still" in begins.reason
    assert isinstance(ends, ProbeEnds) and ends.stalled and "codecs were why" in ends.reason
    assert all("\n" not in one.reason for one in found)


@pytest.mark.parametrize("seed", range(5))
def test_a_plateau_that_a_probe_does_not_end_is_not_blamed_on_codecs_and_is_seldom_probed(seed: int) -> None:
    """As of a pretrained model, whose loss hardly falls from its first step on."""
    found = replay(noisy(lambda step: 2.7 * step**-0.005, 2000, seed=seed))
    assert not any(isinstance(one, ProbeEnds) and one.stalled for one in found)
    begun = sum(isinstance(one, ProbeBegins) for one in found)
    assert 1 <= begun <= math.log2(2000 / PROBE)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_a_loss_that_falls_is_not_probed(seed: int, noise: float) -> None:
    assert replay(noisy(lambda step: 5 * step**-0.2, 400, noise, seed)) == []


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_a_loss_that_flattens_is_not_blamed_on_codecs(seed: int, noise: float) -> None:
    """Seeds are fixed: chance looks like a stall for none of the first 400, but it does for 8292745."""
    found = replay(noisy(lambda step: 1.5 + 3 * step**-0.5, 1000, noise, seed))
    assert not any(isinstance(one, ProbeEnds) and one.stalled for one in found)


def test_links_that_write_finely_are_not_probed() -> None:
    assert replay(noisy(lambda step: 3.0, 400), lambda step: False) == []
    found = replay(noisy(lambda step: 3.0, 110), lambda step: step > 90)
    assert found == []  # no trend yet since links are rough


class Links:
    """Boundaries of a model in one process, written by the codecs that a tuner has chosen."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, str], tuple[Coder, Coder]] = {}
        self.step = 0

    def cross(self, at: int, value: Tensor, forward: str, backward: str) -> Tensor:
        """What comes out behind boundary `at`, whose gradient crosses it back."""
        arrived = value + (self._written(at, value.detach(), forward, False) - value).detach()
        if arrived.requires_grad:
            arrived.register_hook(lambda gradient: self._written(at, gradient, backward, True))
        return arrived

    def commit(self) -> None:
        """The step is over."""
        for ends in self._ends.values():
            for end in ends:
                end.commit()
        self.step += 1

    def _written(self, at: int, tensor: Tensor, name: str, gradient: bool) -> Tensor:
        if name == DENSE:
            return tensor
        key = (at, f"{name}/{gradient}")
        if key not in self._ends:
            self._ends[key] = recipe(name).coder(WIDTH), recipe(name).coder(WIDTH)
        writer, reader = self._ends[key]
        context = Context.at(0, self.step, 0, at, train=True, gradient=gradient, target=at + 1)
        array = tensor.contiguous().numpy()
        read = np.empty_like(array)
        reader.decode(writer.encode(array, context).joined(), read, context)
        return torch.from_numpy(read)


class Training:
    """A small regression over three boundaries: the biases of a model whose weights are known already.

    Biases cannot make up for what codecs do to activations: a floor under the loss that dense links lack.
    """

    def __init__(self) -> None:
        torch.manual_seed(0)
        self._teacher = nn.Sequential(*(Block() for _ in WORKERS))
        self._blocks = copy.deepcopy(self._teacher)
        self._biases = [parameter for parameter in self._blocks.parameters() if parameter.ndim == 1]
        for bias in self._biases:
            nn.init.zeros_(bias)
        self._links = Links()
        self._optimizer = torch.optim.Adam(self._biases, lr=5e-2)

    def train(self, codecs: dict[tuple[str, str], str]) -> float:
        """The loss of a step over links with these codec pairs."""
        x = torch.randn(64, WIDTH)
        with torch.no_grad():
            target = self._teacher(x)
        for at, block in enumerate(self._blocks):
            x = block(x)
            if at < len(WORKERS) - 1:
                ends = WORKERS[at], WORKERS[at + 1]
                there, back = (CodecPair.of(codecs.get(link, DENSE)) for link in (ends, ends[::-1]))
                x = self._links.cross(at, x, there.activation, back.gradient)
        loss = (x - target).square().mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._links.commit()
        return loss.item()


class Block(nn.Module):
    """Adds what it computes to what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        nn.init.normal_(self.linear.weight, std=0.3)
        nn.init.normal_(self.linear.bias, std=0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.5 * torch.tanh(self.linear(x))


def tuner_over(codec: str) -> CodecTuner:
    """The tuner of a chain over lines of 1 Mbit/s, all of which use `codec`."""
    return CodecTuner.start(basis_over(codec))


def basis_over(codec: str) -> bytes:
    names = list(WORKERS)
    plan = chain(names, size=10**6, flops=10**9, microbatches=8)
    links = [pair for a, b in pairwise(names) for pair in ((a, b), (b, a))]
    plan = Plan(
        plan.placements, plan.edges, plan.microbatches, plan.window, [],
        [LinkCodec(*pair, codec, 20.0) for pair in links],
    )  # fmt: skip
    slow = {(a, b): 1.0 for a in range(4) for b in range(4) if a != b}
    return tuning_basis(plan, topology(slow, 4), Conditions(), Limits(1.0))


def tuned(steps: int, *, guarded: bool) -> tuple[list[float], list[Switch], CodecTuner]:
    """Train over lines of 1 Mbit/s, with codecs as the tuner changes them, if it is asked at all."""
    torch.manual_seed(1)
    tuner = tuner_over(ROUGH)
    training, losses, switches = Training(), list[float](), list[Switch]()
    for unit in range(steps):
        codecs = {(codec.source, codec.target): codec.codec for codec in tuner.controller.codecs()}
        losses.append(training.train(codecs))
        if guarded:
            tuner, verdict = tuner.on_unit(FinishedUnit(unit, True, unit + 1, losses[-1]))
            switches.extend(verdict.switches)
    return losses, switches, tuner


@pytest.mark.full
def test_a_training_that_its_codecs_stall_gets_finer_ones_and_learns_on() -> None:
    left, _, before = tuned(STEPS, guarded=False)
    helped, switches, after = tuned(STEPS, guarded=True)
    reasons = [switch.reason for switch in switches]
    assert any("stands still" in reason for reason in reasons)
    assert any("codecs were why it stood still" in reason for reason in reasons)
    assert after.controller.noise < before.controller.noise
    assert np.mean(helped[-50:]) < 0.7 * np.mean(left[-50:])
    assert tuned(STEPS, guarded=True)[:2] == (helped, switches)


@pytest.mark.parametrize(("codec", "is_probed"), [(ROUGH, True), (STICKY, False)])
def test_links_are_probed_unless_the_model_has_adapted_to_their_codecs(codec: str, is_probed: bool) -> None:
    tuner, reasons = tuner_over(codec), list[str]()
    for number, loss in enumerate(noisy(lambda step: 3.0, 120)):
        tuner, verdict = tuner.on_unit(FinishedUnit(number, True, number + 1, loss))
        reasons.extend(switch.reason for switch in verdict.switches)
    assert bool(tuner.guard.stall.quiet_until) == is_probed
    assert any("stands still" in reason for reason in reasons) == is_probed


def judged(stalled: bool | None) -> Controller:
    """A controller in a probe, or after one that has shown a stall or none."""
    controller, _ = on_event(tuner_over(ROUGH).controller, BeginProbe(80, "it stands still"))
    return controller if stalled is None else on_event(controller, EndProbe(100, "", stalled))[0]


def after_units(tuner: CodecTuner, count: int) -> CodecTuner:
    for number in range(count):
        tuner, _ = tuner.on_unit(FinishedUnit(number, True, number + 1, 3.0))
    return tuner


@pytest.mark.parametrize("is_new_plan", [False, True])
def test_what_a_stall_has_shown_holds_after_a_restart_and_for_a_new_plan(is_new_plan: bool) -> None:
    before = judged(stalled=True)
    codecs = None if is_new_plan else before.codecs()
    tuner = CodecTuner.start(basis_over(ROUGH), codecs, findings=before.findings())
    assert tuner.controller.limits == before.limits
    tuner = after_units(tuner, 1)
    assert 0 < tuner.controller.noise <= before.noise
    decided, _ = decide(tuner.controller, 200, "a rate moved")
    assert decided.noise <= before.limits.most_noise
    assert tuner.controller.findings() == before.findings()


def test_a_probe_that_a_restart_cuts_short_leaves_rough_codecs_as_before() -> None:
    before = judged(stalled=None)
    tuner = CodecTuner.start(basis_over(ROUGH), before.codecs(), findings=before.findings())
    assert tuner.controller.noise <= PROBE_NOISE
    tuner, verdict = tuner.on_unit(FinishedUnit(85, True, 86, 3.0))
    assert tuner.controller.noise > ROUGH_NOISE and tuner.controller.limits.most_noise == math.inf
    assert verdict.findings is not None and not verdict.findings.probes
    assert all("cut short" in switch.reason for switch in verdict.switches)


def test_what_the_guard_has_relaxed_stays_relaxed_after_a_restart_and_for_a_new_plan() -> None:
    before, _ = on_event(tuner_over(ROUGH).controller, Relax(50, "clipped", "a", "b"))
    link = before.link("a", "b")
    assert link is not None
    for codecs in (before.codecs(), None):
        tuner = after_units(CodecTuner.start(basis_over(ROUGH), codecs, findings=before.findings()), 1)
        assert tuner.controller.levels[link] <= before.ceilings[link]
        assert tuner.controller.findings() == before.findings()


def test_a_verdict_keeps_what_was_found_last() -> None:
    one, other = CodecFindings(0.2), CodecFindings(0.1)
    verdicts = [Verdict((), (), (), findings) for findings in (one, other, None)]
    assert verdicts[0].then(verdicts[1]).then(verdicts[2]).findings == other
    assert verdicts[0].is_news and not verdicts[2].is_news
