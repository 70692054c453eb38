"""What the broker has on disk, as `broker.storage.store` keeps it: whole groups of facts, with their blobs.

A group is written in one transaction, so a crash leaves all of it or nothing. Facts are kept as bytes, so
each replay reads what the real log would hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from farflung.broker.core import facts
from farflung.broker.core.facts import AnyDecision
from farflung.broker.core.records import State
from farflung.broker.core.state import replay


class VirtualStore:
    """A log of facts, and blobs by their digest. It survives every crash."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.blobs: dict[bytes, bytes] = {}

    def append(
        self, decisions: Sequence[AnyDecision], blobs: Mapping[bytes, bytes], unneeded: Iterable[bytes]
    ) -> None:
        """Write one group: all of it is durable when this returns."""
        self.records.extend(map(facts.encode, decisions))
        self.blobs = {**blobs, **self.blobs}
        for digest in unneeded:
            self.blobs.pop(digest, None)

    def replayed(self) -> State:
        """The state that a broker has after a start."""
        return replay(map(facts.decode, self.records))
