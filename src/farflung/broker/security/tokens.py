"""List and revoke a broker's join tokens. Their secrets are not stored."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import msgspec

from farflung.broker.security.scopes import decode_scope
from farflung.broker.storage.contract import TokenRecord
from farflung.broker.storage.opening import has_store, open_store
from farflung.broker.storage.sql import SqlStore
from farflung.errors import IdentityError
from farflung.transport.timeouts import Timeouts

_ID_LENGTH = 8


class KnownToken(msgspec.Struct, frozen=True):
    """A token as `farflung token list` shows it; times are in Unix seconds, `joined` are the ids it admitted.

    `id` is the beginning of the SHA-256 of its secret. `made_at` is None for tokens of older versions. `jobs`
    are those that a viewer sees; None: all.
    """

    id: str
    role: str
    state: Literal["good", "used up", "expired"]
    uses: int
    used: int
    made_at: float | None
    expires_at: float
    joined: list[str]
    jobs: list[str] | None = None


def known_tokens(folder: Path) -> list[KnownToken]:
    """All tokens of the broker of `folder`, which may be running; those that expire first in front.

    Raises
    ------
    IdentityError
        The folder has never had a broker.
    """
    with _store(folder) as store:
        now = time.time()
        return [_known(token, store.joined_with(token.digest), now) for token in store.tokens()]


def revoke_token(folder: Path, id: str) -> KnownToken:
    """Revoke the token with this id (or beginning of an id). Holders that joined with it stay.

    Raises
    ------
    IdentityError
        The folder has never had a broker, has no such token, or has several whose ids begin like this.
    """
    with _store(folder) as store:
        found = [token for token in store.tokens() if id and token.digest.hex().startswith(id.lower())]
        if len(found) != 1:
            several = f"{len(found)} tokens have ids that begin with" if found else "no token has the id"
            raise IdentityError(f"{several} {id[:64]!r}: farflung token list shows them")
        known = _known(found[0], store.joined_with(found[0].digest), time.time())
        store.drop_token(found[0].digest)
        return known


def token_id(digest: bytes) -> str:
    """The id of a token, by the SHA-256 of its secret."""
    return digest.hex()[:_ID_LENGTH]


def lets_in(token: TokenRecord | None, now: float) -> int:
    """How many more can join with a token `now` (Unix seconds); 0 if it was revoked."""
    return 0 if token is None or now >= token.expires_at else max(0, token.uses - token.used)


def _store(folder: Path) -> SqlStore:
    if not has_store(folder):
        raise IdentityError(
            f"{folder} has no broker and no tokens: run this on the broker's machine,"
            " with the broker's --folder"
        )
    return open_store(folder, Timeouts(), sole=False)


def _known(token: TokenRecord, joined: list[str], now: float) -> KnownToken:
    state: Literal["good", "used up", "expired"] = "good"
    if now >= token.expires_at:
        state = "expired"
    elif token.used >= token.uses:
        state = "used up"
    id = token_id(token.digest)
    seen = decode_scope(token.scope)
    jobs = None if seen is None else sorted(seen)
    return KnownToken(
        id, token.role, state, token.uses, token.used, token.made_at, token.expires_at, joined, jobs
    )
