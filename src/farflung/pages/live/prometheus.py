"""The status of a fleet as metrics for Prometheus.

All are gauges of what the broker knows at the moment of the scrape. A job that is over vanishes from them, so
sums over its life are in its run folder, not here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from farflung.broker.core.records import COLLECTING, LOADING, PLANNING, QUEUED, RUNNING
from farflung.protocol.messages import Status
from farflung.protocol.viewer import OVER, STATES, JobStatus

JOB_STATES = (QUEUED, PLANNING, LOADING, RUNNING, COLLECTING, *OVER)
TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposed(status: Status) -> bytes:
    """The metrics, in the text format of `TYPE`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fleet(status))
    return generate_latest(registry)


class _Fleet(Collector):
    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Every metric of the fleet."""
        workers = Counter(worker.state for worker in self._status.workers)
        jobs = Counter(job.state for job in self._status.jobs)
        yield _gauge(
            "uptime_seconds", "Seconds since the broker was started", [], [([], self._status.uptime_seconds)]
        )
        yield _gauge("workers", "Workers in a state", ["state"], (([one], workers[one]) for one in STATES))
        yield _gauge("jobs", "Jobs in a state", ["state"], (([one], jobs[one]) for one in JOB_STATES))
        yield from self._jobs()
        yield from self._links()

    def _jobs(self) -> Iterator[GaugeMetricFamily]:
        """Of each job that is not over."""
        going = [(job, [job.job, job.name]) for job in self._status.jobs if job.state not in OVER]
        columns: tuple[tuple[str, str, Callable[[JobStatus], float | None]], ...] = (
            ("job_step", "Steps that are done", lambda job: job.step),
            ("job_steps", "Steps that are asked for", lambda job: job.steps),
            ("job_loss", "Loss of the newest step", lambda job: job.loss),
            ("job_validation_loss", "Loss of the newest validation", lambda job: job.validation_loss),
            ("job_step_seconds", "Seconds of a step", lambda job: job.step_seconds),
            ("job_samples_per_second", "Speed", lambda job: job.samples_per_second),
            ("job_waits", "1: for workers or its submitter", lambda job: bool(job.waits_for) or job.held),
        )
        for name, words, value in columns:
            yield _gauge(name, words, ["job_id", "name"], ((who, value(job)) for job, who in going))

    def _links(self) -> Iterator[GaugeMetricFamily]:
        """Of each link that is connected, and whose job is not over."""
        labels = ["job_id", "source", "target"]
        going = {job.job for job in self._status.jobs if job.state not in OVER}
        views = [(view, view.report.link) for view in self._status.links if view.job in going]
        used = [([view.job, view.holder, view.report.peer], link) for view, link in views if link is not None]
        rates = ((who, link.rate_mbps) for who, link in used)
        yield _gauge("link_mbps", "Rate at which the target reads data, Mbit/s", labels, rates)
        round_trips = ((who, link.round_trip_ms) for who, link in used)
        yield _gauge("link_round_trip_ms", "Round trip, queues included", labels, round_trips)
        resent = ((who, link.resent) for who, link in used)
        yield _gauge("link_resent", "Share of packets that were lost and sent again", labels, resent)
        possible = (([view.job, view.holder, view.report.peer], view.possible_mbps) for view, _ in views)
        yield _gauge("link_possible_mbps", "Measured with nothing else on the link, Mbit/s", labels, possible)


def _gauge(
    name: str, words: str, labels: list[str], values: Iterable[tuple[list[str], float | None]]
) -> GaugeMetricFamily:
    """A metric; a value that is not known is left out."""
    found = GaugeMetricFamily(f"farflung_{name}", words, labels=labels)
    for who, value in values:
        if value is not None:
            found.add_metric(who, float(value))
    return found
