"""What the broker has on disk, as `broker.storage.store` keeps it: whole groups of facts, with their blobs.

A group is written in one transaction, with its log snapshot if there is one, so a crash leaves all of it or
nothing. `broker.journal` reads and writes it, so each start decodes what the real log would hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from farflung.broker.storage.contract import LogSnapshot


class VirtualStore:
    """A log of facts, its snapshots, and blobs by their digest. It survives every crash.

    `records` has all facts, also those that no start reads any more.
    """

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.stored: dict[bytes, bytes] = {}
        self._snapshots: list[LogSnapshot] = []

    def append(
        self,
        events: Sequence[bytes],
        blobs: Mapping[bytes, bytes] = {},
        unneeded: Iterable[bytes] = (),
        snapshot: bytes | None = None,
    ) -> None:
        """Write one group: all of it is durable when this returns."""
        self.records.extend(events)
        self.stored = {**blobs, **self.stored}
        for digest in unneeded:
            self.stored.pop(digest, None)
        if snapshot is not None:
            self._snapshots = [*self._snapshots[-1:], LogSnapshot(len(self.records), snapshot)]

    def snapshot(self) -> LogSnapshot | None:
        """The newest log snapshot."""
        return self._snapshots[-1] if self._snapshots else None

    def events(self, after: int = 0) -> Iterator[bytes]:
        """The facts that follow on a snapshot; those that an older one covers are gone."""
        oldest = self._snapshots[0].sequence if len(self._snapshots) > 1 else 0
        assert after >= oldest, "the log is read from before its snapshots"
        return iter(self.records[after:])
