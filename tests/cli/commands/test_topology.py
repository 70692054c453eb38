"""`farflung topology show` of files; of fleets in tests/end_to_end/test_survey.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farflung.cli.main import run
from farflung.plans import Topology, WorkerSpec, read_topology, write_topology
from farflung.plans.testbeds.catalogue import TESTBEDS


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["topology", "show", *arguments]) == 0
    return capsys.readouterr().out


def test_a_small_topology_is_a_table_of_workers_and_one_of_ways(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "eight-homes").splitlines()
    assert " ".join(lines[:2]).endswith("8 workers at 8 sites")
    assert any(
        line.split() == ["home-0", "home-0", "0.05", "2.0", "GB", "20", "Mbit/s", "50", "Mbit/s"]
        for line in lines
    )
    assert any("home-1" in line and "10 / 35" in line for line in lines)


def test_a_large_one_is_told_by_sites(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "fusionllm-48").splitlines()
    assert len(lines) < 80
    assert any("medians between two sites" in line for line in lines)


@pytest.mark.parametrize("name", TESTBEDS)
def test_every_line_fits_a_terminal(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert max(map(len, shown(capsys, name).splitlines())) <= 80


def test_workers_without_a_site_are_counted_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = Topology((WorkerSpec("a", "", 1.0, 1.0),), ((0.0,),), ((0.0,),))
    write_topology(alone, tmp_path / "alone.json")
    assert shown(capsys, str(tmp_path / "alone.json")).splitlines()[0] == "1 worker"


def test_it_is_saved_and_drawn_and_given_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, picture = tmp_path / "kept.json", tmp_path / "picture.svg"
    document = json.loads(
        shown(capsys, "two-sites", "--json", "--save", str(kept), "--picture", str(picture))
    )
    assert document["topology"]["workers"][0]["id"] == read_topology(kept).workers[0].id
    assert document["assumed"] == document["measured"] == []
    assert "<svg" in picture.read_text() and "site-a" in picture.read_text()
    assert shown(capsys, str(kept)) == shown(capsys, "two-sites")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give either a topology FILE or --fleet"),
        (["lan", "--fleet"], "give either a topology FILE or --fleet"),
        (["lan", "--refresh"], "--refresh measures a live fleet: add --fleet"),
        (["nowhere.json"], "neither a file nor a testbed: the testbeds are four-homes"),
        (["nowhere"], "neither a file nor a testbed"),
        (["four-home"], "neither a file nor a testbed: did you mean four-homes? the testbeds are"),
        (["lan", "--picture", "lan.gif"], "must end in .svg, .png or .pdf, found 'lan.gif'"),
        (
            ["--fleet", "--folder", "/nonexistent"],
            "viewer, worker or operator in /nonexistent",
        ),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topology", "show", *arguments]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and words in line
