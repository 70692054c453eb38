"""A model's cut candidates over its depth, as one line of a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from farflung.cli.columns import WIDTH

_HEIGHTS = "▁▂▃▄▅▆▇█"
_NO_CUT = "·"


def sparkline(crossing: Sequence[float], legal: Sequence[bool], width: int = WIDTH - 4) -> str:
    """The cheapest legal cut in each stretch of the depth, heights in powers of the bytes; a dot is no cut.

    `crossing` and `legal` have one entry for each position before a node, [n + 1].
    """
    count = len(crossing) - 1
    columns = min(width, max(1, count - 1))
    lowest: list[float | None] = []
    for column in range(columns):
        first = 1 + column * (count - 1) // columns
        last = 1 + (column + 1) * (count - 1) // columns
        found = [crossing[at] for at in range(first, last) if legal[at]]
        lowest.append(min(found) if found else None)
    logs = [math.log10(max(value, 1.0)) for value in lowest if value is not None]
    least, most = min(logs, default=0.0), max(logs, default=0.0)
    return "".join(_letter(value, least, most) for value in lowest)


def _letter(value: float | None, least: float, most: float) -> str:
    if value is None:
        return _NO_CUT
    share = (math.log10(max(value, 1.0)) - least) / (most - least) if most > least else 0.0
    return _HEIGHTS[round(share * (len(_HEIGHTS) - 1))]
