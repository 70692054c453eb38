"""Whom to reach, and for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farflung.transport.peer import Peer


@dataclass(frozen=True)
class Errand:
    """Reach `peer`, which gave these `addresses` (HOST:PORT), for one attempt of a job."""

    job: str
    attempt: int
    peer: Peer
    addresses: Sequence[str]
