"""The benchmark of random fleets goes on where it was interrupted, and counts what it kept."""

from __future__ import annotations

from pathlib import Path

import msgspec
from benchmarks.fleet_table import Kept, Row, Setting, summary
from benchmarks.fleets import MODELS, progress

SETTING = Setting(300, 32)


def row(seed: int, auto: float | None, is_small: bool = False, **rivals: float | None) -> Row:
    seconds = {"auto": auto} | {name.replace("_", "-"): value for name, value in rivals.items()}
    return Row(SETTING, seed, MODELS[seed % 7][0], 9, is_small, seconds, 1.0 if auto else 0.0, 0.5, False)


def test_what_was_run_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    first = Kept(path, SETTING)
    first.add(row(0, 1.1))
    first.add(row(0, 2.0, is_small=True, exact=2.0))
    with path.open("ab") as file:
        file.write(b"\n" + msgspec.json.encode(row(1, 1.2))[:-7])  # killed while it wrote
    again = Kept(path, SETTING)
    assert again.find(0, False) == row(0, 1.1)
    assert again.find(0, True) == row(0, 2.0, is_small=True, exact=2.0)
    assert again.find(1, False) is None
    again.add(row(1, 1.2))
    assert Kept(path, SETTING).find(1, False) == row(1, 1.2)


def test_rows_of_another_budget_do_not_count(tmp_path: Path) -> None:
    Kept(tmp_path / "rows.jsonl", SETTING).add(row(0, 1.1))
    assert Kept(tmp_path / "rows.jsonl", Setting(10, 32)).find(0, False) is None


def test_what_is_answered() -> None:
    rows = [
        row(0, 1.1, op_fence_plus=1.1, equal_count=11.0),
        row(1, 1.2, op_fence_plus=1.8),
        row(2, None),
        row(3, 1.3, op_fence_plus=1.2),
        row(0, 2.0, is_small=True, exact=1.98),
    ]
    found = summary(rows)
    assert (found.instances, found.skipped, found.worse_than_a_rival) == (3, 1, 1)
    assert found.gap is not None and (found.gap.median, found.gap.most) == (1.2, 1.3)
    plus = next(each for each in found.against if each.rival == "op-fence-plus")
    assert plus.auto is not None and (plus.auto.count, plus.auto.median) == (3, 1.0)
    assert plus.at_least_1_15 == 0.333 and found.too_near_the_bound == 0.333
    assert found.over_exact is not None and found.over_exact.median == 1.0101


def test_how_far_it_is_is_told() -> None:
    assert progress(50, 200).startswith("[#####...............] 50/200")
