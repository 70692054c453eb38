"""Words that do not cover one another: each stands where on its line there is room, or nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farflung.picture.places import Spot

_LETTER_WIDTH = 0.56
_SHARES = (0.5, 0.42, 0.58, 0.35, 0.65, 0.28, 0.72, 0.22, 0.78)


@dataclass(frozen=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def covers(self, other: _Box) -> bool:
        beside = self.right < other.left or other.right < self.left
        return not beside and not (self.bottom < other.top or other.bottom < self.top)


class Labels:
    """What was placed so far; nothing is placed on `taken` circles, nor on their names."""

    def __init__(self, taken: Sequence[Spot]) -> None:
        self._boxes = [_with_words(spot) for spot in taken]

    def place(self, words: str, size: float, one: Spot, other: Spot) -> Spot | None:
        """Where between two circles these words have room."""
        width, height = len(words) * size * _LETTER_WIDTH, size * 1.3
        for share in _SHARES:
            x, y = one.x + (other.x - one.x) * share, one.y + (other.y - one.y) * share
            box = _Box(x - width / 2, y - height / 2, x + width / 2, y + height / 2)
            if not any(box.covers(taken) for taken in self._boxes):
                self._boxes.append(box)
                return Spot(x, y, width / 2)
        return None


def _with_words(spot: Spot) -> _Box:
    """A circle with its name, above a site or below a worker."""
    left, right = spot.x - max(spot.radius, 40), spot.x + max(spot.radius, 40)
    return _Box(left, spot.y - spot.radius - 30, right, spot.y + spot.radius + 22)
