"""`RunMetrics`: turns decided units into metric rows and, at the end, into the summary of a run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from farflung.client.api.job import Job
from farflung.client.api.monitors import monitors_of
from farflung.client.output.records import (
    Best,
    Claim,
    CorpusRecord,
    HomeLosses,
    LinkRow,
    StepRow,
    Summary,
    ValidationRow,
)
from farflung.data import TextDataset
from farflung.errors import ProtocolError
from farflung.metrics import Perplexity
from farflung.plans import Prediction
from farflung.protocol.messages import (
    UnitDone,
)
from farflung.protocol.traffic import LinkTraffic
from farflung.runtime.monitoring import Monitored, mean_of
from farflung.runtime.optimizers.declared import learning_rate
from farflung.schedule import Unit

TYPICAL_OF = 1000  # steps
MOST_NATS = 700.0
"""The exponential of larger losses is infinite in float64."""


class RunMetrics:
    """Counts steps, losses, seconds and bytes of one run. The caller gives times in monotonic seconds.

    A run on `emulated` devices has no losses. The run begins at unit `first`; `current` is the unit in
    progress, None after the last, and `is_running` says whether workers are at it. `steps` are all that are
    applied, those before unit `first` too. `values` are those of the graph for each metric.
    """

    def __init__(
        self,
        job: Job,
        now: float,
        emulated: bool = False,
        first: int = 0,
        values: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self._job = job
        self._values = values or {}
        self.validation_metrics: dict[str, float] = {}
        self.monitored: tuple[Monitored, ...] = ()
        self._monitors = () if emulated else monitors_of(job, self._values)
        self._emulated = emulated
        self._training = job.training()
        self._units = self._training.units()
        self._go_to(first)
        self._started = now
        self._loading_since: float | None = now
        self._last: float | None = now
        self._counted_bytes = 0
        self.steps = self._steps_before = self.current.step if self.current else self._training.steps
        self.workers = 0
        self.weights_step: int | None = None
        self.checkpoint_step: int | None = None
        self.bytes_on_wire = 0
        self.loading_bytes = 0
        self.loading_seconds: float | None = None
        self.is_running = False
        self.train_loss: float | None = None
        self.first_validation_loss: float | None = None
        self.validation_loss: float | None = None
        self.validation_step: int | None = None
        self.validation_loss_with_codecs: float | None = None
        self._of_first_replica = False
        self.claim: Claim | None = None
        self.home_losses: HomeLosses | None = None
        self.prediction: Prediction | None = None
        self._links: dict[tuple[str, str], LinkTraffic] = {}
        self._recent: deque[float] = deque(maxlen=TYPICAL_OF)

    def planned(self, now: float, workers: int, prediction: Prediction | None = None) -> None:
        """Note the plan; loading begins."""
        self._loading_since = now
        self.workers = workers
        self.prediction = prediction

    def evaluates_on(self, microbatches: int) -> None:
        """Note that evaluations take so many microbatches; 0: as many as the job asks for.

        The broker decides this in a job's first plan. An older broker says it only after the units that a
        process missed which takes another's place, so it holds for those, too.
        """
        self._training = self._training.evaluating_on(microbatches)
        self._units = self._training.units()
        if self.claim is not None and (unit := self._units.at(self.claim.unit.number)) is not None:
            self.claim = self.claim._replace(unit=unit)
        self._go_to(self._next)

    def elapsed(self, now: float) -> float:
        """Seconds since the run began."""
        return now - self._started

    def running(self, now: float, sent_bytes: int) -> None:
        """Note that the first unit begins; this process has sent `sent_bytes` over data links so far."""
        if self._loading_since is not None:
            self.loading_seconds, self.loading_bytes = now - self._loading_since, sent_bytes
        self.is_running = True
        self._counted_bytes, self._last = sent_bytes, now

    def regrouping(self) -> None:
        """Note that the workers link up again, and load nothing."""
        self.is_running = False
        self._loading_since = None

    def rolled_back(self, unit: int) -> None:
        """Go back to `unit`, which runs again in the next attempt."""
        self.is_running = False
        self._go_to(unit)
        self.steps = self._steps_before = self.current.step if self.current else self._training.steps
        self._recent.clear()

    @property
    def next_unit(self) -> int:
        """The number of the first unit that is not counted, also if the job has no such unit."""
        return self._next

    def steps_between(self, first: int, end: int) -> int:
        """How many of the units from `first` to before `end` are steps."""
        units = (self._units.at(number) for number in range(first, end))
        return sum(unit is not None and unit.train for unit in units)

    def finished(self, done: UnitDone, now: float | None, sent_bytes: int | None) -> StepRow | None:
        """Count a decided unit.

        `now` is None for a unit that ended while this process was away, `sent_bytes` if it holds no links.
        A training step returns a row; a merge counts for the step after it. An evaluation sets
        `validation_loss`, or `validation_loss_with_codecs` for the one with codecs if a job has both.

        Raises
        ------
        ProtocolError
            This is not the unit in progress.
        """
        unit = self.current
        if unit is None or unit.number != done.unit:
            raise ProtocolError(f"the broker ended unit {done.unit}, expected {unit}")
        own_bytes = 0 if sent_bytes is None else sent_bytes - self._counted_bytes
        self._counted_bytes += own_bytes
        self.bytes_on_wire += done.bytes_sent + own_bytes
        self._go_to(unit.number + 1)
        self._add(done.links)
        if unit.merges:
            return None
        seconds = None if now is None or self._last is None else now - self._last
        self._last = now
        self.monitored = tuple(done.monitored)
        loss = None if self._emulated else done.loss
        if self.is_looped(unit):
            self.validation_loss_with_codecs = loss
            return None
        if not unit.train:
            self.validation_loss = loss
            self.validation_step = None if loss is None else self.steps
            self._of_first_replica = unit.alone
            self.validation_metrics = self._measured(done, unit)
            if self.first_validation_loss is None:
                self.first_validation_loss = loss
            if loss is not None and self.first_validation_loss is not None:
                self.claim = Claim(unit, loss, self.first_validation_loss)
            return None
        self.steps = unit.step + 1
        self.train_loss = loss
        if seconds is not None:
            self._recent.append(seconds)
        return StepRow(
            step=self.steps,
            loss=loss,
            samples=self._job.batch,
            seconds=seconds,
            samples_per_second=None if seconds is None else _rate(self._job.batch, seconds),
            bytes_on_wire=None if sent_bytes is None else done.bytes_sent + own_bytes,
            attempt=done.attempt,
            learning_rate=learning_rate(self._training.optimizer, unit.step),
            gradient_norm=None if self._emulated else done.gradient_norm,
            emulated=self._emulated,
            links=[_row(link) for link in done.links],
            bytes_copied=None if sent_bytes is None else done.bytes_copied,
        )

    @property
    def best(self) -> Best | None:
        """The best evaluation so far, if the job keeps the weights of it."""
        pairs = zip(self._monitors, self.monitored, strict=False)
        found = ((monitor.metric, one) for monitor, one in pairs if monitor.keeps)
        return next((Best(name, one.best, one.step) for name, one in found if one.best is not None), None)

    @property
    def kept_by(self) -> str:
        """The metric whose best weights the job keeps; empty if it keeps the last ones."""
        return next((monitor.metric for monitor in self._monitors if monitor.keeps), "")

    @property
    def is_evaluated(self) -> bool:
        """Whether no evaluation of the newest weights is still to come."""
        return self.current is None or not self.current.evaluates

    @property
    def is_merged(self) -> bool:
        """Whether no merge of the newest weights is still to come."""
        return self.current is None or not self.current.merges

    @property
    def has_metrics(self) -> bool:
        """Whether evaluations measure more than the loss."""
        return bool(self._job.metrics) and not self._emulated

    def validation(self, attempt: int) -> ValidationRow:
        """The row of the newest evaluation, in that attempt."""
        loss, metrics, first = self.validation_loss, self.validation_metrics, self._of_first_replica
        return ValidationRow(self.steps, loss, metrics, attempt, of_first_replica=first)

    def _measured(self, done: UnitDone, unit: Unit) -> dict[str, float]:
        """The finite metrics of an evaluation, in the job's order."""
        if not self.has_metrics:
            return {}
        found: dict[str, float] = {}
        for name, metric in (self._job.metrics or {}).items():
            if isinstance(metric, Perplexity):
                found[name] = math.exp(done.loss) if done.loss < MOST_NATS else math.inf
            elif name in self._values:
                found[name] = mean_of(self._values[name], done.metrics, unit.microbatches)
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def is_looped(self, unit: Unit) -> bool:
        """Whether the unit evaluates with codecs what the next unit evaluates without."""
        return self._training.validate_twice and unit.evaluates and not unit.plain

    @property
    def step_seconds(self) -> float | None:
        """The median of the newest steps, without the first one (cold links and caches) if there are more.

        Their mean if replicas train apart, where a few steps carry the merges.
        """
        has_first = self.steps - self._steps_before == len(self._recent)
        timed = list(self._recent)[1 if has_first and len(self._recent) > 1 else 0 :]
        typical = median if self._training.inner_steps == 1 else fmean
        return typical(timed) if timed else None

    def summary(self, state: str, reason: str, job: str, now: float) -> Summary:
        """The contents of `summary.json`."""
        return Summary(
            state=state,
            reason=reason,
            steps=self.steps,
            train_loss=self.train_loss,
            validation_loss=self.validation_loss,
            validation_step=self.validation_step,
            validation_loss_with_codecs=self.validation_loss_with_codecs,
            initial_validation_loss=self.first_validation_loss,
            seconds=now - self._started,
            loading_seconds=self.loading_seconds,
            workers=self.workers,
            bytes_on_wire=self.bytes_on_wire,
            loading_bytes=self.loading_bytes,
            weights_step=self.weights_step,
            job=job,
            corpus=_corpus(self._job),
            emulated=self._emulated,
            step_seconds=self.step_seconds,
            predicted_step_seconds=self.prediction.step_seconds if self.prediction else None,
            predicted_bottleneck=self.prediction.bottleneck if self.prediction else "",
            prediction_is_brief=self.prediction.brief if self.prediction else False,
            checkpoint_step=self.checkpoint_step,
            metrics=self.validation_metrics,
            scheduler=self.prediction.scheduler if self.prediction else "",
            links=[_row(link) for link in self._links.values()],
            ratio=self.ratio,
            best=self.best,
            validation_microbatches=None if self.claim is None else self.claim.unit.microbatches,
            home_losses=self.home_losses,
        )

    @property
    def ratio(self) -> float | None:
        """Compression ratio of the traffic between workers: fp32 bytes over bytes on the wire, or None."""
        tensor_bytes = sum(link.tensor_bytes for link in self._links.values())
        wire_bytes = sum(link.wire_bytes for link in self._links.values())
        return tensor_bytes / wire_bytes if wire_bytes else None

    def weights_on_stop(self) -> str:
        """What happens to the weights if the run is stopped now, as the end of a sentence; or nothing."""
        if self.loading_seconds is None:
            return ": no step has begun, so there are no weights to collect"
        if not self.is_running:
            saved = self.checkpoint_step
            return "" if saved is None else f": the checkpoint of step {saved} stays"
        if not self.steps:
            return ": no step is done yet, so there are no weights to collect"
        if self._training.verify == 1:
            return ": no weights come home, as the last were not checked (verify=1)"
        return ": collecting the weights of the last applied step first"

    def _go_to(self, unit: int) -> None:
        self._next, self.current = unit, self._units.at(unit)

    def _add(self, links: Sequence[LinkTraffic]) -> None:
        for link in links:
            known = self._links.get((link.source, link.target), LinkTraffic(link.source, link.target, 0, 0))
            self._links[link.source, link.target] = known.with_more(link)


def _rate(samples: int, seconds: float) -> float:
    return samples / seconds if seconds > 0 else math.inf


def _row(link: LinkTraffic) -> LinkRow:
    return LinkRow(
        link.source, link.target, link.tensor_bytes, link.wire_bytes, link.ratio, link.coding_seconds
    )


def _corpus(job: Job) -> CorpusRecord | None:
    if not isinstance(job.data, TextDataset):
        return None
    found = job.data.describe()
    return CorpusRecord(str(found["name"]), str(found["sha256"]), int(found["bytes"]))
