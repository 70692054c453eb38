"""Checks of declared numbers, from a job file or from the wire."""

from __future__ import annotations

import math

MOST_COUNTED = 10**9


def require_whole(name: str, value: object, least: int, most: int = MOST_COUNTED) -> None:
    """Raise ValueError unless `value` is a whole number in this range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        limit = "10**9" if most == MOST_COUNTED else most
        raise ValueError(f"{name} must be a whole number from {least} to {limit}, found {value!r}")


def require_number(
    name: str, value: object, least: float, most: float = math.inf, *, below: bool = False
) -> None:
    """Raise ValueError unless `value` is finite and in its range, with `below` without the upper end."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not least <= value <= most or (below and value == most):  # type: ignore[arg-type, operator]
        limit = "" if math.isinf(most) else f" and {'below' if below else 'at most'} {most:g}"
        raise ValueError(f"{name} must be a finite number, at least {least:g}{limit}, found {value!r}")
