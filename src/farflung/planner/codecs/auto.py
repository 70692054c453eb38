"""`auto`: for each link, the gentlest rung that hides its messages behind the bottleneck, within a budget.

The objective is the time to the same loss: the seconds of a step times the extra steps that a loss gap costs.
For many times T, a candidate gives each link the gentlest rung whose messages of a microbatch are encoded,
sent and decoded within T; links that share an access line must together fit into T. So links that wait for
each other become rougher together. The best candidate within the budget is then improved link by link:
rougher where loss buys the most seconds, gentler where that costs no time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from farflung.planner.codecs.codec_context import CodecContext
from farflung.planner.codecs.ladder import CostedRung
from farflung.planner.codecs.limits import Limits, levels, notes, reason
from farflung.planner.codecs.pace import Pace, pace_of

Levels = tuple[int, ...]
"""For each link, the number of its rung on the ladder."""

LOSS_EXPONENT = 0.21
"""Training loss falls like steps to the power of minus this, as the example GPT's does from step 200 to 450
(`make train`: 1.974 in the mean of steps 201-250, 1.722 of 401-450). So one percent of loss is worth 4.9 %
more steps there, and more for models that train longer."""

MOST_TIMES, MOST_SKETCHED = 48, 16
"""How many times T are tried: by `choose`, and by `sketch`."""
MOST_TRIALS = 4000
"""How many changes of single links are tried in all, so that the largest plan takes a second."""
_GAIN = 0.998
LEAST_SAVING_SECONDS = 1e-3
"""Codecs that make a step shorter by less are not used: what a task costs in Python varies by more."""
FREE = 1.02
"""A gentler rung counts as free if it makes a step at most this many times as long."""


@dataclass(frozen=True)
class Choice:
    """The rung of every link with its reason, and the pace of a step with them.

    `loss_gap` is the sum of the rungs' measured losses. `notes` name links that stay slow because of the
    limits, and what they would need.
    """

    levels: Levels
    reasons: tuple[str, ...]
    pace: Pace
    dense_step_seconds: float
    loss_gap: float
    notes: tuple[str, ...]


def choose(
    context: CodecContext,
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
        The number of the roughest rung that each link may use; by default any.
    movable
        Links that the planner may move to other workers; they get no rung to which the model adapts.

    Raises
    ------
    CodecError
        The limits name a rung that is not on the ladder.
    """
    search = _Search(context, rungs, limits, ceilings, movable)
    best = search.gentler(search.better(search.best_of(search.fitting())))
    all_dense = (0,) * len(context.links)
    dense, pace = search.pace(all_dense), search.pace(best)
    if dense.step_seconds - pace.step_seconds < LEAST_SAVING_SECONDS:
        best, pace = all_dense, dense
    return Choice(
        levels=best,
        reasons=tuple(reason(context, rungs, best, link, pace) for link in range(len(context.links))),
        pace=pace,
        dense_step_seconds=dense.step_seconds,
        loss_gap=search.loss_gap(best),
        notes=notes(context, rungs, limits, best),
    )


def sketch(context: CodecContext, rungs: Sequence[CostedRung], limits: Limits) -> Levels:
    """The best of few choices of rungs: what `choose` begins with, and improves in most of its time.

    Raises
    ------
    CodecError
        The limits name a rung that is not on the ladder.
    """
    search = _Search(context, rungs, limits, None, ())
    return search.best_of(search.fitting(MOST_SKETCHED))


def seconds_to_loss(step_seconds: float, loss_gap: float) -> float:
    """A step's seconds, scaled by the extra steps that make up for a loss gap."""
    return step_seconds * (1 + loss_gap) ** (1 / LOSS_EXPONENT)


