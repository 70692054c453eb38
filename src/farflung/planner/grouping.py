"""Partition the workers of a fleet into groups, each of which may train a pipeline of its own. Pure.

Groups are made by site and by speed, since a pipeline is as fast as its slowest segment, and its activations
cross its own links for each microbatch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise

from farflung.plans import Topology

Group = tuple[int, ...]
"""Numbers of workers in a topology, ascending."""

ALIKE = 1.5
"""Workers in a row by speed are of one class while each is at most so much faster than the next."""
MOST_GROUPS = 8


def groupings(topology: Topology, count: int = 0) -> list[tuple[Group, ...]]:
    """Partitions into two to `MOST_GROUPS` groups, or exactly `count`; slow groups may be left out.

    The groups of each are in the order of their speed, the fastest first.
    """
    speeds = [worker.tflops for worker in topology.workers]
    found: dict[frozenset[Group], tuple[Group, ...]] = {}
    for groups in _natural(topology, speeds):
        for some in _sized(groups, speeds, count):
            ordered = sorted(some, key=lambda group: (-_speed(group, speeds), group))
            found.setdefault(frozenset(some), tuple(ordered))
    return list(found.values())


def _natural(topology: Topology, speeds: Sequence[float]) -> Iterator[list[Group]]:
    """Groups by site, by site and class of speed, by class alone, and the fastest workers each alone."""
    sites = [worker.site or f"\0{worker.id}" for worker in topology.workers]
    classes = _classes(speeds)
    yield _grouped(sites)
    yield _grouped(list(zip(sites, classes, strict=True)))
    yield _grouped(classes)
    yield _grouped(
        [
            (site, number if at == 0 else -1)
            for number, (site, at) in enumerate(zip(sites, classes, strict=True))
        ]
    )


def _classes(speeds: Sequence[float]) -> list[int]:
    """The class of each worker's speed, 0 for the fastest."""
    ranked = sorted(range(len(speeds)), key=lambda number: -speeds[number])
    classes, at = [0] * len(speeds), 0
    for before, number in pairwise(ranked):
        at += speeds[before] > ALIKE * speeds[number]
        classes[number] = at
    return classes


def _grouped(keys: Sequence[Hashable]) -> list[Group]:
    found: dict[Hashable, list[int]] = {}
    for number, key in enumerate(keys):
        found.setdefault(key, []).append(number)
    return [tuple(members) for members in found.values()]


def _speed(group: Group, speeds: Sequence[float]) -> float:
    return sum(speeds[number] for number in group)


def _sized(groups: list[Group], speeds: Sequence[float], count: int) -> Iterator[list[Group]]:
    """Partitions of the numbers of groups that are wanted, by leaving out, merging and splitting groups."""
    ranked = sorted(groups, key=lambda group: (-_speed(group, speeds), group))
    if not count:
        yield from (ranked[:some] for some in range(2, min(len(ranked), MOST_GROUPS) + 1))
        if len(ranked) == 1:
            yield from _sized(ranked, speeds, 2)
        return
    if len(ranked) >= count:
        yield ranked[:count]
    while len(ranked) > count:  # the slowest groups together
        *ranked, last = ranked
        merged = tuple(sorted((*ranked.pop(), *last)))
        ranked = sorted([*ranked, merged], key=lambda group: (-_speed(group, speeds), group))
    while len(ranked) < count:
        largest = max((group for group in ranked if len(group) > 1), key=len, default=())
        if not largest:
            return
        ranked.remove(largest)
        ranked += _halves(largest, speeds)
    yield ranked


def _halves(group: Group, speeds: Sequence[float]) -> list[Group]:
    """Two groups of about equal speed; neither is empty."""
    halves: tuple[list[int], list[int]] = ([], [])
    for number in sorted(group, key=lambda number: -speeds[number]):
        min(halves, key=lambda half: _speed(tuple(half), speeds)).append(number)
    return [tuple(sorted(half)) for half in halves]
