"""Turn the answers to one probe into measurements, and learn which workers can be dialled. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from farflung.broker.survey.measurements import (
    AccessLineMeasurement,
    Direction,
    Measurement,
    Measurements,
    Pair,
    PairMeasurement,
)
from farflung.protocol.probing import Probed, ProbedLink


@dataclass(frozen=True)
class Results:
    """The measurements of one probe, the workers that could be dialled, and those that could not."""

    measurements: tuple[Measurement, ...] = ()
    opened: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()


def pair_results(pair: Pair, answers: Mapping[str, Probed], gone: Mapping[str, str], now: float) -> Results:
    """Measurements of both links of a pair, also if they failed.

    `gone` maps members that have left the survey to the reason; their silence says nothing about the link.
    """
    first, second = pair
    there, back = _link_result(answers, first, second), _link_result(answers, second, first)
    path = there.path or back.path
    dialler, dialled = (first, second) if there.path else (second, first)
    opened = {"direct": {dialled}, "reverse": {dialler}}.get(path, set())
    closed = set() if path in ("", "direct") else {first, second} - opened
    silent = [f"worker {name}: {gone[name]}" for name in pair if name in gone]
    has_failed = not path and not silent
    problem = next(filter(None, [*silent, there.problem, back.problem]), "no bytes of the probe arrived")
    measurements = tuple(
        PairMeasurement(
            sender,
            receiver,
            bandwidth_mbps=own.bandwidth_mbps or 0.0,
            latency_ms=own.latency_ms or 0.0,
            at=now,
            path=path,
            is_settled=own.is_settled,
            problem="" if own.bandwidth_mbps else problem,
            dialled=next(iter(opened), ""),
            closed=tuple(sorted(closed)),
            failures=int(has_failed),
        )
        for sender, receiver, own in ((first, second, there), (second, first, back))
    )
    return Results(measurements, frozenset(opened), frozenset(closed))


def better(results: Results, known: Measurements) -> Results:
    """The results of a second probe, with each link's first measurement kept where that was better."""
    measurements: list[Measurement] = []
    for measurement in results.measurements:
        before = known.pairs.get(measurement.pair) if isinstance(measurement, PairMeasurement) else None
        measurements.append(before if before is not None and _is_better(before, measurement) else measurement)
    return replace(results, measurements=tuple(measurements))


def line_results(
    centre: str, direction: Direction, answers: Mapping[str, Probed], known: Measurements, now: float
) -> Results:
    """The rate of a worker's access line with several links busy; empty if fewer than two were.

    Also empty if the rate was low and still grew when time was up, because that does not show sharing.
    """
    probed = answers.get(centre)
    if probed is None or not probed.line_mbps:
        return Results()
    peers = {link.peer for link in probed.links if not link.problem}
    pairs = [(centre, peer) if direction == "up" else (peer, centre) for peer in peers]
    alone = [known.pairs[pair].bandwidth_mbps for pair in pairs if pair in known.pairs]
    if len(alone) < 2:
        return Results()
    # An access line carries at least the rate of one link alone; a lower result means a busy machine.
    line = AccessLineMeasurement(centre, direction, max(probed.line_mbps, *alone), sum(alone), now)
    return Results(() if line.is_shared and not probed.line_is_settled else (line,))


def _link_result(answers: Mapping[str, Probed], worker: str, peer: str) -> ProbedLink:
    probed = answers.get(worker)
    links = [] if probed is None else [link for link in probed.links if link.peer == peer]
    return links[0] if links else ProbedLink(peer)


def _is_better(before: PairMeasurement, measurement: Measurement) -> bool:
    assert isinstance(measurement, PairMeasurement)
    return before.is_fresh and _quality(before) > _quality(measurement)


def _quality(measurement: PairMeasurement) -> tuple[bool, float]:
    """Sort key: a rate that stopped growing is better than one that still grew, then the higher one."""
    return measurement.is_settled and measurement.bandwidth_mbps > 0, measurement.bandwidth_mbps
