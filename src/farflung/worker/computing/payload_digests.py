"""Digests of what a worker's segments exchange with those of other workers, for jobs that are checked. Pure.

Both ends of a link say them with each step, so a worker cannot say that it sent something else than it did.
The order in which payloads are written or arrive does not matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import msgspec

from farflung.plans import FEEDER
from farflung.protocol.worker import Share
from farflung.runtime.parcel import Coded, Parcel

_Entry = tuple[int, int, int, bool, int, bytes]  # microbatch, bucket, value, gradient, codec, SHA-256
_LENGTH = 8


class PayloadDigests:
    """Notes the payloads of each unit; empty gradients, and what the feeder sends, are left out."""

    def __init__(self, segments: Collection[int]) -> None:
        self._segments = frozenset(segments)
        self._noted: dict[tuple[int, int, int], list[_Entry]] = {}  # by unit, source and target

    def note(self, parcel: Parcel[Coded]) -> None:
        """Note a parcel that was written for another worker, or came from one."""
        if parcel.payload is None or FEEDER in (parcel.source, parcel.target):
            return
        codec, data = parcel.payload
        digest = hashlib.sha256(data).digest()
        entry = (parcel.microbatch, parcel.bucket, parcel.value, parcel.gradient, codec, digest)
        self._noted.setdefault((parcel.unit, parcel.source, parcel.target), []).append(entry)

    def reported(self, unit: int, shares: Collection[Share]) -> tuple[Share, ...]:
        """The shares of a unit with the digests of what was exchanged in it, which are then forgotten."""
        sent: dict[int, dict[int, bytes]] = {}
        received: dict[int, dict[int, bytes]] = {}
        for at in [at for at in self._noted if at[0] <= unit]:
            digest = _digest(self._noted.pop(at))
            _, source, target = at
            if at[0] < unit:
                continue  # of an evaluation
            if source in self._segments:
                sent.setdefault(source, {})[target] = digest
            else:
                received.setdefault(target, {})[source] = digest
        return tuple(
            msgspec.structs.replace(
                one, sent=sent.get(one.segment, {}), received=received.get(one.segment, {})
            )
            for one in shares
        )


def _digest(entries: list[_Entry]) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(sorted(entries))).digest()[:_LENGTH]
