"""What is being done, told in words to whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable

Tell = Callable[[str], None]


def silently(words: str) -> None:
    """Progress that nobody wants to hear of."""


def goes_on(words: str, before: str) -> bool:
    """Whether words say how far that is what was said before: "planning: 12 plans" after "planning"."""
    return bool(before) and words.startswith(f"{before}: ")


class Search:
    """Tells in words how a search gets on, as `planner.assignment.Watch` hears of it."""

    def __init__(self, tell: Tell, words: str) -> None:
        self._tell, self._words = tell, words
        self._plans, self._best = 0.0, float("inf")
        tell(words)

    def __call__(self, plans: float, step_seconds: float) -> None:
        """More plans were looked at."""
        self._plans += plans
        self._best = min(self._best, step_seconds)
        best = f", best {self._best:.3g} s a step" if self._best < float("inf") else ""
        self._tell(f"{self._words}: {self._plans:.0f} plans{best}")
