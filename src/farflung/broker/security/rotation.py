"""An authority whose key is replaced, and a time in which members trust the old and the new one.

The old key signs the new certificate, once: this *crossed* certificate ends with the overlap. Who trusts
only the old authority so accepts what the new one issues (RFC 4210, section 4.4, "new with old"). Members
hear of both authorities when they renew, and of the new one alone when they renew after the overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from farflung.broker.security.authority_key import KeySource, read_certificate
from farflung.broker.security.signing import cross_sign, sign_authority
from farflung.broker.storage.opening import open_store
from farflung.errors import IdentityError
from farflung.files import write_atomically
from farflung.text import format_utc
from farflung.transport.security.certificates import (
    LIFETIME_SECONDS,
    RENEWABLE_SECONDS,
    certificates_from_pem,
    certificates_to_pem,
    fingerprint,
    new_key,
)
from farflung.transport.security.identity import AUTHORITY_FILE
from farflung.transport.timeouts import Timeouts

CROSSED_FILE = "authority-crossed.pem"
OVERLAP_SECONDS = LIFETIME_SECONDS + RENEWABLE_SECONDS
"""After so long no certificate of the old authority can be renewed any more."""


@dataclass(frozen=True)
class Trust:
    """The authorities that members of a broker trust: the `newest`, and `older` ones until the overlap ends.

    `crossed` is the newest one's certificate by the older one's key; None if its key was never replaced, or
    without an overlap.
    """

    newest: x509.Certificate
    older: tuple[x509.Certificate, ...] = ()
    crossed: x509.Certificate | None = None
    was_rotated: bool = False

    @classmethod
    def read(cls, folder: Path) -> Trust:
        """Those of a broker's folder."""
        newest, *older = certificates_from_pem((folder / AUTHORITY_FILE).read_bytes())
        file = folder / CROSSED_FILE
        crossed = certificates_from_pem(file.read_bytes()) if file.exists() else []
        # One that is not of the newest key was left by a rotation that did not get further.
        fitting = [one for one in crossed if one.public_key() == newest.public_key()]
        return cls(newest, tuple(older), fitting[0] if fitting else None, file.exists())

    def overlaps(self, now: float) -> bool:
        """Whether older authorities count at `now` (Unix seconds)."""
        return self.crossed is not None and now < self.crossed.not_valid_after_utc.timestamp()

    def roots(self, now: float) -> list[x509.Certificate]:
        """The authorities that count at `now`, the newest first."""
        return [self.newest, *self.older] if self.overlaps(now) else [self.newest]

    def chain(self, now: float) -> list[x509.Certificate]:
        """What a holder shows beside its own certificate."""
        return [self.crossed] if self.crossed is not None and self.overlaps(now) else []


@dataclass(frozen=True)
class Rotated:
    """The new authority's fingerprint (SHA-256), and until when the old one counts (Unix seconds)."""

    fingerprint: bytes
    ends_at: float


def rotate(folder: Path, source: KeySource, now: float, overlap_seconds: float = OVERLAP_SECONDS) -> Rotated:
    """Replace the key of a broker that does not run. Without an overlap all members must join again.

    Raises
    ------
    StoreError
        The broker runs, or its store cannot be read.
    IdentityError
        The key was replaced before, and that overlap lasts; or the key cannot be read or written.
    """
    old = read_certificate(folder)
    with open_store(folder, Timeouts()):  # as its owner, so that the broker does not run
        old_key, trust, ends_at = source.read(folder, old), Trust.read(folder), now + overlap_seconds
        if overlap_seconds and trust.overlaps(now):
            assert trust.crossed is not None
            ends = format_utc(trust.crossed.not_valid_after_utc.timestamp())
            raise IdentityError(
                f"the key was replaced before, and members have until {ends} to renew: wait, or give"
                " --overlap-days 0, after which all members must join again"
            )
        key = new_key()
        newest = sign_authority(key, now)
        crossed = [cross_sign(newest, old, old_key, now, ends_at)] if overlap_seconds else []
        roots = [newest, old] if overlap_seconds else [newest]
        source.write_next(folder, key)
        try:
            write_atomically(folder / CROSSED_FILE, certificates_to_pem(crossed))
            write_atomically(folder / AUTHORITY_FILE, certificates_to_pem(roots))
        except OSError as error:
            raise IdentityError(
                f"{folder} cannot be written ({error.strerror}), so the old key still counts: free disk space"
                " and run this again"
            ) from None
        source.take_next(folder)
    return Rotated(fingerprint(newest), ends_at)
