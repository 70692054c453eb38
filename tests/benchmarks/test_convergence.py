"""The study of convergence: ways as text, runs that go on where they were, and figures that add up."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from benchmarks.learning import chart, report
from benchmarks.learning.outcome import Measured, Outcome, keep, kept, path_of
from benchmarks.learning.run import plan_of, train
from benchmarks.learning.setting import chosen, is_policy
from benchmarks.learning.subject import gpt, resnet
from benchmarks.learning.way import DENSE, Way, halves
from tests.pictures.drawn import svg_text

from benchmarks import convergence
from farflung.errors import CodecError
from farflung.planner.codecs import ladder

SPARSE_THEN_INT8 = "row-topk30-int4/masked30-int4@0.5,int8/int4-stochastic"


def outcome(way: str, seed: int, plain: float, wire: int, in_loop: float | None = None) -> Outcome:
    curve = [Measured(0, 5.0, 5.0), Measured(9, plain if in_loop is None else in_loop, plain)]
    return Outcome("gpt", way, seed, 9, curve, 1000, wire, 2.0, 2.0, 1.0)


def test_a_way_says_what_each_link_does_when() -> None:
    way = Way.of("int8;bf16;eden2@0.5,dense")
    assert [way.rung(link, 0, 10) for link in range(4)] == ["int8", "bf16", "eden2", "eden2"]
    assert [way.rung(0, step, 10) for step in (4, 5, 9, 10)] == ["int8", "dense", "dense", "dense"]
    assert way.single is None
    assert Way.of("int8/eden2").single == "int8/eden2"
    assert halves("int8/eden2") == ("int8", "eden2")
    assert halves("int8") == ("int8", "int8")


@pytest.mark.parametrize(
    "text", ["int8@0.5", "int8,bf16", "int8@0.5,bf16@0.4,dense", "int8@1.5,dense", "a@b,c"]
)
def test_a_way_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(CodecError):
        Way.of(text)


def test_runs_are_kept_by_model_way_and_seed(tmp_path: Path) -> None:
    made = outcome("int8", 1, 2.0, 250)
    keep(tmp_path, made)
    assert kept(tmp_path, "gpt", "int8", 1) == made
    assert kept(tmp_path, "gpt", "int8", 2) is None
    assert path_of(tmp_path, "gpt", "a/b", 0) != path_of(tmp_path, "gpt", "a;b", 0)


def test_gaps_are_of_equal_seeds() -> None:
    runs = [outcome(DENSE, 0, 2.0, 1000), outcome(DENSE, 1, 1.0, 1000), outcome("int8", 5, 9.0, 250)]
    runs += [outcome("int8", 0, 2.02, 250, 2.04), outcome("int8", 1, 1.03, 250, 1.02)]
    dense, int8 = report.rows(r for r in runs if r.seed < 5)
    assert (dense.way, dense.ratio) == (DENSE, 1.0)
    assert int8.ratio == 4
    assert int8.plain_gap is not None and int8.in_loop_gap is not None
    assert int8.plain_gap.mean == pytest.approx(2)
    assert (int8.plain_gap.least, int8.plain_gap.most) == pytest.approx((1, 3))
    assert int8.in_loop_gap.mean == pytest.approx(2)
    table = report.losses([dense, int8], "gpt", "a model")
    assert set(table) == {"int8"} and table["int8"].plain_gap == pytest.approx(0.02)
    assert table["int8"].seeds == 2
    assert "+2.00 (+1.00 to +3.00)" in report.table([dense, int8])
    assert {"gpt", "int8", "codec in the loop"} <= set(svg_text(chart.draw("gpt", [dense, int8])))


def test_only_whole_runs_with_one_rung_are_in_the_rate_loss_table() -> None:
    runs = [outcome(DENSE, 0, 2.0, 1000), outcome("int8@0.5,bf16", 0, 2.0, 300), outcome("bf16", 0, 2.0, 500)]
    found = report.losses(report.rows(runs), "gpt", "a model")
    assert set(found) == {"bf16"}
    assert (found["bf16"].forward_ratio, found["bf16"].backward_ratio) == (2.0, 2.0)
    before = {"bf16": ladder.Loss(9.0), "int8": ladder.Loss(4.0)}
    assert report.losses(report.rows(runs), "gpt", "a model", before) == {**before, **found}


@pytest.mark.slow
def test_a_gpt_over_dense_links_is_the_gpt_in_one_piece() -> None:
    found = train(gpt(4, quick=True), Way.of(DENSE), 0, lambda line: None)
    assert all(one.in_loop == pytest.approx(one.plain, rel=1e-5) for one in found.curve)
    assert found.ratio == pytest.approx(1, abs=0.03)
    assert [one.step for one in found.curve] == [0, 1, 2, 3, 4]
    assert found.last.plain < found.curve[0].plain


@pytest.mark.slow
def test_codecs_change_in_the_middle_of_a_run_and_bytes_are_of_both() -> None:
    found = train(gpt(4, quick=True), Way.of(SPARSE_THEN_INT8), 0, lambda line: None)
    assert 6 < found.ratio < 12
    assert found.last.in_loop == pytest.approx(found.last.plain, rel=0.02)
    assert found.last.in_loop != found.last.plain


def test_policies_choose_rougher_codecs_for_slower_lines() -> None:
    plan = plan_of(gpt(4, quick=True))
    assert chosen("auto:1", plan).text != DENSE
    assert chosen("auto:100000", plan).text == DENSE
    rungs = chosen("adatopk:4:8", plan).phases[0].codec_pair.split(";")
    assert rungs[0] == "topk8.33-bf16" and len(set(rungs)) == 3
    assert chosen("uniform:4", plan).text == "topk25-bf16"
    assert is_policy("auto:8") and not is_policy("token-mean:int8")
    with pytest.raises(ValueError):
        chosen("adatopk:4", plan)


@pytest.mark.slow
def test_a_resnet_is_judged_by_its_accuracy() -> None:
    found = train(resnet(2, quick=True), Way.of("int8"), 0, lambda line: None)
    assert found.last.accuracy is not None and 0 <= found.last.accuracy <= 1
    assert 3 < found.ratio < 4


@pytest.mark.slow
def test_the_program_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "convergence.py", "--quick", "--json", "--subjects", "gpt", "--steps", "2", "--ways", "int8",
        "--folder", str(tmp_path / "runs"), "--picture", str(tmp_path),
        "--losses", str(tmp_path / "losses.json"),
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", arguments)
    assert convergence.main() == 0
    first = capsys.readouterr()
    assert convergence.main() == 0
    again = capsys.readouterr()
    assert "seed 0" in first.err and not again.err
    assert json.loads(first.out) == json.loads(again.out)
    assert [row["way"] for row in json.loads(first.out)] == [DENSE, "int8"]
    assert set(ladder.read((tmp_path / "losses.json").read_bytes())) == {"int8"}
    assert "int8" in (tmp_path / "convergence-gpt-quick.svg").read_text()


def test_a_codec_that_does_not_exist_is_one_line_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["convergence.py", "--quick", "--ways", "int8@0.5,int9", "--folder", str(tmp_path)]
    )
    assert convergence.main() == 1
    assert "int9" in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.rglob("*.json"))
