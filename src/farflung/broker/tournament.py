"""Who meets whom, and when: nobody is in two places at once. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

MOST_MEETINGS = 23
"""Of one worker with others; up to 24 workers all meet."""

SITE_MEETINGS = 3
"""Of a worker that stands for nobody with others of its site."""

Meeting = tuple[str, str]


def rounds(players: Sequence[str]) -> list[list[Meeting]]:
    """Everybody meets everybody once, in as few rounds as can be, each at most once a round.

    The circle method: one stays, the others move on by one seat. Who comes first in a meeting is spread
    evenly.
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
    """Whom to measure with whom, by worker and declared site (empty: none), round after round.

    Up to 24 workers all meet. Of more, representatives of their sites meet, as many as that allows, and the
    others a few of their own site; without sites to go by everybody meets 23 others. What the rest is taken
    for, `broker.assumed` says.
    """
    workers = sorted(sites)
    if len(workers) <= MOST_MEETINGS + 1:
        return _in_turn(rounds(workers))
    by_site: defaultdict[str, list[str]] = defaultdict(list)
    for worker in workers:
        by_site[sites[worker]].append(worker)
    if "" in by_site or len(by_site) > MOST_MEETINGS + 1:
        return _in_turn(rounds(workers)[:MOST_MEETINGS])
    among = [rounds(members)[:SITE_MEETINGS] for members in by_site.values()]
    inside = [meeting for one in among for meeting in _in_turn(one)]
    across = _in_turn(rounds(_representatives(list(by_site.values()))))
    seen = {frozenset(meeting) for meeting in across}
    return [*across, *(meeting for meeting in inside if frozenset(meeting) not in seen)]


def _representatives(sites: Sequence[Sequence[str]]) -> list[str]:
    """One of each site after the other, until there are enough."""
    longest = max(map(len, sites))
    dealt = [members[turn] for turn in range(longest) for members in sites if turn < len(members)]
    return sorted(dealt[: MOST_MEETINGS + 1])


def _in_turn(found: Sequence[Sequence[Meeting]]) -> list[Meeting]:
    return [meeting for one in found for meeting in one]
