"""The least step time of many orders, by bisection, all at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farflung.planner.auto.reach import Ground, Order, Orders, reach

Floats = NDArray[np.float64]

CLOSE = 1e-3
FOREVER = 1e9


@dataclass(frozen=True)
class Found:
    """An order with the cuts that make it fast: `stops` are position indices after each visit's range."""

    order: Order
    window: int
    seconds: float
    round_trip: float
    stops: tuple[int, ...]
    part: float = 1.0

    @property
    def fits(self) -> bool:
        """Whether the whole model has a place."""
        return self.seconds < FOREVER


def solve(ground: Ground, orders: list[Order], window: int, low: float, high: float = FOREVER) -> list[Found]:
    """The least seconds within which each order places the model, between `low` and `high`.

    An order that does not fit in `high` has `seconds` FOREVER and says which part of the model it placed.
    """
    table = Orders.of(orders)
    highs = np.full(len(orders), high)
    best = reach(ground, table, highs, np.zeros(len(orders)), window)
    seconds = np.where(best.fits, highs, FOREVER)
    stops, trips = best.stops.copy(), best.round_trip.copy()
    rows = np.flatnonzero(best.fits)
    highs = np.minimum(
        highs, np.maximum(ground.microbatches * trips, low) * 1.001
    )  # one microbatch at a time
    lows = np.full(len(orders), low)
    while len(rows):
        middle = np.sqrt(lows[rows] * highs[rows])
        tried = reach(ground, table.take(rows), middle, trips[rows], window)
        won, lost = rows[tried.fits], rows[~tried.fits]
        seconds[won], trips[won], stops[won] = (
            middle[tried.fits],
            tried.round_trip[tried.fits],
            tried.stops[tried.fits],
        )
        highs[won], lows[lost] = middle[tried.fits], middle[~tried.fits]
        rows = rows[highs[rows] > lows[rows] * (1 + CLOSE)]
    return [
        Found(
            order,
            window,
            float(seconds[row]),
            float(trips[row]),
            tuple(stops[row, : len(order)].tolist()),
            float(best.part[row]),
        )
        for row, order in enumerate(orders)
    ]