class _Search:
    """Searches choices of rungs for the links of a plan."""

    def __init__(
        self,
        context: CodecContext,
        rungs: Sequence[CostedRung],
        limits: Limits,
        ceilings: Sequence[int] | None,
        movable: Collection[int],
    ) -> None:
        self._scene, self._rungs, self._limits = context, rungs, limits
        count = len(context.links)
        top = [len(rungs) - 1] * count if ceilings is None else ceilings
        self._levels = levels(context, rungs, limits, top, movable)
        self._seconds = [
            {number: context.message_seconds(link, rungs[number]) for number in self._levels[link]}
            for link in range(count)
        ]
        self._trials = 0

    def pace(self, chosen: Levels) -> Pace:
        """How fast a step is."""
        return pace_of(self._scene, self._of(chosen))

    def loss_gap(self, chosen: Levels) -> float:
        """The relative loss gap of a choice."""
        return self._scene.loss_gap(self._of(chosen))

    def score(self, chosen: Levels) -> float:
        """Time to the same loss; lower is better."""
        return seconds_to_loss(self.pace(chosen).step_seconds, self.loss_gap(chosen))

    def fitting(self, most: int = MOST_TIMES) -> Iterable[Levels]:
        """Candidates: dense, and for about `most` times T the gentlest choice that T allows."""
        yield (0,) * len(self._levels)
        times = sorted({seconds for link in self._seconds for seconds in link.values()})
        step = max(1, -(-len(times) // most))
        for seconds in {*times[::step], *times[-1:], *times[:1]}:
            yield self._within(seconds)

    def best_of(self, candidates: Iterable[Levels]) -> Levels:
        """The candidate within the budget with the least score; dense always is within it."""
        return min(filter(self._is_affordable, candidates), key=lambda c: (self.score(c), c))

    def better(self, chosen: Levels) -> Levels:
        """Improve `chosen` one link at a time, as long as the score falls."""
        score = self.score(chosen)
        while True:
            found = [(self.score(c), c) for c in self._neighbours(chosen) if self._is_affordable(c)]
            if not found or min(found)[0] >= _GAIN * score:
                return chosen
            score, chosen = min(found)

    def gentler(self, chosen: Levels) -> Levels:
        """Replace rungs by gentler ones that cost almost no time, the roughest links first."""
        most = FREE * self.pace(chosen).step_seconds
        for link in sorted(range(len(chosen)), key=lambda link: -chosen[link]):
            for number in self._levels[link]:
                if number >= chosen[link]:
                    break
                candidate = self._with(chosen, link, number)
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
        """For each link, the gentlest rung that takes at most `seconds` a microbatch, else the fastest."""
        chosen = tuple(
            next((number for number in each if needed[number] <= seconds), min(each, key=needed.__getitem__))
            for each, needed in zip(self._levels, self._seconds, strict=True)
        )
        for link in sorted(range(len(chosen)), key=lambda link: -chosen[link]):
            chosen = self._with(chosen, link, chosen[link]) or self._unstuck(chosen, link)
        for line in self._scene.lines:
            chosen = self._line_within(chosen, line.links, seconds * line.bytes_per_second)
        return chosen

    def _line_within(self, chosen: Levels, links: Sequence[int], most_bytes: float) -> Levels:
        """Make links rougher, the cheapest byte first, until together they carry at most `most_bytes`."""
        while sum(self._bytes(link, chosen[link]) for link in links) > most_bytes:
            loss = self.loss_gap(chosen)
            found = []
            for link in links:
                rougher = self._next_lighter(link, chosen[link])
                candidate = None if rougher is None else self._with(chosen, link, rougher)
                if candidate is None:
                    continue
                saved = self._bytes(link, chosen[link]) - self._bytes(link, candidate[link])
                if saved > 0:
                    found.append(((self.loss_gap(candidate) - loss) / saved, candidate))
            if not found:
                break
            chosen = min(found)[1]
        return chosen

    def _next_lighter(self, link: int, number: int) -> int | None:
        """The gentlest of the rougher rungs that write fewer bytes."""
        size = self._bytes(link, number)
        rougher = (one for one in self._levels[link] if one > number and self._bytes(link, one) < size)
        return next(rougher, None)

    def _unstuck(self, chosen: Levels, link: int) -> Levels:
        """Give a link the fastest rung that is not sticky, because its other direction cannot follow."""
        free = [number for number in self._levels[link] if not self._rungs[number].is_sticky]
        return (*chosen[:link], min(free, key=self._seconds[link].__getitem__), *chosen[link + 1 :])

    def _bytes(self, link: int, number: int) -> float:
        return self._scene.wire_bytes(link, self._rungs[number])

    def _neighbours(self, chosen: Levels) -> Iterable[Levels]:
        for link, each in enumerate(self._levels):
            for number in each:
                if number != chosen[link] and self._trials < MOST_TRIALS:
                    self._trials += 1
                    candidate = self._with(chosen, link, number)
                    if candidate is not None:
                        yield candidate

    def _with(self, chosen: Levels, link: int, number: int) -> Levels | None:
        """`chosen` with another rung for a link; None if its other direction cannot follow.

        Either both directions of a pair use a sticky rung or neither does: a gradient needs the mask of its
        activation, and a model does not learn with unmasked gradients of masked activations.
        """
        found = list(chosen)
        found[link] = number
        for other in self._scene.pairs[link]:
            if other == link:
                continue
            if self._rungs[number].is_sticky:
                if number not in self._levels[other]:
                    return None
                found[other] = number
            elif self._rungs[found[other]].is_sticky:
                return self._unstuck(tuple(found), other)
        return tuple(found)
