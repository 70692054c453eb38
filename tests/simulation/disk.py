"""A worker's disk, which outlives its process: the copies of shares, each reduced to its chain of units."""

from __future__ import annotations

import random
from hashlib import sha256

from tests.simulation.parcels import Chain, Copy

from farflung.protocol.copies import HeldCopy, Retain, StateVersion

Key = tuple[str, StateVersion, int]
"""Job, version and share."""


BASE_BYTES = 10_000
"""Of what training does not change of a share."""


class Disk:
    """The copies of one worker, with the names of what each has. A disk that is `full` takes no other one.

    Of those on a `mute` one the broker does not hear.
    """

    def __init__(self) -> None:
        self.copies: dict[Key, Chain] = {}
        self.names: dict[Key, frozenset[str]] = {}
        self.full = self.mute = False

    def keep(self, job: str, copy: Copy) -> None:
        """Write a copy."""
        key = (job, copy.version, copy.share)
        self.copies[key], self.names[key] = copy.chain, copy.names

    def held(self) -> list[HeldCopy]:
        """What the worker says that it holds."""
        return [
            HeldCopy(job, version, share, digest_of(chain), 100, base_of(job, share), BASE_BYTES)
            for (job, version, share), chain in sorted(self.copies.items())
        ]

    def retain(self, message: Retain) -> None:
        """Delete what is older and not to be kept."""
        self.copies = {
            (job, version, share): chain
            for (job, version, share), chain in self.copies.items()
            if job != message.job or version > message.up_to or version in message.versions
        }

    def lose(self, job: str, share: int) -> None:
        """Lose all copies of one share."""
        self.copies = {key: chain for key, chain in self.copies.items() if (key[0], key[2]) != (job, share)}

    def empty(self) -> None:
        """There is room again."""
        self.full = self.mute = False

    def damage(self, draw: random.Random) -> str:
        """Lose one of the copies; returns its job, or nothing if there is none."""
        if not self.copies:
            return ""
        lost = draw.choice(sorted(self.copies))
        del self.copies[lost]
        return lost[0]


def base_of(job: str, share: int) -> bytes:
    """The digest of a share's base."""
    return sha256(f"{job} {share}".encode()).digest()


def digest_of(chain: Chain) -> bytes:
    """The digest of a copy."""
    return sha256(repr(chain).encode()).digest()
