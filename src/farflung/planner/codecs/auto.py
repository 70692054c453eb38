"""`auto`: for each way the gentlest rung that hides its messages behind the bottleneck, within a loss budget.

What counts is time to the same loss: a step's seconds times the steps that a gap in loss costs. Candidates
come from one question, asked for many times T: which is the gentlest rung of each way whose messages of a
microbatch are written, carried and read within T (and of ways that share a line, that together take no
longer)? Ways that wait for each other get rougher together so. The best of them within the budget is then
improved way by way: rougher where loss buys most seconds, gentler where nothing is lost by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from farflung.planner.codecs.codec_context import Circumstances
from farflung.planner.codecs.ladder import CostedRung
from farflung.planner.codecs.limits import Limits, levels, notes, reason
from farflung.planner.codecs.pace import Pace, pace_of

Levels = tuple[int, ...]
"""For each way the number of its rung on the ladder."""

LOSS_EXPONENT = 0.21
"""Training loss falls like steps to the power of minus this: what the example GPT's does from step 200 to 450
(`make train`: 1.974 in the mean of steps 201-250, 1.722 of 401-450). So one percent of loss is worth 4.9 %
more steps there; of models that are trained longer it is worth more."""

MOST_TIMES = 48
"""How many T are asked for."""
MOST_TRIALS = 4000
"""How many changes of one way are tried in all, so that the largest plan takes a second."""
_GAIN = 0.998
FREE = 1.02
"""What a gentler rung may add to a step and still be taken for free."""


@dataclass(frozen=True)
class Choice:
    """A rung for every way, by its number, with its reason; and what that makes of a step.

    `loss_gap` is what the measured losses of its rungs add up to. `notes` say which ways stay slow because of
    the limits, and what they would need.
    """

    levels: Levels
    reasons: tuple[str, ...]
    pace: Pace
    dense_step_seconds: float
    loss_gap: float
    notes: tuple[str, ...]


def choose(
    circumstances: Circumstances,
    rungs: Sequence[CostedRung],
    limits: Limits,
    ceilings: Sequence[int] | None = None,
    movable: Collection[int] = (),
) -> Choice:
    """The rungs with the least time to the same loss.

    Parameters
    ----------
    rungs
        The ladder, from the gentlest (dense) to the roughest: by what they lose.
    ceilings
        The roughest rung that each way may take, by its number on the ladder; by default any.
    movable
        Ways that the planner may move: they take no rung to which the model adapts.

    Raises
    ------
    CodecError
        The limits name a rung that is not on the ladder.
    """
    search = _Search(circumstances, rungs, limits, ceilings, movable)
    best = search.gentler(search.better(search.best_of(search.fitting())))
    dense = search.pace((0,) * len(circumstances.ways))
    pace = search.pace(best)
    return Choice(
        levels=best,
        reasons=tuple(
            reason(circumstances, rungs, best, way, pace) for way in range(len(circumstances.ways))
        ),
        pace=pace,
        dense_step_seconds=dense.step_seconds,
        loss_gap=search.loss_gap(best),
        notes=notes(circumstances, rungs, limits, best),
    )


def seconds_to_loss(step_seconds: float, loss_gap: float) -> float:
    """A step's seconds, as if without a gap: times as many steps more as make up for it."""
    return step_seconds * (1 + loss_gap) ** (1 / LOSS_EXPONENT)


