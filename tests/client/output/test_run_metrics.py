"""Units become rows: bytes, seconds and losses are counted once each."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import Tensor, nn

from farflung.client.api.job import Job
from farflung.client.api.monitors import EarlyStopping, monitors_of
from farflung.client.output.records import Best
from farflung.client.output.run_metrics import RunMetrics
from farflung.data import text
from farflung.errors import ProtocolError
from farflung.metrics import perplexity
from farflung.protocol.messages import UnitDone
from farflung.protocol.traffic import LinkTraffic
from farflung.runtime.monitoring import Monitored
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.optimizers.schedules import Constant


class Zeros:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.zeros(1)}


def job(**changes: object) -> Job:
    fields: dict[str, object] = {
        "model": nn.Linear(1, 1),
        "data": Zeros(),
        "validation": Zeros(),
        "batch": 4,
        "microbatches": 2,
        "steps": 2,
        "optimizer": SGD(lr=0.5, schedule=Constant(warmup_steps=1)),
    }
    return Job(**{**fields, **changes})  # type: ignore[arg-type]


def done(unit: int, loss: float, sent: int) -> UnitDone:
    return UnitDone("j", 1, unit, loss, 2.5, sent)


def test_a_stopped_run_says_of_which_step_its_validation_loss_is() -> None:
    tally = RunMetrics(job(), 0.0)
    assert tally.summary("cancelled", "", "j", 1.0).validation_step is None
    tally.running(0.0, 0)
    found = []
    for unit in range(4):  # an evaluation, two steps, and another evaluation
        tally.finished(done(unit, 1.0 + unit, 0), 1.0 + unit, 0)
        summary = tally.summary("cancelled", "", "j", 9.0)
        found.append((summary.steps, summary.validation_loss, summary.validation_step))
    assert found == [(0, 1.0, 0), (1, 1.0, 0), (2, 1.0, 0), (2, 4.0, 2)]


def test_links_have_their_ratio_in_each_step_and_in_the_run() -> None:
    tally = RunMetrics(job(), 0.0)
    tally.running(0.0, 0)
    rows = []
    for unit in range(3):
        links = [LinkTraffic("a", "b", 400, 100), LinkTraffic("b", "a", 400, 300)]
        rows.append(tally.finished(msgspec.structs.replace(done(unit, 1.0, 400), links=links), 1.0 + unit, 0))
    assert rows[0] is None and rows[1] is not None
    assert [(link.source, link.target, link.ratio) for link in rows[1].links] == [
        ("a", "b", 4.0),
        ("b", "a", 4 / 3),
    ]
    summary = tally.summary("done", "", "job-1", 9.0)
    assert [(link.tensor_bytes, link.wire_bytes) for link in summary.links] == [(1200, 300), (1200, 900)]
    assert summary.ratio == 2.0


def test_a_run_is_counted() -> None:
    tally = RunMetrics(job(), 100.0)
    tally.planned(101.0, 3)
    tally.running(103.0, 1000)
    assert tally.finished(done(0, 5.0, 7), 104.0, 1010) is None
    first = tally.finished(done(1, 4.0, 20), 106.0, 1030)
    second = tally.finished(done(2, 3.0, 30), 106.5, 1070)
    assert tally.finished(done(3, 2.0, 1), 107.0, 1071) is None
    assert first is not None and second is not None
    assert (first.step, first.loss, first.samples, first.seconds) == (1, 4.0, 4, 2.0)
    assert (first.samples_per_second, first.bytes_on_wire, first.gradient_norm) == (2.0, 40, 2.5)
    assert (second.step, second.seconds, second.bytes_on_wire) == (2, 0.5, 70)
    assert (first.learning_rate, second.learning_rate) == (0.25, 0.5)
    summary = tally.summary("done", "", "job-1", 110.0)
    assert (summary.steps, summary.workers, summary.seconds, summary.loading_seconds) == (2, 3, 10.0, 2.0)
    assert (summary.train_loss, summary.initial_validation_loss, summary.validation_loss) == (3.0, 5.0, 2.0)
    assert (summary.loading_bytes, summary.bytes_on_wire) == (1000, 17 + 40 + 70 + 2)
    assert summary.corpus is None


def test_a_run_that_begins_later_counts_from_there() -> None:
    tally = RunMetrics(job(steps=5, validate_every=2), 100.0, first=4)  # before it: 0, step, step, 2
    tally.running(103.0, 1000)
    assert tally.current is not None and (tally.current.number, tally.current.step, tally.steps) == (4, 2, 2)
    rows = [tally.finished(done(unit, 5.0, 7), 100.0 + unit * unit, 1000) for unit in (4, 5, 6, 7)]
    assert [row and row.step for row in rows] == [3, 4, None, 5]
    assert tally.step_seconds == (9.0 + 13.0) / 2
    assert tally.finished(done(8, 5.0, 7), 170.0, 1000) is None
    assert tally.current is None and tally.summary("done", "", "job-1", 171.0).steps == 5


def test_an_evaluation_that_was_missed_took_the_microbatches_that_the_plan_says() -> None:
    """A process that takes another's place hears of the plan last from an older broker."""
    asked = job()
    *_, last = asked.training().units()
    assert last.microbatches == 4
    tally = RunMetrics(asked, 0.0, first=last.number)
    tally.finished(done(last.number, 5.0, 7), None, None)
    tally.evaluates_on(1)
    assert tally.claim is not None and tally.claim.unit == last._replace(microbatches=1)
    assert tally.summary("done", "", "job-1", 1.0).validation_microbatches == 1
    tally.evaluates_on(0)
    assert tally.claim.unit.microbatches == 1


