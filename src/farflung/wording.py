"""How messages name a number of things, and the kind of a value."""

from __future__ import annotations


def counted(count: int, thing: str) -> str:
    """A number of things: 1 job, 2 jobs."""
    return f"{count} {thing}{'s' * (count != 1)}"


def kind_of(value: object) -> str:
    """What a value is: "an int", "a Tensor", "None"."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"