class _Search:
    """Choices of rungs for the ways of a plan, and how good they are."""

    def __init__(
        self,
        circumstances: Circumstances,
        rungs: Sequence[CostedRung],
        limits: Limits,
        ceilings: Sequence[int] | None,
        movable: Collection[int],
    ) -> None:
        self._scene, self._rungs, self._limits = circumstances, rungs, limits
        count = len(circumstances.ways)
        top = [len(rungs) - 1] * count if ceilings is None else ceilings
        self._levels = levels(circumstances, rungs, limits, top, movable)
        self._seconds = [
            {number: circumstances.message_seconds(way, rungs[number]) for number in self._levels[way]}
            for way in range(count)
        ]
        self._trials = 0

    def pace(self, chosen: Levels) -> Pace:
        """How fast a step is."""
        return pace_of(self._scene, self._of(chosen))

    def loss_gap(self, chosen: Levels) -> float:
        """What it costs in loss."""
        return self._scene.loss_gap(self._of(chosen))

    def score(self, chosen: Levels) -> float:
        """Time to the same loss; the less the better."""
        return seconds_to_loss(self.pace(chosen).step_seconds, self.loss_gap(chosen))

    def fitting(self) -> Iterable[Levels]:
        """Candidates: dense, and for some T what is as gentle as T allows."""
        yield (0,) * len(self._levels)
        times = sorted({seconds for way in self._seconds for seconds in way.values()})
        step = max(1, -(-len(times) // MOST_TIMES))
        for seconds in {*times[::step], *times[-1:], *times[:1]}:
            yield self._within(seconds)

    def best_of(self, candidates: Iterable[Levels]) -> Levels:
        """The one with the least score of those within the budget; dense is always one."""
        return min(filter(self._is_affordable, candidates), key=lambda c: (self.score(c), c))

    def better(self, chosen: Levels) -> Levels:
        """`chosen` with other rungs for one way after the other, as long as that makes it better."""
        score = self.score(chosen)
        while True:
            found = [(self.score(c), c) for c in self._neighbours(chosen) if self._is_affordable(c)]
            if not found or min(found)[0] >= _GAIN * score:
                return chosen
            score, chosen = min(found)

    def gentler(self, chosen: Levels) -> Levels:
        """`chosen` with the gentlest rungs that cost no time to speak of, the roughest ways first."""
        most = FREE * self.pace(chosen).step_seconds
        for way in sorted(range(len(chosen)), key=lambda way: -chosen[way]):
            for number in self._levels[way]:
                if number >= chosen[way]:
                    break
                candidate = self._with(chosen, way, number)
                if candidate is None or not self._is_affordable(candidate):
                    continue
                if self.pace(candidate).step_seconds <= most:
                    chosen = candidate
                    break
        return chosen

    def _of(self, chosen: Levels) -> list[CostedRung]:
        return [self._rungs[number] for number in chosen]

    def _is_affordable(self, chosen: Levels) -> bool:
        return self.loss_gap(chosen) <= self._limits.max_loss_gap + 1e-12

    def _within(self, seconds: float) -> Levels:
        """The gentlest rungs with which no way takes longer for a microbatch; else the quickest."""
        chosen = tuple(
            next((number for number in each if took[number] <= seconds), min(each, key=took.__getitem__))
            for each, took in zip(self._levels, self._seconds, strict=True)
        )
        for way in sorted(range(len(chosen)), key=lambda way: -chosen[way]):
            chosen = self._with(chosen, way, chosen[way]) or self._unstuck(chosen, way)
        for line in self._scene.lines:
            chosen = self._line_within(chosen, line.ways, seconds * line.bytes_per_second)
        return chosen

    def _line_within(self, chosen: Levels, ways: Sequence[int], most_bytes: float) -> Levels:
        """Make ways of a line rougher until all carry no more than `most_bytes`, the cheapest byte first."""
        while sum(self._bytes(way, chosen[way]) for way in ways) > most_bytes:
            loss = self.loss_gap(chosen)
            found = []
            for way in ways:
                rougher = self._next_lighter(way, chosen[way])
                candidate = None if rougher is None else self._with(chosen, way, rougher)
                if candidate is None:
                    continue
                saved = self._bytes(way, chosen[way]) - self._bytes(way, candidate[way])
                if saved > 0:
                    found.append(((self.loss_gap(candidate) - loss) / saved, candidate))
            if not found:
                break
            chosen = min(found)[1]
        return chosen

    def _next_lighter(self, way: int, number: int) -> int | None:
        """The gentlest of the rougher rungs that writes fewer bytes."""
        size = self._bytes(way, number)
        rougher = (one for one in self._levels[way] if one > number and self._bytes(way, one) < size)
        return next(rougher, None)

    def _unstuck(self, chosen: Levels, way: int) -> Levels:
        """With the quickest rung to which the model does not adapt, for a way whose other direction cannot
        follow.
        """
        free = [number for number in self._levels[way] if not self._rungs[number].is_sticky]
        return (*chosen[:way], min(free, key=self._seconds[way].__getitem__), *chosen[way + 1 :])

    def _bytes(self, way: int, number: int) -> float:
        return self._scene.wire_bytes(way, self._rungs[number])

    def _neighbours(self, chosen: Levels) -> Iterable[Levels]:
        for way, each in enumerate(self._levels):
            for number in each:
                if number != chosen[way] and self._trials < MOST_TRIALS:
                    self._trials += 1
                    candidate = self._with(chosen, way, number)
                    if candidate is not None:
                        yield candidate

    def _with(self, chosen: Levels, way: int, number: int) -> Levels | None:
        """`chosen` with another rung for a way; None if its other direction cannot follow.

        Both directions of a pair take a sticky rung, or none: the gradient needs the mask of its activation,
        and with a whole gradient behind a mask a model does not learn.
        """
        found = list(chosen)
        found[way] = number
        for other in self._scene.pairs[way]:
            if other == way:
                continue
            if self._rungs[number].is_sticky:
                if number not in self._levels[other]:
                    return None
                found[other] = number
            elif self._rungs[found[other]].is_sticky:
                return self._unstuck(tuple(found), other)
        return tuple(found)
