"""`benchmarks/saboteurs`: saboteurs are found or do no harm, and figures say what was seen."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import psutil
import pytest
from benchmarks.saboteurs.__main__ import main
from benchmarks.saboteurs.campaign import cases, drawn_cases
from benchmarks.saboteurs.cost import Trained, cost
from benchmarks.saboteurs.figures import DONE, FAILED, STUCK, Kept, Row, summary, wilson
from benchmarks.saboteurs.kinds import CHEATS, FIRST, KINDS, deeds_of
from benchmarks.saboteurs.saboteur import flipped, other_bit
from torch import ones

ROW = Row(
    "1", 1.0, "skipped update", FIRST, 1.0, 8, DONE, "", True, "suspended: did other work", [], ["w1"], 2, 0,
    3, 1.0,
)  # fmt: skip


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(600)
def test_two_sabotaged_jobs_end_well_and_are_not_run_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kinds, kept = "skipped update,NaN weights", tmp_path / "rows.jsonl"
    given = ["--jobs", "2", "--kinds", kinds, "--steps", "4", "--rows", str(kept), "--json"]
    assert main([*given, "--folder", str(tmp_path)]) == 0
    out, err = capfd.readouterr()
    document = json.loads(out)
    assert document["summary"]["ok"] and "[####################] 2/2" in err
    skipped, nan = document["rows"]
    assert (skipped["state"], skipped["is_right"]) == ("done", True) and skipped["cheats"]
    assert skipped["named"].startswith("suspended: did other work than it said")
    assert skipped["members"][0] == "w0-saboteur" and not skipped["innocents"]
    assert nan["state"] == "failed" and "of worker w0-saboteur" in nan["reason"]
    assert not [process for process in psutil.process_iter() if _is_below(process, tmp_path)]
    assert main(given) == 0
    assert json.loads(capfd.readouterr().out) == document


def _is_below(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.is_running() and process.cwd().startswith(str(folder))
    except psutil.Error:
        return False


def test_each_kind_is_tried_in_each_of_its_places_and_at_different_steps() -> None:
    found = cases(200, CHEATS, 8)
    assert len({one.key for one in found}) == 200
    assert {(one.orders.kind, one.place) for one in found} == {
        (kind, place) for kind in CHEATS for place in KINDS[kind]
    }
    assert {one.orders.first_step for one in found} == set(range(7))
    assert {one.orders.seed for one in drawn_cases(5, 0.1, 0.5, 30)} == set(range(5))


def test_a_job_has_ended_well_only_with_right_weights_or_a_name() -> None:
    failed = msgspec.structs.replace(ROW, state=FAILED, is_right=None, named="")
    bad = [
        msgspec.structs.replace(ROW, is_right=False),
        msgspec.structs.replace(ROW, is_right=None),
        msgspec.structs.replace(ROW, state=STUCK),
        failed,
    ]
    good = [
        ROW,
        msgspec.structs.replace(ROW, named=""),
        msgspec.structs.replace(failed, reason="weights of worker w0-saboteur"),
        msgspec.structs.replace(failed, named="made an attempt of a job fail"),
    ]
    assert all(summary([row]).ok for row in good) and not any(summary([row]).ok for row in bad)
    (kind,) = summary([*good, *bad]).kinds
    assert (kind.jobs, kind.bad, kind.done_right, kind.failed_named) == (8, 4, 2, 2)


def test_the_rate_of_catching_is_held_against_the_computed_one() -> None:
    drawn = msgspec.structs.replace(ROW, verify=0.1, share=0.5, is_right=None)
    missed = msgspec.structs.replace(drawn, named="", intervals=10)
    late = msgspec.structs.replace(drawn, intervals=12)
    (found,) = summary([drawn, drawn, late, missed]).caught
    assert (found.jobs, found.intervals, found.caught, found.all_caught) == (4, 10, 2, 3)
    assert found.all_intervals == 3 + 3 + 12 + 10
    assert found.computed == pytest.approx(1 - 0.95**10)
    assert found.low < found.rate == 0.5 < found.high
    assert summary([drawn, missed]).ok  # what is not drawn is not found


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (0, 0, 0.0, 1.0)],
)
def test_the_interval_of_a_rate(hits: int, trials: int, low: float, high: float) -> None:
    assert wilson(hits, trials) == pytest.approx((low, high), abs=1e-4)


def test_rows_are_kept_though_a_line_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    Kept(path).add(ROW)
    with path.open("ab") as file:
        file.write(b'\n{"key": "2", "verif')
    other = msgspec.structs.replace(ROW, key="3")
    Kept(path).add(other)
    assert Kept(path).rows == {"1": ROW, "3": other}


def test_deeds_are_counted_by_interval() -> None:
    found = deeds_of("csvccssvss")
    assert (found.cheats, found.versions, found.intervals) == (3, 2, 3)
    assert deeds_of("vk").intervals == 0 and deeds_of("vk").as_checker == 1


def test_a_flipped_bit_is_one_bit() -> None:
    assert bytes(other_bit(b"\x00\xff")) == b"\x01\xff" and other_bit(b"") == b""
    tensor = ones(3)
    other = flipped(tensor)
    assert (
        other[0] != 1
        and abs(other[0] - 1) < 1e-6
        and bool((other[1:] == 1).all())
        and bool((tensor == 1).all())
    )


def test_the_cost_is_held_against_the_same_round() -> None:
    without = [Trained(0.0, 0.1, 0.1, 1.0, 0), Trained(0.0, 0.2, 0.2, 1.0, 0)]
    checked = [Trained(1.0, 0.1, 0.3, 2.0, 9), Trained(1.0, 0.2, 0.4, 2.0, 9)]
    found = cost(checked, without)
    assert (found.times, found.least_times, found.most_times) == pytest.approx((2.5, 2.0, 3.0))


def test_an_unknown_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--kinds", "skipped updates"])
    assert "did you mean skipped update?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--verify", "1.5"])
    assert "at most 1" in capsys.readouterr().err
