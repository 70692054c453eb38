"""The study of depth: runs that belong to their course, gaps between runs of one seed, and intervals."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
from benchmarks.learning import depth
from benchmarks.learning.depth import Case, Kept
from benchmarks.learning.outcome import Measured, Outcome
from benchmarks.learning.way import DENSE, Way

from farflung.errors import FarflungError
from farflung.planner.codecs.guard import Finding, Guard, ProbeBegins, TrainingLoss

ROUGH = depth.WAYS[0]


def kept(case: Case, last: float, losses: list[float] | None = None) -> Kept:
    curve = [Measured(0, 5.0, 5.0), Measured(80, last, last)]
    outcome = Outcome(
        case.model, case.way, case.seed, 80, curve, 1000, 100, 10.0, 10.0, 1.0, losses=losses or [last] * 80
    )
    return Kept("key", case.model, case.warmup, case.segments, outcome)


def test_gaps_are_of_one_seed_and_its_course() -> None:
    runs = [kept(Case("gpt", True, 4, DENSE, seed), loss) for seed, loss in enumerate((2.0, 4.0))]
    runs += [kept(Case("gpt", True, 16, ROUGH, seed), loss) for seed, loss in enumerate((2.02, 4.12))]
    runs += [kept(Case("gpt", False, 8, ROUGH, 0), 3.0)]  # no dense run without warm-up
    dense, rough = depth.rows(runs)
    assert (dense.way, rough.way, rough.segments) == (DENSE, ROUGH, 16)
    mean, low, high = rough.loss_gap
    assert mean == pytest.approx(2) and low == pytest.approx(2 - 6.3138, abs=0.001) and high > 8
    assert rough.training_gap[0] == pytest.approx(2)
    assert "+2.00 (-4.31 to +8.31)" in depth.table([dense, rough])


def test_a_run_that_fell_less_than_half_as_far_as_the_dense_one_stalled() -> None:
    runs = [kept(Case("gpt", True, 4, DENSE, seed), 3.0) for seed in range(2)]
    runs += [kept(Case("gpt", True, 8, ROUGH, seed), loss) for seed, loss in enumerate((4.1, 3.9))]
    assert [row.stalled for row in depth.rows(runs)] == [0, 1]


def test_a_study_goes_on_where_it_was_and_runs_again_what_another_course_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, ran = tmp_path / "runs.jsonl", list[Case]()
    cases = [Case("gpt", True, 4, DENSE, 0), Case("gpt", True, 4, ROUGH, 0)]

    def train(subject: object, way: Way, seed: int, tell: object) -> Outcome:
        ran.append(Case("gpt", True, 4, way.text, seed))
        return kept(ran[-1], 3.0).outcome

    monkeypatch.setattr(depth, "train", train)
    lines = list[str]()
    depth.study(path, cases[:1], lines.append)
    with path.open("ab") as file:
        file.write(b'{"key": "cut o')  # the process was killed here
    found = depth.study(path, cases, lines.append)
    assert ran == cases and [run.case for run in found] == cases and len(lines) == 2
    assert depth.read(path) == found
    assert depth.study(path, [*cases, Case("gpt", True, 8, ROUGH, 0)], lines.append, run=False) == found
    monkeypatch.setattr("benchmarks.learning.subject.DEEP_STEPS", 40)
    depth.study(path, cases[:1], lines.append)
    assert ran == [*cases, cases[0]] and len(depth.read(path)) == 3
    path.write_bytes(b"no run\n" + path.read_bytes())
    with pytest.raises(FarflungError, match="line 1 is no run"):
        depth.read(path)


def test_every_run_has_its_dense_one_before_it() -> None:
    seen = set[Case]()
    for case in dict.fromkeys(depth.cases()):
        assert case.way == DENSE or case.dense in seen
        seen.add(case)


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt", "resnet"])
def test_each_boundary_of_sixteen_segments_is_one_value_that_codecs_write(model: str) -> None:
    from benchmarks.learning.run import plan_of

    edges = plan_of(Case(model, True, 16, ROUGH, 0).subject()).edges
    assert sorted(edge.source for edge in edges if edge.is_codable) == list(range(15))


def test_the_guard_probes_no_measured_run_but_those_that_stand_still_instead() -> None:
    """Each run is replayed as it was, and a GPT's also with a loss that stays where it was at step 30."""
    runs = [run for run in depth.read() if run.warmup]
    assert {run.model for run in runs} == {"gpt", "resnet"}
    for run in runs:
        losses = run.outcome.losses
        assert found(losses) == [], run.case
        level, noise = fmean(losses[25:35]), [loss / fmean(losses[40:]) for loss in losses[40:]]
        stalled = losses[:30] + [level * each for each in noise] * 4
        assert run.model != "gpt" or isinstance(found(stalled)[0], ProbeBegins), run.case


@pytest.mark.parametrize("seed", [0, 2])
def test_the_guard_probes_the_measured_runs_that_stalled(seed: int) -> None:
    (run,) = (run for run in depth.read() if run.case == Case("gpt", False, depth.CONTROL, ROUGH, seed))
    assert run.outcome.last.plain > 3.18  # the entropy of single bytes
    assert isinstance(found(run.outcome.losses)[0], ProbeBegins)


def found(losses: list[float]) -> list[Finding]:
    guard, findings = Guard(0.01), list[Finding]()
    for step, loss in enumerate(losses, 1):
        guard, more = guard.on_evidence(TrainingLoss(step, loss, is_rough=True))
        findings.extend(more)
    return findings
