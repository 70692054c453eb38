from __future__ import annotations

import pytest
import torch
from tests.runtime.side_by_side import captured
from tests.zoo import CASES, Case, case

from farflung.runtime.check import named_state
from farflung.runtime.torch_backend import profile as profiling
from farflung.runtime.torch_backend.profile import profile_graph
from farflung.workload import workload_of
from farflung.workload.profile import signatures, sustained_tflops, weighed

BATCH = 2


@pytest.fixture(autouse=True)
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "LEAST_RUNS", 1)
    monkeypatch.setattr(profiling, "MOST_RUNS", 2)


@pytest.mark.parametrize("entry", CASES, ids=lambda entry: entry.name)
def test_every_kind_of_node_is_timed_once_and_nothing_is_changed(entry: Case) -> None:
    module, graph = captured(entry, BATCH)
    state = named_state(module, graph)
    before = {name: tensor.clone() for name, tensor in state.items()}
    profile = profile_graph(graph, state, entry.batch(BATCH, 3))
    kinds = {signature for signature in signatures(graph, BATCH) if signature is not None}
    assert {time.signature for time in profile.times} == kinds
    assert all(time.forward_seconds > 0 for time in profile.times)
    assert all(torch.equal(before[name], tensor) for name, tensor in state.items())
    assert all(tensor.grad is None for tensor in state.values())
    workload = workload_of(graph, 4, BATCH)
    assert weighed(workload, graph, profile).flops.sum() == pytest.approx(workload.flops.sum())
    assert sustained_tflops(workload, graph, profile) > 0


def test_a_profile_says_what_it_was_made_on_and_how_far_it_is() -> None:
    module, graph = captured(case("gpt"), BATCH)
    seen: list[tuple[int, int]] = []
    batch = case("gpt").batch(BATCH, 3)
    profile = profile_graph(graph, named_state(module, graph), batch, lambda at, of: seen.append((at, of)))
    assert profile.framework.startswith("torch ") and profile.microbatch_size == BATCH
    assert profile.threads == torch.get_num_threads()
    assert seen == [(at, len(graph.nodes)) for at in range(len(graph.nodes))]


def test_what_is_random_is_timed_too() -> None:
    module, graph = captured(case("gpt-dropout"), BATCH)
    profile = profile_graph(graph, named_state(module, graph), case("gpt-dropout").batch(BATCH, 3))
    assert any("dropout" in time.signature for time in profile.times)