def test_a_run_that_never_began_has_a_summary_too() -> None:
    summary = RunMetrics(job(), 0.0).summary("failed", "the broker was lost", "", 2.0)
    assert (summary.steps, summary.workers, summary.train_loss, summary.loading_seconds) == (0, 0, None, None)


def test_a_text_is_named() -> None:
    data = text("train", sequence=16)
    summary = RunMetrics(job(data=data), 0.0).summary("done", "", "job-1", 1.0)
    assert summary.corpus is not None
    assert (summary.corpus.sha256, summary.corpus.bytes) == (
        data.describe()["sha256"],
        data.describe()["bytes"],
    )


def test_a_unit_out_of_turn_is_refused() -> None:
    tally = RunMetrics(job(), 0.0)
    tally.running(1.0, 0)
    with pytest.raises(ProtocolError, match="unit 1"):
        tally.finished(done(1, 1.0, 0), 2.0, 0)


def test_what_happened_while_the_submitter_was_away_is_not_known() -> None:
    tally = RunMetrics(job(validation=None, steps=4), 0.0)
    tally.running(1.0, 100)
    rows = [
        tally.finished(done(0, 4.0, 20), 2.0, 110),
        tally.finished(done(1, 3.0, 20), None, None),
        tally.finished(done(2, 2.0, 20), 9.0, 115),
        tally.finished(done(3, 1.0, 20), 10.0, 120),
    ]
    known = [(row.seconds, row.samples_per_second, row.bytes_on_wire) for row in rows if row is not None]
    assert known == [(1.0, 4.0, 30), (None, None, None), (None, None, 25), (1.0, 4.0, 25)]
    assert [row.loss for row in rows if row is not None] == [4.0, 3.0, 2.0, 1.0]
    assert (tally.step_seconds, tally.bytes_on_wire) == (1.0, 100) and tally.next_unit == 4


def test_a_monitor_of_perplexity_says_that_it_compares_losses() -> None:
    asked = job(
        validate_every=1,
        metrics={"perplexity": perplexity},
        stop_early=EarlyStopping(patience=1, metric="perplexity"),
        keep_best=True,
    )
    stopping, keeping = monitors_of(asked, {})
    assert stopping.metric == keeping.metric == "loss" and stopping.mode == "min"
    assert "loss has not fallen below 2.30259" in Monitored(2.302585, 1, 1).why_over(stopping)
    tally = RunMetrics(asked, 0.0)
    tally.monitored = (Monitored(), Monitored(2.302585, 1))
    assert tally.best == Best("loss", 2.302585, 1)
