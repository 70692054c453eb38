"""What the broker needs of a store, whatever database is behind it, and the records in it.

`tests/broker/storage/test_contract.py` checks these promises of both implementations, `store` on SQLite and
`postgres`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from farflung.errors import StoreError


class StoreOwned(StoreError):
    """Another broker owns the store, and lives as far as anyone can see; `found` says who."""

    def __init__(self, found: str, cure: str) -> None:
        super().__init__(f"{found}: {cure}")
        self.found = found


class StoreAway(StoreError):
    """The database behind the store cannot be reached now."""


@dataclass(frozen=True)
class LogSnapshot:
    """What events 1 to `sequence` come to, in bytes that the store does not read."""

    sequence: int
    body: bytes


@dataclass(frozen=True)
class TokenRecord:
    """A token as stored: `digest` is the SHA-256 of its secret, times are in Unix seconds.

    `made_at` is None for tokens from before schema 3. `scope` says what a viewer may see (`security.scopes`).
    """

    digest: bytes
    role: str
    uses: int
    used: int
    expires_at: float
    made_at: float | None = None
    scope: str = ""


@dataclass(frozen=True)
class Holder:
    """The owner of an id: SHA-256 of its public key, the token it used, its newest certificate (PEM).

    `scope` is its token's.
    """

    id: str
    role: str
    key_digest: bytes
    token_digest: bytes
    certificate: bytes
    scope: str = ""


class BrokerStore(Protocol):
    """The store of one broker, as its owner or beside it. Threads may share it.

    Who opens a store as its owner raises its *epoch*. Each transaction of an owner requires that its own
    epoch is still the newest: so a broker that was taken for dead, but is not, can write nothing any more.

    Every method raises StoreError if the store cannot be read or written.
    """

    @property
    def epoch(self) -> int:
        """The owner's epoch; 0 beside the owner."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """Write everything inside together or, if it raises, not at all; other writers wait.

        Raises
        ------
        StoreError
            Also if another broker owns the store by now.
        """
        ...

    def append(
        self,
        events: Sequence[bytes],
        blobs: Mapping[bytes, bytes] = {},
        unneeded: Iterable[bytes] = (),
        snapshot: bytes | None = None,
    ) -> None:
        """Add events to the log and blobs by their SHA-256, and delete the `unneeded` blobs, all or nothing.

        A blob that is there already stays, and one that is not there need not be deleted. `snapshot` stands
        for all events up to and with these; with it go the events that older snapshots cover as well.

        Raises
        ------
        StoreError
            Also if the store is not open as its owner, or another broker owns it by now.
        """
        ...

    def snapshot(self) -> LogSnapshot | None:
        """The newest log snapshot that is not damaged; None if there is none."""
        ...

    def events(self, after: int = 0) -> Iterator[bytes]:
        """All events with a number above `after`, in the order in which they were appended.

        Raises
        ------
        StoreError
            Also if some of them are not there any more.
        """
        ...

    def blobs(self, digests: Iterable[bytes]) -> dict[bytes, bytes]:
        """The blobs with these digests.

        Raises
        ------
        StoreError
            Also if one of them is not there, or its bytes have changed.
        """
        ...

    def write_measurements(self, rows: Sequence[tuple[str, str, bytes]]) -> None:
        """Store measurements of (subject, object), replacing older ones."""
        ...

    def forget_measurements(self, worker: str) -> None:
        """Delete all measurements of a worker."""
        ...

    def measurements(self) -> list[bytes]:
        """All stored measurements."""
        ...

    def add_token(self, token: TokenRecord) -> None:
        """Store a token."""
        ...

    def token(self, digest: bytes) -> TokenRecord | None:
        """The token with this digest; None if there is none."""
        ...

    def tokens(self) -> list[TokenRecord]:
        """All tokens that were not revoked, those that expire first in front."""
        ...

    def drop_token(self, digest: bytes) -> None:
        """Delete a token: no holder can join with it any more."""
        ...

    def spend(self, digest: bytes) -> None:
        """Count one more use of a token; call it in the transaction that writes the holder."""
        ...

    def holder(self, id: str) -> Holder | None:
        """The holder of this id; None if there is none."""
        ...

    def holders(self) -> list[Holder]:
        """The holders of all ids, by id."""
        ...

    def joined_with(self, token_digest: bytes) -> list[str]:
        """The ids that joined with a token, sorted."""
        ...

    def write_holder(self, holder: Holder) -> None:
        """Store the holder of an id and its newest certificate; call it in a transaction."""
        ...

    def renew(self) -> None:
        """Say that the owner lives; call it well within each lease.

        Raises
        ------
        StoreError
            Also if another broker owns the store by now.
        """
        ...

    def stop_waiting(self) -> None:
        """Let calls that wait for a database fail now, and later ones not wait."""
        ...

    def bind(self, authority: bytes | None, replaces: Collection[bytes] = ()) -> None:
        """Tie the store to the authority with this fingerprint for ever; None: require that it has none yet.

        It may be tied to one that this one `replaces`.

        Call it in a transaction.

        Raises
        ------
        StoreError
            The store belongs to the fleet of another authority.
        """
        ...

    def close(self) -> None:
        """Close the store after pending writes of other threads."""
        ...
