"""DPO equals a plain implementation with a second model, and both passes share each segment's weights."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.support import adapters, preferences
from tests.support.preferences import LENGTH, pairs, policy
from torch import Tensor, nn
from torch.nn import functional as F

import farflung
from farflung.client.capture.check import capture_shapes
from farflung.data import Pairs
from farflung.errors import JobError
from farflung.metrics import reward_accuracy
from farflung.objectives import DPO
from farflung.objectives.dpo import without_adapter
from farflung.opdag.graph import Graph
from farflung.opdag.segment import Segment
from farflung.planner import plan_graph
from farflung.planner.cutting.ties import positions_within_ties
from farflung.runtime.parity.steps import received
from farflung.workload import workload_of

peft = adapters.peft
BETA = 0.3


def batch(count: int = 4) -> dict[str, Tensor]:
    return Pairs(LENGTH)(pairs()[:count])


def log_probability(model: nn.Module, prompt: list[int], answer: list[int]) -> Tensor:
    """Of an answer after its prompt, one token at a time, without padding."""
    scores = F.log_softmax(model(input_ids=torch.tensor([prompt + answer])).logits[0].double(), dim=-1)
    places = range(len(prompt) - 1, len(prompt) + len(answer) - 1)
    return sum((scores[place, token] for place, token in zip(places, answer, strict=True)), torch.tensor(0.0))


def plain(model: nn.Module, reference: nn.Module, count: int) -> tuple[Tensor, list[Tensor]]:
    """Equation 7 with two models, one pair at a time; the loss and each pair's margin of rewards."""
    margins = []
    for pair in pairs()[:count]:
        rewards = {}
        for name in ("chosen", "rejected"):
            with torch.no_grad():
                base = log_probability(reference, pair["prompt"], pair[name])
            rewards[name] = BETA * (log_probability(model, pair["prompt"], pair[name]) - base)
        margins.append(rewards["chosen"] - rewards["rejected"])
    return -torch.stack([torch.log(torch.sigmoid(one)) for one in margins]).mean(), margins


def test_loss_gradients_and_rewards_are_those_of_equation_7() -> None:
    ours, theirs = policy(), policy()
    found = DPO(ours, BETA)(**batch())
    found["loss"].backward()
    loss, margins = plain(theirs, adapters.base(), 4)
    loss.backward()
    assert float(found["loss"].detach()) == pytest.approx(float(loss.detach()), rel=1e-6)
    margin = found["chosen_rewards"] - found["rejected_rewards"]
    assert torch.allclose(margin.double(), torch.stack(margins), atol=1e-6)
    wins, count = reward_accuracy(found, {})
    assert (float(wins), float(count)) == (sum(float(one.detach()) > 0 for one in margins), 4)
    expected = {name: one.grad for name, one in theirs.named_parameters() if one.grad is not None}
    assert expected
    for name, one in ours.named_parameters():
        assert (one.grad is None) == (name not in expected), name
        if one.grad is not None:
            assert torch.allclose(one.grad, expected[name], rtol=1e-4, atol=1e-7), name


@pytest.mark.parametrize("training", [True, False])
def test_a_pass_without_the_adapter_is_the_base_and_changes_nothing(training: bool) -> None:
    model = policy()
    for layer in model.base_model.model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    trained = next(name for name, one in model.named_parameters() if one.requires_grad)
    model.get_parameter(trained).requires_grad_(False)
    model.train(training)
    before = {name: one.requires_grad for name, one in model.named_parameters()}
    with without_adapter(model):
        found = model(input_ids=batch()["chosen"]).logits
    assert torch.equal(found, adapters.base().eval()(input_ids=batch()["chosen"]).logits)
    assert {name: one.requires_grad for name, one in model.named_parameters()} == before
    assert all(part.training == training for part in model.modules())


def layer_of(graph: Graph, at: int) -> int | None:
    """The layer of the base whose weights a node reads."""
    names = {entry.value: entry.name for entry in graph.inputs_of("parameter")}
    for value in graph.nodes[at].reads():
        parts = names.get(value, "").split(".")
        if "layers" in parts:
            return int(parts[parts.index("layers") + 1])
    return None


