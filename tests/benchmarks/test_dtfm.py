from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.dtfm import main
from benchmarks.dtfm_cases import universities
from tests.planner.schedulers.evolutionary.cases import random_topology

from benchmarks.dtfm_grid import grid_total
from farflung.plans import Topology, write_topology


def written(fleet: Topology, folder: Path) -> str:
    write_topology(fleet, folder / "fleet.json")
    return str(folder / "fleet.json")


@pytest.mark.parametrize("scheduler", ["auto", "evolutionary"])
def test_the_total_is_that_of_the_grid(
    scheduler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = universities(8)
    arguments = ["--topology", written(fleet, tmp_path), "--stages", "4", "--budget", "300", "--json"]
    assert main([*arguments, "--scheduler", scheduler]) == 0
    report = json.loads(capsys.readouterr().out)
    grid = tuple(tuple(fleet.ids.index(worker) for worker in stage) for stage in report["grid"])
    assert [len(stage) for stage in grid] == [4] * 4
    assert report["total"] == pytest.approx(grid_total(fleet, grid), rel=1e-12)
    assert report["gap"] == pytest.approx(report["total"] / report["lower_bound"])
    assert report["cpu_seconds"] >= 0


def test_eight_stages_unless_asked_otherwise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--topology", written(random_topology(16, 1), tmp_path), "--budget", "200"]) == 0
    shown = capsys.readouterr().out
    assert "pipeline 1" in shown
    assert "pipeline 2" not in shown
    assert "no grid below" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stages", "3"], "16 workers do not fill 3 stages x 5 replicas: give --stages and --replicas"),
        (["--stages", "0"], "16 workers do not fill 0 stages"),
        (["--replicas", "-3"], "16 workers do not fill"),
        (["--activation-gb", "nan"], "gradients and activations must be"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--topology", written(random_topology(16, 1), tmp_path), *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [[], ["--topology", "a", "--stages", "x"], ["--topology", "a", "--budget", "0"], ["--case", "6"]],
)
def test_bad_arguments_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--topology", str(tmp_path / "none.json")]) == 2
    assert "cannot read the topology" in capsys.readouterr().err
