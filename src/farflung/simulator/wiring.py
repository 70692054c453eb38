"""The links of a plan, made when something is first sent over them, and the lines that they share."""

from __future__ import annotations

from farflung.plans import FEEDER
from farflung.simulator.clock import Clock
from farflung.simulator.link_costs import LinkCosts
from farflung.simulator.network import Line, Link


class Wiring:
    """Links by the numbers of their workers; the feeder shares its home's line, and its paths to others."""

    def __init__(self, clock: Clock, costs: LinkCosts) -> None:
        self._clock = clock
        self.costs = costs
        self.links: dict[tuple[int, int], Link] = {}
        self.up: dict[int, Line] = {}
        self.down: dict[int, Line] = {}
        self._paths: dict[int, Line] = {}

    def link(self, source: int, target: int) -> Link | None:
        """The link between two workers, or from the feeder to one; None where there is nothing between."""
        if self.costs.is_near(source, target):
            return None
        if (source, target) not in self.links:
            self.links[source, target] = self._made(source, target)
        return self.links[source, target]

    def _made(self, source: int, target: int) -> Link:
        costs = self.costs
        start = costs.home if source == FEEDER else source
        lines = []
        if (rate := costs.up(start)) is not None:
            lines.append(self.up.setdefault(start, Line(rate)))
        if (rate := costs.down(target)) is not None:
            lines.append(self.down.setdefault(target, Line(rate)))
        own = costs.rate(source, target)
        if start == costs.home:  # both the feeder and the worker there may send to this target
            lines.append(self._paths.setdefault(target, Line(own)))
        return Link(self._clock, own, costs.seconds_away(start, target), lines)
