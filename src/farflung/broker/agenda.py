"""What a survey of a fleet has to measure, and how many bytes that may take. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from farflung.broker.measurements import Measurements
from farflung.broker.records import Worker
from farflung.broker.survey import Line
from farflung.broker.surveying import FAN_PEERS, FAN_SHARE
from farflung.broker.tournament import Meeting, meetings

WORKER_BYTES = 128 * 2**20
"""What one worker may send in one survey."""

MOST_PROBE_BYTES = 32 * 2**20
LEAST_PROBE_BYTES = 2**20


@dataclass(frozen=True)
class Agenda:
    """Whom to measure with whom, and whose lines. `byte_limit` is for one probe of a pair."""

    meetings: tuple[Meeting, ...]
    lines: tuple[Line, ...]
    byte_limit: int

    def __bool__(self) -> bool:
        return bool(self.meetings or self.lines)


def agenda(
    probed: Mapping[str, Worker], pair_is_due: Callable[[Meeting], bool], line_is_due: Callable[[Line], bool]
) -> Agenda:
    """What there is to measure among these workers.

    A line is not measured where its owner has said what it carries, nor with fewer than two others to keep
    it busy.
    """
    all_meetings = meetings({name: worker.site for name, worker in probed.items()})
    due = tuple(meeting for meeting in all_meetings if pair_is_due(meeting))
    lines: list[Line] = []
    if len(probed) > 2:
        lines += [(name, "up") for name in sorted(probed) if probed[name].line.up_mbps is None]
        lines += [(name, "down") for name in sorted(probed) if probed[name].line.down_mbps is None]
    return Agenda(due, tuple(line for line in lines if line_is_due(line)), byte_limit(due))


def byte_limit(due: Iterable[Meeting]) -> int:
    """What one probe of a pair may send, so that nobody sends more than `WORKER_BYTES` by much."""
    most = max(Counter(name for meeting in due for name in meeting).values(), default=1)
    probes = most + 2 * FAN_PEERS / FAN_SHARE  # in its own fan, and in about as many of others
    return int(min(max(WORKER_BYTES / probes, LEAST_PROBE_BYTES), MOST_PROBE_BYTES))


def is_known(meeting: Meeting, measurements: Measurements) -> bool:
    """Whether the newest probe of two workers found a way between them, in both directions."""
    a, b = meeting
    ways = [measurements.pairs.get(pair) for pair in ((a, b), (b, a))]
    return all(way is not None and way.is_fresh for way in ways)
