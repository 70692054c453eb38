"""Max-min fair rates: nobody can have more without taking it from somebody who has no more than he."""

from __future__ import annotations

from collections.abc import Sequence


def max_min(most: Sequence[float], lines: Sequence[tuple[float, Sequence[int]]]) -> list[float]:
    """The rate of each flow, by progressive filling.

    Parameters
    ----------
    most
        What each flow can take at most.
    lines
        For each shared line its capacity, and the numbers of the flows that cross it.
    """
    rates = [0.0] * len(most)
    is_open = [True] * len(most)
    left = [capacity for capacity, _ in lines]
    crossing = [list(flows) for _, flows in lines]
    lines_of: list[list[int]] = [[] for _ in most]
    for number, flows in enumerate(crossing):
        for flow in flows:
            lines_of[flow].append(number)
    waiting = list(range(len(most)))
    while waiting:
        share, narrowest = min(
            ((left[n] / len(flows), n) for n, flows in enumerate(crossing) if flows),
            default=(float("inf"), -1),
        )
        settled = [flow for flow in waiting if most[flow] <= share]
        for flow in settled or list(crossing[narrowest]):
            rates[flow] = min(most[flow], share)
            is_open[flow] = False
            for number in lines_of[flow]:
                left[number] = max(0.0, left[number] - rates[flow])
                crossing[number].remove(flow)
        waiting = [flow for flow in waiting if is_open[flow]]
    return rates
