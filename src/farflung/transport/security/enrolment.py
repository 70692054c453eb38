"""Joining a broker: exchange a token for an identity, and trust only the broker that the token names."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from farflung.errors import ConnectionFailed, IdentityError
from farflung.text import with_article
from farflung.transport.endpoint import ask
from farflung.transport.net.addresses import parse_addresses
from farflung.transport.security import join_messages
from farflung.transport.security.certificates import (
    BACKDATE_SECONDS,
    LIFETIME_SECONDS,
    certificate_from_pem,
    certificate_to_pem,
    client_context,
    fingerprint,
    public_bytes,
    signing_request,
    unverified_context,
)
from farflung.transport.security.identity import BROKER_NAME, Identity, key_in
from farflung.transport.security.join_messages import (
    Answer,
    AskAuthority,
    AskCertificate,
    AskRenewal,
    Request,
    TellAuthority,
    TellCertificate,
)
from farflung.transport.security.names import check_id, default_id
from farflung.transport.security.tokens import Token, TokenRole, token_role
from farflung.transport.timeouts import Timeouts


@dataclass(frozen=True)
class Enrolment:
    """A finished join: the identity, and by how many seconds this clock is ahead of the broker's."""

    identity: Identity
    clock_ahead_seconds: float


async def enrol(
    address: str, token: Token, folder: Path, role: TokenRole, name: str | None = None
) -> Enrolment:
    """Spend `token` at the broker on HOST:PORT for an identity in `folder`.

    `address` may be several with commas between: the first at which the broker answers is used, and the
    identity has them all.

    The first connection only fetches the authority's certificate, which must have the token's fingerprint.
    The secret goes over a second connection, which is verified against that certificate. The private key is
    made in `folder` and stays there. Without `name`, the id is the host's name and a short suffix. You can
    repeat an interrupted join with the same token and folder.

    Raises
    ------
    IdentityError
        The token is for another role or of another broker, this clock is 12 hours ahead or a day behind, or
        the broker refuses the token or the id.
    ConnectionFailed
        The broker cannot be reached, or does not hold a certificate for its name.
    """
    if token.role != role:
        raise IdentityError(
            f"the token is for {with_article(token.role)}, not for {with_article(role)}: create another with "
            f"farflung token create --role {role}"
        )
    key = await asyncio.to_thread(key_in, folder)
    id = check_id(name) if name else default_id(socket.gethostname(), public_bytes(key.public_key()))
    reached, authority = await _reach_authority(parse_addresses(address), token)
    request = AskCertificate(token.secret, id, role, signing_request(key, id, role))
    asked = time.time()
    answer = await _exchange(reached, request, authority)
    if not isinstance(answer, TellCertificate):
        raise _unexpected(reached, answer)
    ahead = (asked + time.time()) / 2 - answer.clock
    trusted = answer.authorities or authority
    identity = await asyncio.to_thread(Identity.write, folder, answer.certificate, trusted, address)
    return Enrolment(identity, ahead)


async def renew_ended(identity: Identity) -> Identity:
    """Renew an identity whose certificate has ended at its broker, and store it in its folder.

    Raises
    ------
    IdentityError
        The broker refuses: it has removed the holder, or the certificate ended too long ago.
    ConnectionFailed
        The broker cannot be reached, or does not hold a certificate for its name.
    """
    request = await asyncio.to_thread(identity.renewal_request)
    asked = AskRenewal(identity.id, token_role(identity.role), request)
    authority, failures = await asyncio.to_thread(identity.authority), []
    for address in identity.broker_addresses:
        try:
            answer = await _exchange(address, asked, authority)
        except ConnectionFailed as error:
            failures.append(str(error))
            continue
        if not isinstance(answer, TellCertificate):
            raise _unexpected(address, answer)
        return await asyncio.to_thread(identity.renewed, answer.certificate, answer.authorities)
    raise ConnectionFailed("; ".join(failures))


async def _reach_authority(addresses: Sequence[str], token: Token) -> tuple[str, bytes]:
    """The first address at which a broker answers, and its authority's certificate (PEM)."""
    failures = []
    for address in addresses:
        try:
            return address, await _fetch_authority(address, token)
        except ConnectionFailed as error:
            failures.append(str(error))
    raise ConnectionFailed("; ".join(failures))


async def _fetch_authority(address: str, token: Token) -> bytes:
    answer = await _exchange(address, AskAuthority(), authority=None)
    if not isinstance(answer, TellAuthority):
        raise _unexpected(address, answer)
    offered = [certificate_from_pem(pem) for pem in (answer.certificate, *answer.older)]
    certificate = next((one for one in offered if fingerprint(one) == token.fingerprint), None)
    if certificate is None:
        found = fingerprint(offered[0])
        raise IdentityError(
            f"the broker at {address} did not create this token (expected "
            f"{token.fingerprint.hex()[:8]}…, found {found.hex()[:8]}…), so nothing secret was sent:"
            f" create one on that broker's machine with farflung token create --role {token.role},"
            " or dial the broker that created this one"
        )
    _check_clock(time.time() - answer.clock)
    return certificate_to_pem(certificate)


def _check_clock(ahead_seconds: float) -> None:
    # Behind, a new certificate must be valid already; ahead, those of others must not seem to have ended.
    if -BACKDATE_SECONDS < ahead_seconds < LIFETIME_SECONDS / 2:
        return
    direction = "ahead of" if ahead_seconds > 0 else "behind"
    raise IdentityError(
        f"this machine's clock is {abs(ahead_seconds) / 3600:.0f} hours {direction} the broker's, so no "
        "certificate would be valid: correct the clock that is wrong, then join again"
    )


async def _exchange(address: str, request: Request, authority: bytes | None) -> Answer:
    """Send one request to a broker, verified against `authority` (PEM) if that is known."""
    context = client_context(authority) if authority else unverified_context()
    server_hostname = BROKER_NAME if authority else None
    reply = await ask(
        address, context, server_hostname, join_messages.encode(request), Timeouts().join_seconds
    )
    return join_messages.decode_answer(reply)


def _unexpected(address: str, answer: Answer) -> IdentityError:
    if isinstance(answer, join_messages.Refuse):
        return IdentityError(f"the broker at {address} refused: {answer.reason}")
    return IdentityError(
        f"the broker at {address} sent an unexpected answer: check that its version matches yours"
    )
