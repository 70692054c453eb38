from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.errors import LabError
from farflung.lab.run.layout import BROKER, SUBMITTER, lay_out
from farflung.lab.spec import LabSpec
from farflung.plans import Topology, WorkerSpec
from farflung.plans.testbeds.catalogue import TESTBEDS, load_testbed


def two(a: WorkerSpec, b: WorkerSpec, mbps: float, **changes: Any) -> LabSpec:
    return lay_out(
        Topology(
            workers=(a, b),
            latency_ms=((0.0, 30.0), (40.0, 0.0)),
            bandwidth_mbps=((0.0, mbps), (mbps, 0.0)),
            **changes,
        )
    )


def home(id: str, up_mbps: float | None = None, down_mbps: float | None = None) -> WorkerSpec:
    return WorkerSpec(id, id, 1.0, 1.0, up_mbps, down_mbps)


@pytest.mark.parametrize("name", TESTBEDS)
def test_every_testbed_can_be_laid_out(name: str) -> None:
    topology = load_testbed(name)
    spec = lay_out(topology)
    assert [node.name for node in spec.nodes] == [*topology.ids, BROKER, SUBMITTER]
    owners = {node.shares_line_with for node in spec.nodes if node.name in (BROKER, SUBMITTER)}
    assert owners == {topology.home.id}
    assert not any(node.behind_nat for node in spec.nodes[-2:])


def test_a_link_keeps_its_direction_and_settings() -> None:
    spec = two(home("a"), home("b"), 8, jitter_ms=1.0, loss=((0.0, 0.1), (0.2, 0.0)), queue_ms=99.0)
    forward, back = spec.links["a", "b"], spec.links["b", "a"]
    assert (forward.latency_ms, forward.loss) == (30, 0.1)
    assert (back.latency_ms, back.loss) == (40, 0.2)
    assert forward.bandwidth_mbps == 8 and forward.jitter_ms == 1 and forward.queue_ms == 99


RATES = st.none() | st.sampled_from([5.0, 10.0, 20.0])


@given(RATES, RATES, st.sampled_from([5.0, 10.0, 20.0]))
def test_a_pair_has_its_own_rate_only_below_both_access_lines(
    up: float | None, down: float | None, mbps: float
) -> None:
    spec = two(home("a", up_mbps=up), home("b", down_mbps=down), mbps)
    own = spec.links["a", "b"].bandwidth_mbps
    narrowest = min(mbps, *(line for line in (up, down) if line is not None), mbps)
    assert (own is None) == (narrowest in (up, down))
    if own is not None:
        assert own == mbps == narrowest


def test_a_worker_cannot_have_the_name_of_the_labs_own_nodes() -> None:
    with pytest.raises(LabError, match="a node called broker of its own"):
        two(home("broker"), home("b"), 8)


def test_values_beyond_the_labs_limits_are_lab_errors() -> None:
    with pytest.raises(LabError, match="latency_ms must be"):
        lay_out(msgspec.structs.replace(load_testbed("nat"), latency_ms=((50_000.0,) * 4,) * 4))
