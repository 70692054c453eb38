from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.testbeds.rules import RULES

from farflung.errors import TopologyError
from farflung.plans import Topology, WorkerSpec, write_topology
from farflung.plans.testbeds.catalogue import FOLDER, TESTBEDS, find_topology, load_testbed
from farflung.plans.topology_file import decode_topology


@pytest.mark.parametrize("name", TESTBEDS)
def test_a_shipped_file_is_what_its_rule_makes(name: str) -> None:
    topology = find_topology(name)
    assert topology == RULES[name]()
    assert topology.name == name and topology.title
    assert not any("/" in worker.id for worker in topology.workers)


def test_no_other_file_ships() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(TESTBEDS) == set(RULES)


def test_a_path_is_read_even_when_it_bears_no_suffix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_topology(load_testbed("lan"), tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert find_topology("mine") == load_testbed("lan")


@pytest.mark.parametrize("text", ["four-house", "none.json", "./none", ""])
def test_what_is_neither_is_one_clear_line(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TopologyError) as raised:
        find_topology(text)
    assert "\n" not in str(raised.value)
    assert all(name in str(raised.value) for name in TESTBEDS)


def test_fusionllm_has_its_devices_and_its_range_of_links() -> None:
    topology = load_testbed("fusionllm-48")
    assert topology.scale is not None
    rates = [topology.link(a, b).bandwidth_mbps / topology.scale.factor for a, b in topology.pairs()]
    assert (len(topology.workers), min(rates), max(rates)) == (48, 8, 10_000)


def test_cities_are_as_far_apart_as_the_source_says() -> None:
    topology = load_testbed("dtfm-cities")
    assert topology.scale is not None
    tokyo, london = topology.ids.index("tokyo"), topology.ids.index("london")
    link = topology.link(london, tokyo)
    assert link.latency_ms == 210
    assert link.bandwidth_mbps / topology.scale.factor == pytest.approx(366)


def test_the_files_are_plain_json_with_a_line_for_each_worker() -> None:
    text = (FOLDER / "four-homes.json").read_text()
    assert len(json.loads(text)["workers"]) == 4
    assert sum(line.startswith('  {"id"') for line in text.splitlines()) == 4


def test_the_page_explains_every_testbed_and_its_example_is_a_topology() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "topologies.md").read_text()
    assert all(f"| `{name}` |" in page for name in TESTBEDS)
    example = page.partition("```json")[2].partition("```")[0]
    assert decode_topology(example.encode()).ids == ["desk", "attic"]
    keys = {*Topology.__struct_fields__, *WorkerSpec.__struct_fields__}
    assert not [key for key in keys - {"workers"} if f"`{key}`" not in page and f".{key}`" not in page]
