"""What a viewer may see: all of a fleet, or only some jobs with the workers that they have."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from farflung.errors import IdentityError
from farflung.text import with_article

MOST_JOBS = 100
"""How many jobs a token may name."""


def encode_scope(role: str, jobs: Sequence[str]) -> str:
    """A token's scope as the store keeps it; empty: all.

    Raises
    ------
    IdentityError
        The role sees all, or too many jobs are named.
    """
    if not jobs:
        return ""
    if role != "viewer":
        raise IdentityError(
            f"--jobs limits what a viewer sees, and the token is for {with_article(role)}: leave it out"
        )
    if len(jobs) > MOST_JOBS or not all(jobs):
        raise IdentityError(f"expected 1 to {MOST_JOBS} names of jobs, found {len(jobs)}, or an empty one")
    return msgspec.json.encode(sorted(set(jobs))).decode()


def decode_scope(scope: str) -> frozenset[str] | None:
    """The names or ids of the jobs that a scope lets its holder see; None: all."""
    return frozenset(msgspec.json.decode(scope, type=list[str])) if scope else None


def scope_words(jobs: Collection[str] | None) -> str:
    """A scope in words that follow on a role; empty if that sees all."""
    return f" of {', '.join(sorted(jobs))}" if jobs else ""
