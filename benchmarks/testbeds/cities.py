"""DT-FM's eight cities, and the bandwidths and latencies between them.

As the public configuration of its scheduler has them: arXiv 2206.01288, case 5. Both directions are alike.
"""

from __future__ import annotations

CITIES = ("oregon", "virginia", "ohio", "tokyo", "seoul", "london", "frankfurt", "ireland")

# Row i holds the entries from city i to the cities after it.
_BANDWIDTH_MBPS = (
    (790, 1100, 523, 460, 420, 404, 482),
    (1120, 524, 500, 1160, 1020, 1050),
    (694, 529, 1050, 799, 1140),
    (1100, 366, 360, 465),
    (342, 358, 335),
    (1140, 1090),
    (1080,),
)
_LATENCY_MS = (
    (67, 49, 96, 124, 136, 143, 124),
    (11, 143, 172, 76, 90, 67),
    (130, 159, 86, 99, 77),
    (34, 210, 223, 199),
    (238, 235, 228),
    (14, 12),
    (24,),
)


def bandwidth_mbps(city: int, other: int) -> float:
    """Between two different cities, by number."""
    return float(_BANDWIDTH_MBPS[min(city, other)][abs(city - other) - 1])


def latency_ms(city: int, other: int) -> float:
    """One way between two different cities, by number."""
    return float(_LATENCY_MS[min(city, other)][abs(city - other) - 1])
