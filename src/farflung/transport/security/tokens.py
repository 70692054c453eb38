"""Join tokens: a line of text that lets a holder join, and says which broker to trust.

A token is `ff1-` and 85 letters and digits: role, SHA-256 of the broker's CA certificate, a 128-bit secret
and a CRC-32, which detects every single mistyped character.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
import zlib
from dataclasses import dataclass, field
from typing import Literal, get_args

from farflung.errors import IdentityError

TokenRole = Literal["worker", "submitter", "viewer", "operator"]
TOKEN_ROLES: tuple[TokenRole, ...] = get_args(TokenRole)

SECRET_BYTES = 16
FINGERPRINT_BYTES = 32

_PREFIX = "ff1-"
_CHECKSUM_BYTES = 4
_TOTAL_BYTES = 1 + FINGERPRINT_BYTES + SECRET_BYTES + _CHECKSUM_BYTES
_TEXT_LENGTH = len(_PREFIX) + -(-_TOTAL_BYTES * 8 // 5)


@dataclass(frozen=True)
class Token:
    """The contents of a token. Only `text` shows the secret."""

    role: TokenRole
    fingerprint: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def create(cls, role: TokenRole, fingerprint: bytes) -> Token:
        """A token with a fresh secret for the broker whose CA certificate has this SHA-256."""
        return cls(role, fingerprint, secrets.token_bytes(SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> Token:
        """Read a token; white space from a wrapped paste is ignored.

        Raises
        ------
        IdentityError
            The text is not a token, is cut short, or was mistyped. The message never repeats it.
        """
        text = "".join(text.split())
        _check_shape(text)
        body = _decode(text)
        content, checksum = body[:-_CHECKSUM_BYTES], body[-_CHECKSUM_BYTES:]
        if _checksum(content) != checksum or _encode(body) != text or content[0] >= len(TOKEN_ROLES):
            raise IdentityError("the token's checksum does not match: copy it again")
        fingerprint, secret = content[1 : 1 + FINGERPRINT_BYTES], content[1 + FINGERPRINT_BYTES :]
        return cls(TOKEN_ROLES[content[0]], fingerprint, secret)

    @property
    def text(self) -> str:
        """The token as users copy it."""
        content = bytes([TOKEN_ROLES.index(self.role)]) + self.fingerprint + self.secret
        return _encode(content + _checksum(content))

    @property
    def digest(self) -> bytes:
        """SHA-256 of the secret, which is all that the broker stores."""
        return secret_digest(self.secret)


def token_role(role: str) -> TokenRole:
    """The role as one that tokens grant; IdentityError if none does."""
    for one in TOKEN_ROLES:
        if one == role:
            return one
    raise IdentityError(f"no token lets anyone join as {role}")


def secret_digest(secret: bytes) -> bytes:
    """SHA-256 of a token's secret, by which the broker stores and finds it."""
    return hashlib.sha256(secret).digest()


def _check_shape(text: str) -> None:
    if not text:
        raise IdentityError("the token is empty: pass what `farflung token create` printed")
    if not text.startswith(_PREFIX):
        raise IdentityError(
            f"this is not a farflung token: expected '{_PREFIX}' and "
            f"{_TEXT_LENGTH - len(_PREFIX)} letters and digits, as `farflung token create` prints it"
        )
    if len(text) != _TEXT_LENGTH:
        raise IdentityError(
            f"the token has {len(text)} characters instead of {_TEXT_LENGTH}: copy all of it again"
        )


def _decode(text: str) -> bytes:
    encoded = text.removeprefix(_PREFIX).upper()
    try:
        return base64.b32decode(encoded + "=" * (-len(encoded) % 8))
    except (binascii.Error, ValueError):
        raise IdentityError("the token contains a character that no token has: copy it again") from None


def _encode(body: bytes) -> str:
    return _PREFIX + base64.b32encode(body).decode().rstrip("=").lower()


def _checksum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "big")
