import pytest

from farflung.errors import LabError
from farflung.lab.measure.calibration import Case, Effort, Row, calibrate, standard_cases, topology_cases
from farflung.lab.spec import LabSpec, LinkSettings, Node

GLANCE = Effort(0.3, 0.5)


@pytest.mark.lab
@pytest.mark.usefixtures("lab_machine")
def test_a_link_keeps_its_rate_and_latency() -> None:
    link = LinkSettings(20, 5)
    spec = LabSpec((Node("a"), Node("b")), {("a", "b"): link, ("b", "a"): link})
    heard: list[Row] = []
    found = calibrate([Case("one", spec, (("a", "b"),), link)], GLANCE, heard.append)
    (row,) = found.rows
    assert heard == [row]
    assert (row.asked_mbps, row.asked_ms, row.asked_loss) == (20, 5, 0)
    assert 0 < row.goodput_mbps < row.measured_mbps
    assert row.measured_ms >= 5
    assert row.ping_ms >= 10
    assert row.measured_loss == 0


@pytest.mark.lab
@pytest.mark.usefixtures("lab_machine")
def test_loss_of_a_link_is_measured() -> None:
    link = LinkSettings(10, 1, loss=0.2)
    spec = LabSpec((Node("a"), Node("b")), {("a", "b"): link, ("b", "a"): LinkSettings(10, 1)})
    (row,) = calibrate([Case("lossy", spec, (("a", "b"),), link)], GLANCE, lambda row: None).rows
    assert 0.1 < row.measured_loss < 0.3


def test_the_standard_cases_cover_the_settings_of_the_testbeds() -> None:
    cases = standard_cases(quick=False)
    asked = {(case.asked.bandwidth_mbps, case.asked.latency_ms, case.asked.loss) for case in cases}
    assert {(8, 50, 0), (20, 25, 0), (100, 20, 0), (100, 25, 0.01), (50, 50, 0), (1000, 5, 0)} <= asked
    assert any(len(case.flows) == 2 for case in cases)
    assert any(case.spec.segmentation_offload for case in cases)
    assert len(standard_cases(quick=True)) == 3


def test_a_topology_is_calibrated_once_for_each_kind_of_link() -> None:
    nodes = (Node("a", up_mbps=8), Node("b"), Node("c", behind_nat=True))
    links = {
        (a.name, b.name): LinkSettings(100 if a.name == "b" else None, 20)
        for a in nodes
        for b in nodes
        if a is not b
    }
    cases = topology_cases(LabSpec(nodes, links))
    assert [(case.title, case.asked.bandwidth_mbps) for case in cases] == [("a -> b", 8), ("b -> a", 100)]


def test_a_short_queue_is_measured() -> None:
    link = LinkSettings(8, 20, queue_ms=30)
    (case,) = topology_cases(LabSpec((Node("a"), Node("b")), {("a", "b"): link}))
    assert case.asked == link


def test_a_topology_without_a_rate_is_refused() -> None:
    with pytest.raises(LabError, match="nothing to calibrate"):
        topology_cases(LabSpec((Node("a"), Node("b")), {("a", "b"): LinkSettings()}))
