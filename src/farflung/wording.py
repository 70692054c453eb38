"""How messages name a number of things, a number, a rate, a time, and the kind of a value."""

from __future__ import annotations


def counted(count: int, thing: str) -> str:
    """A number of things: 1 job, 2 jobs."""
    return f"{count} {thing}{'s' * (count != 1)}"


def digits(value: float) -> str:
    """A number in three digits, thousands apart: 0.123, 12.3, 30,900."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{float(f'{value:.3g}'):,.0f}"


def rate(mbps: float) -> str:
    """What a line carries, in three digits: 0.5 Mbit/s, 40 Mbit/s, 1.13 Gbit/s."""
    return f"{mbps:.3g} Mbit/s" if mbps < 999.5 else f"{digits(mbps / 1000)} Gbit/s"


def lasting(seconds: float) -> str:
    """A time that is short or long, in three digits: 12.3 us, 12.3 ms, 1.23 s."""
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 999.5:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"


def kind_of(value: object) -> str:
    """What a value is: "an int", "a Tensor", "None"."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"
