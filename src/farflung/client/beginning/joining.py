"""Find or obtain the identity with which a command or a Python program speaks to its broker.

An identity is a folder with a certificate and its key, by default below FARFLUNG_HOME (~/.farflung). The
first time, a token is exchanged for one.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from farflung.client.output.progress import ProgressCallback, no_progress
from farflung.errors import FarflungError, IdentityError
from farflung.text import format_utc, with_article
from farflung.transport.security.identity_folder import folder_of, require_free_folder

if TYPE_CHECKING:
    from farflung.transport.security.identity import Identity
    from farflung.transport.security.tokens import Token, TokenRole

CLOCK_WORTH_SAYING_SECONDS = 1.0


async def obtain_identity(
    folder: Path,
    role: TokenRole,
    broker: str | None,
    token: str | None,
    name: str | None = None,
    tell: ProgressCallback = no_progress,
) -> Identity:
    """The identity in `folder`; joins with the token if there is none, or if the token is another broker's.

    `tell` is called with what the user should know, one line each. Without `broker`, the address of the
    token's broker comes from this user's identities, or from a broker on this machine.

    Raises
    ------
    IdentityError
        There is neither identity nor token, the identity has another name than `name`, a running worker would
        lose it, or the token was refused.
    ConnectionFailed
        The broker cannot be reached.
    """
    from farflung.transport.net.addresses import parse_addresses
    from farflung.transport.security.tokens import Token

    broker = None if broker is None else ",".join(parse_addresses(broker))
    if token is None:
        return await _fresh(_at(_own_identity(folder, role, name), broker), tell)
    parsed = Token.parse(token)
    known = known_identity(folder, parsed.fingerprint)
    if known is not None and known.role == role:
        _require_name(known, folder, name)
        try:
            fresh = await _fresh(_at(known, broker), tell)
        except FarflungError:  # it ended too long ago: the token counts
            broker = broker or known.broker
        else:
            tell(f"the token was not needed: {folder} already has the identity of {role} {known.id}")
            return fresh
    return await _join(folder, role, broker, parsed, name, tell)


def _own_identity(folder: Path, role: TokenRole, name: str | None) -> Identity:
    """The identity in a folder; IdentityError if there is none, or one of another role or name."""
    from farflung.transport.security.identity import Identity

    kept = Identity.load(folder, ended_too=True)
    if role not in (kept.role, "viewer"):  # any role may view
        found, needed = with_article(kept.role), with_article(role)
        raise IdentityError(
            f"{folder} has the identity of {found}, but {needed}'s is needed: use another --folder"
        )
    _require_name(kept, folder, name)
    return kept


async def _join(
    folder: Path,
    role: TokenRole,
    broker: str | None,
    token: Token,
    name: str | None,
    tell: ProgressCallback,
) -> Identity:
    """Exchange a token for an identity in `folder`, which replaces one that is there."""
    from farflung.transport.security.enrolment import enrol

    broker = broker or _address_of(token.fingerprint)
    if broker is None:
        raise IdentityError("the token does not contain its broker's address: add --broker HOST:PORT")
    replaced = _kept(folder)
    if replaced is not None:
        require_free_folder(folder)
    tell(f"dialling the broker at {broker}")
    enrolment = await enrol(broker, token, folder, role, name)
    _say_clock(enrolment.clock_ahead_seconds, tell)
    if replaced is not None:
        tell(
            f"replaced the identity that {folder} had: {replaced.role} {replaced.id} at {replaced.broker};"
            " give each broker a folder of its own with --folder to keep both"
        )
    _say_joined(broker, enrolment.identity, folder, tell)
    return enrolment.identity


def _require_name(kept: Identity, folder: Path, name: str | None) -> None:
    if name is not None and name != kept.id:
        raise IdentityError(
            f"{folder} has the identity of {kept.id}, but --name is {name}: leave --name out to be {kept.id}"
            f" again, or choose another folder for {name} with --folder"
        )


def known_identity(folder: Path, fingerprint: bytes) -> Identity | None:
    """An identity that the token's broker issued before, which saves one use of the token.

    Its certificate may have ended.
    """
    return _kept(folder, ended_too=True) if _trusts(folder, fingerprint) else None


def _kept(folder: Path, ended_too: bool = False) -> Identity | None:
    """The identity in a folder, if there is one."""
    from farflung.transport.security.identity import Identity

    try:
        return Identity.load(folder, ended_too)
    except IdentityError:
        return None


def _trusts(folder: Path, fingerprint: bytes) -> bool:
    """Whether the certificate authority in a holder's or broker's folder has this fingerprint."""
    from farflung.transport.security.certificates import certificates_from_pem
    from farflung.transport.security.certificates import fingerprint as fingerprint_of
    from farflung.transport.security.identity import AUTHORITY_FILE

    try:
        known = certificates_from_pem((folder / AUTHORITY_FILE).read_bytes())
    except (OSError, IdentityError):
        return False
    return fingerprint in map(fingerprint_of, known)


def _address_of(fingerprint: bytes) -> str | None:
    """The address of the broker with this authority, from this user's identities or a local broker."""
    from farflung.transport.security.tokens import TOKEN_ROLES

    for role in TOKEN_ROLES:
        if known := known_identity(folder_of(role, None), fingerprint):
            return known.broker
    own = folder_of("broker", None)
    return listening_at(own) if _trusts(own, fingerprint) else None


