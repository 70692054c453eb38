"""Choose the pairs and access lines that a survey measures, their order and byte limits. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from farflung.broker.core.records import Worker
from farflung.broker.survey.machine import FAN_PEERS, FAN_SHARE, AccessLine
from farflung.broker.survey.measurements import Measurements

MOST_MEETINGS = 23
"""Largest number of other workers that one worker probes; in fleets of up to 24, all pairs are probed."""

SITE_MEETINGS = 3
"""Pairs within its own site for a worker that does not represent the site."""

Meeting = tuple[str, str]


def round_robin(players: Sequence[str]) -> list[list[Meeting]]:
    """All pairs of players, in the fewest rounds in which each player has at most one partner.

    The circle method: one player stays, the others move on by one seat. Each player comes first in about half
    of its pairs.
    """
    count = len(players)
    seats = list(range(count + count % 2))
    found: list[list[Meeting]] = []
    for _ in seats[1:]:
        half = len(seats) // 2
        across = [sorted(two) for two in zip(seats[:half], reversed(seats[half:]), strict=True)]
        in_turn = [(a, b) if (a + b) % 2 else (b, a) for a, b in across if b < count]
        found.append([(players[a], players[b]) for a, b in in_turn])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def meetings(sites: Mapping[str, str]) -> list[Meeting]:
    """The pairs to measure, round after round. `sites` maps workers to declared sites (empty: none).

    Up to 24 workers: all pairs. More workers with sites: all pairs of up to 24 representatives of the sites,
    and a few pairs within each site. More workers without sites: 23 pairs for each worker. See `topology` for
    what is assumed about the other pairs.
    """
    workers = sorted(sites)
    if len(workers) <= MOST_MEETINGS + 1:
        return _in_turn(round_robin(workers))
    by_site: defaultdict[str, list[str]] = defaultdict(list)
    for worker in workers:
        by_site[sites[worker]].append(worker)
    if "" in by_site or len(by_site) > MOST_MEETINGS + 1:
        return _in_turn(round_robin(workers)[:MOST_MEETINGS])
    among = [round_robin(members)[:SITE_MEETINGS] for members in by_site.values()]
    inside = [meeting for one in among for meeting in _in_turn(one)]
    across = _in_turn(round_robin(_representatives(list(by_site.values()))))
    seen = {frozenset(meeting) for meeting in across}
    return [*across, *(meeting for meeting in inside if frozenset(meeting) not in seen)]


def _representatives(sites: Sequence[Sequence[str]]) -> list[str]:
    """Up to 24 workers, dealt from the sites in turn."""
    longest = max(map(len, sites))
    dealt = [members[turn] for turn in range(longest) for members in sites if turn < len(members)]
    return sorted(dealt[: MOST_MEETINGS + 1])


def _in_turn(found: Sequence[Sequence[Meeting]]) -> list[Meeting]:
    return [meeting for one in found for meeting in one]


WORKER_BYTES = 128 * 2**20
"""Bytes that one worker may send in one survey."""

MOST_PROBE_BYTES = 32 * 2**20
LEAST_PROBE_BYTES = 2**20


@dataclass(frozen=True)
class SurveyPlan:
    """The pairs and access lines to measure. `byte_limit` applies to one probe of a pair."""

    meetings: tuple[Meeting, ...]
    lines: tuple[AccessLine, ...]
    byte_limit: int

    def __bool__(self) -> bool:
        return bool(self.meetings or self.lines)


def survey_plan(
    probed: Mapping[str, Worker],
    pair_is_due: Callable[[Meeting], bool],
    line_is_due: Callable[[AccessLine], bool],
) -> SurveyPlan:
    """What to measure among these workers.

    An access line is not measured if its owner has declared its rate, or with fewer than two other workers to
    keep it busy.
    """
    all_meetings = meetings({name: worker.site for name, worker in probed.items()})
    due = tuple(meeting for meeting in all_meetings if pair_is_due(meeting))
    lines: list[AccessLine] = []
    if len(probed) > 2:
        lines += [(name, "up") for name in sorted(probed) if probed[name].line.up_mbps is None]
        lines += [(name, "down") for name in sorted(probed) if probed[name].line.down_mbps is None]
    return SurveyPlan(due, tuple(line for line in lines if line_is_due(line)), byte_limit(due))


def byte_limit(due: Iterable[Meeting]) -> int:
    """Bytes for one probe of a pair, so that no worker sends much more than `WORKER_BYTES` in total."""
    most = max(Counter(name for meeting in due for name in meeting).values(), default=1)
    probes = most + 2 * FAN_PEERS / FAN_SHARE  # in its own fan, and in about as many of others
    return int(min(max(WORKER_BYTES / probes, LEAST_PROBE_BYTES), MOST_PROBE_BYTES))


def is_known(meeting: Meeting, measurements: Measurements) -> bool:
    """Whether the newest probes of two workers found a rate in both directions."""
    a, b = meeting
    measured = [measurements.pairs.get(pair) for pair in ((a, b), (b, a))]
    return all(link is not None and link.is_fresh for link in measured)
