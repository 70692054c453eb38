from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch
from benchmarks.zoo import CASES, Case, case
from benchmarks.zoo.side_by_side import captured

from farflung.runtime.optimizers.declared import SGD, AdamW
from farflung.runtime.optimizers.slots import update_rule_of
from farflung.runtime.parity.steps import named_state
from farflung.runtime.torch_backend.profiling import profile, timing
from farflung.runtime.torch_backend.profiling.profile import profile_graph, this_device
from farflung.workload import workload_of
from farflung.workload.profile import (
    OpTime,
    gradient_sums,
    node_seconds,
    signatures,
    sustained_tflops,
    update_seconds,
    weighed,
)
from farflung.workload.profile_store import Known, recall, remember

BATCH = 2


@pytest.fixture(autouse=True)
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "MOST_RUNS", 2)
    monkeypatch.setattr(timing, "LEAST_RUNS", 1)
    monkeypatch.setattr(profile, "MOST_PASSES", 1)
    # More than a tiny node takes now and then.
    monkeypatch.setattr(profile, "autograd_seconds", lambda: 0.0)


@pytest.mark.parametrize("entry", CASES, ids=lambda entry: entry.name)
def test_every_kind_of_node_is_timed_once_and_nothing_is_changed(entry: Case) -> None:
    module, graph = captured(entry, BATCH)
    state = named_state(module, graph)
    before = {name: tensor.clone() for name, tensor in state.items()}
    profile = profile_graph(graph, BATCH, state, entry.batch(BATCH, 3))
    kinds = {signature for signature in signatures(graph, BATCH) if signature is not None}
    sums = {kind for of_node in gradient_sums(graph, BATCH) for kind in of_node}
    assert {time.signature for time in profile.times} == kinds | sums
    assert all(time.forward_seconds > 0 for time in profile.times if time.signature in kinds)
    assert all(time.backward_input_seconds > 0 for time in profile.times if time.signature in sums)
    assert all(torch.equal(before[name], tensor) for name, tensor in state.items())
    assert all(tensor.grad is None for tensor in state.values())
    workload = workload_of(graph, 4, BATCH)
    assert weighed(workload, graph, profile).flops.sum() == pytest.approx(workload.flops.sum())
    assert sustained_tflops(workload, graph, profile) > 0


def test_a_profile_says_what_it_was_made_on() -> None:
    _, graph = captured(case("gpt"), BATCH)
    profile = profile_graph(graph, BATCH)
    assert profile.framework.startswith("torch ") and profile.microbatch_size == BATCH
    assert profile.threads == torch.get_num_threads()


def test_random_ops_are_timed() -> None:
    _, graph = captured(case("gpt-dropout"), BATCH)
    assert any("dropout" in time.signature for time in profile_graph(graph, BATCH).times)


def test_gradients_of_parameters_and_of_values_are_timed_separately() -> None:
    _, graph = captured(case("chain"), BATCH)
    times = {time.signature: time for time in profile_graph(graph, BATCH).times}
    linear = [time for kind, time in times.items() if "linear" in kind]
    assert sorted(time.backward_input_seconds > 0 for time in linear) == [False, True]  # the first has none
    assert all(time.backward_weight_seconds > 0 for time in linear)
    tanh = next(time for kind, time in times.items() if "tanh" in kind)
    assert tanh.backward_input_seconds > 0 and tanh.backward_weight_seconds == 0


@pytest.mark.parametrize("entry", CASES, ids=lambda entry: entry.name)
def test_no_number_of_the_model_is_needed(entry: Case) -> None:
    """Weights and inputs may be made up, as they are where only the graph is known."""
    _, graph = captured(entry, BATCH)
    workload = workload_of(graph, 4, BATCH)
    assert node_seconds(workload, graph, profile_graph(graph, BATCH)).total.sum() > 0


def test_updates_of_parameters_are_timed_by_their_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    # More than a tiny update takes now and then.
    monkeypatch.setattr(timing, "_step_seconds", lambda optimizer: (0.0, 0.0))
    _, graph = captured(case("frozen"), BATCH)
    names = [entry.name for entry in graph.inputs_of("parameter")]
    for optimizer in (AdamW(lr=0.1), SGD(lr=0.1), SGD(lr=0.1, momentum=0.9, weight_decay=0.1)):
        profile = profile_graph(graph, BATCH, optimizer=optimizer)
        assert len(profile.updates) == 2  # weights and biases of one size each
        assert update_seconds(graph, partial(update_rule_of, optimizer), profile, names) > 0
    assert profile.updates[0].signature.startswith("SGD with momentum decaying")


def test_known_times_of_the_device_are_not_measured_again(tmp_path: Path) -> None:
    _, graph = captured(case("gpt"), BATCH)
    device, optimizer = this_device(), AdamW(lr=0.1)
    assert recall(device, tmp_path) == Known()
    first = profile_graph(graph, BATCH, optimizer=optimizer)
    remember(device, first, tmp_path)
    kept = recall(device, tmp_path)
    assert profile_graph(graph, BATCH, optimizer=optimizer, known=kept) == first
    # Of another model only what is new is timed: the times of what both have are those of before.
    _, other = captured(case("gpt-dropout"), BATCH)
    second = profile_graph(other, BATCH, known=kept)
    before = {time.signature: time for time in first.times}
    shared = [time for time in second.times if time.signature in before]
    assert shared and all(before[time.signature] == time for time in shared)
    remember(device, second, tmp_path)
    assert recall(device, tmp_path).nodes.keys() == before.keys() | {t.signature for t in second.times}


def test_times_of_another_device_or_version_are_not_used(tmp_path: Path) -> None:
    _, graph = captured(case("chain"), BATCH)
    device = this_device()
    remember(device, profile_graph(graph, BATCH), tmp_path)
    assert recall(device, tmp_path).nodes
    others = ({"framework": "torch 0"}, {"opset": "other"}, {"threads": 99}, {"name": "other"})
    for change in others:
        assert recall(msgspec.structs.replace(device, **change), tmp_path) == Known()
    (kept,) = tmp_path.iterdir()
    for damaged in (b"", b"[]", b"{" * 5000, kept.read_bytes().replace(b"AdamW", b"", 1)[:-9]):
        kept.write_bytes(damaged)
        assert recall(device, tmp_path) == Known()


def test_an_op_longer_than_the_limit_of_a_profile_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "MOST_SECONDS", 0.0)
    _, graph = captured(case("chain"), BATCH)
    times: list[OpTime] = profile_graph(graph, BATCH).times
    assert all(max(msgspec.structs.astuple(time)[1:]) > 0 for time in times)
