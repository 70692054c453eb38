"""Opset tables other than ours, for as long as a block lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from farflung.opdag import opset

NEWER = opset.version() + 1
NEW_OP = "aten.sinc.default"
NEW_LINE = f"sinc.default(Tensor self) -> 1 since {NEWER}"


@contextmanager
def another_table(group: str, text: str) -> Iterator[None]:
    """The table with `text` as the lines of `group`."""
    before = opset.GROUPS[group]
    opset.GROUPS[group] = text
    _forget()
    try:
        yield
    finally:
        opset.GROUPS[group] = before
        _forget()


@contextmanager
def newer_table() -> Iterator[None]:
    """The table of a farflung to come: `NEW_OP` came with version `NEWER`."""
    with another_table("elementwise", f"{opset.GROUPS['elementwise']}{NEW_LINE}\n"):
        yield


def _forget() -> None:
    for cached in (opset.table, opset.version, opset.schema_hash):
        cached.cache_clear()