def listening_at(folder: Path) -> str | None:
    """The address at which this machine reaches the broker of `folder`, if one has run."""
    from farflung.connectivity.advertised import dialled_at
    from farflung.transport.net.address_file import read_address

    listening = read_address(folder)
    return dialled_at(listening, ())[0] if listening else None


def _at(identity: Identity, broker: str | None) -> Identity:
    return identity if broker is None else replace(identity, broker=broker)


async def _fresh(identity: Identity, tell: ProgressCallback) -> Identity:
    """The identity, with its certificate renewed if half of its lifetime is over and the broker answers.

    One that has ended must be renewed: IdentityError says what to do if that fails.
    """
    if not identity.needs_renewal(time.time()):
        return identity
    if identity.has_ended:
        return await _renewed_at_last(identity, tell)
    from farflung.client.run.broker_client import renew

    try:
        return await renew(identity)
    except FarflungError as error:
        tell(f"the certificate of {identity.id} could not be renewed: {error}")
        return identity


async def _renewed_at_last(identity: Identity, tell: ProgressCallback) -> Identity:
    from farflung.transport.security.enrolment import renew_ended

    try:
        fresh = await renew_ended(identity)
    except FarflungError as error:
        tell(f"the ended certificate of {identity.id} could not be renewed: {error}")
        identity.require_valid()
        raise
    tell(f"the certificate of {identity.id} had ended, and was renewed")
    return fresh


def _say_joined(broker: str, identity: Identity, folder: Path, tell: ProgressCallback) -> None:
    from farflung.transport.security.certificates import RENEWABLE_SECONDS

    is_kept = not folder.resolve().is_relative_to(Path(tempfile.gettempdir()).resolve())
    next_time = ""
    if is_kept:
        until = format_utc(identity.expires_at + RENEWABLE_SECONDS)
        next_time = (
            f"; no token is needed before {until}, or longer if you use it ({folder} has the identity)"
        )
    tell(f"joined the broker at {broker} as {identity.role} {identity.id}{next_time}")


def _say_clock(ahead_seconds: float, tell: ProgressCallback) -> None:
    if abs(ahead_seconds) >= CLOCK_WORTH_SAYING_SECONDS:
        direction = "ahead of" if ahead_seconds > 0 else "behind"
        tell(f"this machine's clock is {abs(ahead_seconds):.1f} s {direction} the broker's")
