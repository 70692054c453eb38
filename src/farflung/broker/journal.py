"""The broker's log of decisions: recovers the state from the store, and stores what is decided.

Now and then a log snapshot of the state is stored in the same transaction as the decisions before it, so that
neither the log nor the time of a start grows for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

from farflung.broker.core import facts
from farflung.broker.core.blobs import Digest
from farflung.broker.core.facts import AnyDecision
from farflung.broker.core.snapshots import decode_snapshot, encode_snapshot
from farflung.broker.core.state import State, replay
from farflung.broker.storage.contract import BrokerStore
from farflung.errors import StoreError

SNAPSHOT_EVERY = 1000
"""Decisions after which a log snapshot is stored; of a large state one for every two workers and jobs."""

_log = logging.getLogger("farflung.broker")


class Journal:
    """The log of one broker. Calls must not overlap; they may run on different threads.

    `state` is the durable state on opening, `replayed` the number of decisions that were replayed for it.

    Raises
    ------
    FarflungError
        On opening: the log is damaged, or another version wrote it.
    """

    def __init__(self, store: BrokerStore) -> None:
        self._store = store
        self.replayed = 0
        self.state = self._recovered()
        self._since_snapshot = self.replayed
        self._stored: State | None = self.state

    def append(
        self,
        records: Sequence[bytes],
        state: State,
        blobs: Mapping[Digest, bytes] = {},
        unneeded: Iterable[Digest] = (),
    ) -> None:
        """Store encoded decisions with their blobs, all or nothing; `state` is the state after them.

        Raises
        ------
        StoreError
            Nothing was stored. The broker must stop.
        """
        self._since_snapshot += len(records)
        is_due = self._since_snapshot >= max(SNAPSHOT_EVERY, (len(state.workers) + len(state.jobs)) // 2)
        self._stored = None
        self._store.append(records, blobs, unneeded, self._snapshot(state) if is_due else None)
        self._stored = state

    def close(self) -> None:
        """Store a last snapshot, so that the next start replays nothing; without it, it only takes longer."""
        if self._stored is None or not self._since_snapshot:
            return
        try:
            self._store.append([], {}, (), self._snapshot(self._stored))
        except StoreError as error:
            _log.warning("no log snapshot is stored at the end: %s", error)

    def _recovered(self) -> State:
        snapshot = self._store.snapshot()
        if snapshot is None:
            return replay(self._decisions(after=0))
        return replay(self._decisions(snapshot.sequence), decode_snapshot(snapshot.body))

    def _decisions(self, after: int) -> Iterator[AnyDecision]:
        for event in self._store.events(after):
            self.replayed += 1
            yield facts.decode(event)

    def _snapshot(self, state: State) -> bytes | None:
        self._since_snapshot = 0
        return encode_snapshot(state)