def test_both_passes_run_side_by_side_through_each_layer() -> None:
    graph = capture_shapes(preferences.job()).graph
    layers = [layer for at in range(len(graph.nodes)) if (layer := layer_of(graph, at)) is not None]
    assert layers == sorted(layers) and {*layers} == {0, 1, 2}
    reads = [value for node in graph.nodes for value in {*node.reads()}]
    frozen = [e for e in graph.inputs_of("parameter") if not e.trainable and "layers" in e.name]
    assert frozen and all(reads.count(entry.value) == 2 for entry in frozen)


@pytest.mark.full
def test_a_cut_between_layers_crosses_one_state_of_each_pass() -> None:
    job = preferences.job(DPO(policy(layers=6, tied=False)))
    workload = workload_of(capture_shapes(job).graph, job.microbatches, job.microbatch_size)
    crossing = workload.crossing_forward[positions_within_ties(workload)]
    assert (crossing == 2 * STATE).sum() >= 5  # of policy and reference


@pytest.mark.full
@pytest.mark.parametrize("tied", [True, False])
def test_segments_hold_each_layer_once(tied: bool) -> None:
    job = preferences.job(DPO(policy(layers=6, tied=tied)))
    segments = cut(job, 3)
    assert len(segments) == (4 if tied else 3)  # the first worker also runs the head that is its table
    held = [{e.name for e in segment.inputs if "layers" in e.name} for segment in segments]
    assert sum(map(len, held)) == len(set.union(*held)) and len([names for names in held if names]) >= 3


@pytest.mark.full
def test_nothing_of_the_reference_crosses_backward() -> None:
    job = preferences.job(DPO(policy(tied=False)))
    _, second = cut(job, 2)
    states = [v for v in second.receives if second.values[v].bytes(job.microbatch_size) == STATE]
    assert 0 < len({*second.differentiable}.intersection(states)) < len(states)


STATE = 2 * 4 * LENGTH * 32 * 4
"""Bytes of the hidden states of 4 chosen and 4 rejected rows, in float32."""


def cut(job: farflung.Job, workers: int) -> list[Segment]:
    """The segments of a job's graph on so many workers."""
    graph = capture_shapes(job).graph
    planned = plan_graph(graph, job.microbatches, job.microbatch_size, [f"w{n}" for n in range(workers)])
    return list(received(planned.programs, job.microbatch_size))


@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", ["lora", "dora", "ia3", "with the head"])
def test_every_adapter_of_layers_trains_as_eager(kind: str) -> None:
    model = adapters.with_adapter(adapters.base(tied=kind != "with the head"), adapters.CONFIGS[kind])
    report = farflung.check(preferences.job(DPO(model)))
    assert report.ok and report.segments > 1


@pytest.mark.full
def test_dropout_of_the_policy_trains_as_eager() -> None:
    config = copy.deepcopy(adapters.LORA)
    config.lora_dropout = 0.5
    report = farflung.check(preferences.job(DPO(policy(config=config))))
    assert report.ok and report.loss_difference == 0.0 and report.segments > 2


def test_an_adapter_of_norms_is_left_out_of_the_reference() -> None:
    model = policy(config=peft.LNTuningConfig(target_modules=["input_layernorm"]))
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        base = model(input_ids=tokens).logits
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.5)
        assert not torch.equal(model(input_ids=tokens).logits, base)
        with without_adapter(DPO(model).policy):
            assert torch.equal(model(input_ids=tokens).logits, base)
        assert not torch.equal(model(input_ids=tokens).logits, base)


def unfrozen() -> nn.Module:
    model = policy()
    model.get_parameter("base_model.model.model.norm.weight").requires_grad_(True)
    return model


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: DPO(adapters.base()),
            "a LlamaForCausalLM has none to disable: wrap it with peft.get_peft_model",
        ),
        (lambda: DPO(nn.Linear(2, 2)), "a Linear has none to disable"),
        (lambda: DPO(adapters.wrapped("prompt")), "not a learned prompt"),
        (
            lambda: DPO(policy(config=peft.LoraConfig(init_lora_weights="pissa", target_modules=["q_proj"]))),
            "init_lora_weights='pissa' changes the base",
        ),
        (lambda: DPO(unfrozen()), r"model\.norm\.weight is trained beside the adapter"),
        (lambda: DPO(policy(), beta=0), "beta must be a positive number, found 0"),
        (lambda: DPO(policy(), beta=float("nan")), "beta must be a positive number"),
    ],
)
def test_what_has_no_reference_is_refused_in_a_line(make: Any, words: str) -> None:
    with pytest.raises(JobError, match=words):
        make()
