"""The broker as certificate authority: issues certificates to holders of join tokens, and renews them."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from farflung.broker.security.authority_key import IN_FOLDER, KeySource, read_certificate
from farflung.broker.security.rotation import Trust
from farflung.broker.security.scopes import decode_scope, encode_scope
from farflung.broker.security.signing import sign_authority, sign_holder
from farflung.broker.storage.contract import BrokerStore, Holder, TokenRecord
from farflung.broker.storage.opening import open_store
from farflung.errors import FarflungError, IdentityError
from farflung.files import write_atomically
from farflung.text import duration_words, format_seconds, with_article
from farflung.transport.security import join_messages
from farflung.transport.security.certificates import (
    LIFETIME_SECONDS,
    RENEWABLE_SECONDS,
    certificate_from_pem,
    certificate_to_pem,
    certificates_to_pem,
    fingerprint,
    is_issued_by,
    key_to_pem,
    new_key,
    public_bytes,
    public_key_digest,
    read_signing_request,
)
from farflung.transport.security.identity import AUTHORITY_FILE, RECORD_FILE, Identity, key_in
from farflung.transport.security.names import BROKER_ID, Role, check_id
from farflung.transport.security.tokens import Token, TokenRole, secret_digest
from farflung.transport.sparse_log import SparseLog
from farflung.transport.timeouts import Timeouts

_log = logging.getLogger("farflung.broker")
_sparse = SparseLog(_log)


@dataclass(frozen=True)
class Authority:
    """A broker's certificate authority. Its folder holds the key, its store the tokens and holders.

    Certificates are valid for `lifetime_seconds`. `refusal` says why the member with an id gets none any
    more; empty: it may have one. `scopes` holds the jobs that a viewer sees, by its id, unless it sees all.
    `trust` holds older authorities while members still trust them.
    """

    folder: Path
    store: BrokerStore
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    clock: Callable[[], float]
    lifetime_seconds: float = LIFETIME_SECONDS
    refusal: Callable[[str], str] = lambda id: ""
    scopes: dict[str, frozenset[str]] = field(default_factory=dict)
    trust: Trust | None = None

    @classmethod
    def open(
        cls,
        folder: Path,
        store: BrokerStore,
        clock: Callable[[], float] = time.time,
        lifetime_seconds: float = LIFETIME_SECONDS,
        refusal: Callable[[str], str] = lambda id: "",
        source: KeySource = IN_FOLDER,
    ) -> Authority:
        """The authority of a broker's folder, created on first use. `clock` returns Unix seconds.

        Raises
        ------
        IdentityError
            Its key is missing, is another one, or is encrypted and not opened.
        """
        certificate = open_certificate(folder, store, clock(), source)
        key = source.read(folder, certificate)
        scopes = {one.id: seen for one in store.holders() if (seen := decode_scope(one.scope)) is not None}
        trust = Trust.read(folder)
        return cls(folder, store, certificate, key, clock, lifetime_seconds, refusal, scopes, trust)

    @property
    def roots(self) -> bytes:
        """The certificates (PEM) of all authorities that members trust now, this one first."""
        return certificates_to_pem(self._trust.roots(self.clock()))

    @property
    def new_roots(self) -> bytes:
        """`roots` if the key was ever replaced, so that members hear of it; else empty."""
        return self.roots if self._trust.was_rotated else b""

    @property
    def _trust(self) -> Trust:
        return self.trust or Trust(self.certificate)

    def create_token(self, role: TokenRole, uses: int = 1, hours: float = 24) -> Token:
        """Create a token with which `uses` holders can join as `role` within `hours` from now."""
        return add_token(self.store, self.certificate, self.clock(), role, uses, hours)

    def identity(self) -> Identity:
        """The broker's own identity, issued if missing and renewed at half of its life."""
        try:
            identity = Identity.load(self.folder)
            is_newest = is_issued_by(identity.certificate, self.certificate)
            if is_newest and identity.authority() == self.roots and not identity.needs_renewal(self.clock()):
                return identity
        except IdentityError as error:
            if (self.folder / RECORD_FILE).exists():
                _log.info("the broker's own certificate is issued again (%s)", error)
            elif self.store.holders():
                _log.info("the broker's own certificate is issued again, as after a restore")
            else:
                _log.info("a new broker: its certificates are kept in %s", self.folder)
        certificate = self._sign((BROKER_ID, "broker"), key_in(self.folder).public_key())
        return Identity.write(self.folder, certificate, self.roots, broker="")

    async def on_joiner(self, request: bytes, remote: str) -> bytes:
        """Answer a peer without a certificate; disk access runs on another thread."""
        return await asyncio.to_thread(self.answer, request, remote)

    def answer(self, request: bytes, remote: str) -> bytes:
        """Answer one request of a joiner (`farflung.transport.security.join_messages`)."""
        try:
            asked = join_messages.decode_request(request)
            if isinstance(asked, join_messages.AskCertificate):
                check_id(asked.id)
                certificate = self.enrol(asked)
                _log.info("%s joined as %s from %s", asked.id, asked.role, remote)
                return join_messages.encode(
                    join_messages.TellCertificate(certificate, self.clock(), self.new_roots)
                )
            if isinstance(asked, join_messages.AskRenewal):
                certificate = self.renew_ended(check_id(asked.id), asked.role, asked.request)
                _log.info("%s renewed its ended certificate from %s", asked.id, remote)
                return join_messages.encode(
                    join_messages.TellCertificate(certificate, self.clock(), self.new_roots)
                )
            own, *older = [certificate_to_pem(root) for root in self._trust.roots(self.clock())]
            return join_messages.encode(join_messages.TellAuthority(own, self.clock(), older))
        except FarflungError as error:
            _sparse.write(logging.WARNING, "refused a joiner at %s: %s", remote, error)
            return join_messages.encode(join_messages.Refuse(str(error)[:1000]))

    def enrol(self, asked: join_messages.AskCertificate) -> bytes:
        """Spend a token and issue a certificate (PEM), in one transaction.

        The same key may repeat the request after an interrupted join; that spends nothing.

        Raises
        ------
        IdentityError
            The token is unknown, for another role, expired or used up, the id is taken by another key or
            was removed, or the certificate request is for another holder.
        """
        digest = secret_digest(asked.secret)
        if self.store.token(digest) is None:  # cheaply, before a signature is checked or others have to wait
            _check_token(None, asked.role, self.clock(), repeated=False)
        holder, key = _read_request(asked.request, asked.id, asked.role)
        if asked.id == BROKER_ID:
            raise IdentityError(f"the id {BROKER_ID!r} is the broker's own: choose another with --name")
        with self.store.transaction():
            known = self.store.holder(asked.id)
            repeated = known is not None and _is_same(known, key) and known.token_digest == digest
            # Check the token first, so that strangers without one cannot learn which ids exist.
            token = self.store.token(digest)
            _check_token(token, asked.role, self.clock(), repeated)
            _check_holder(known, holder, key)
            self._check_refusal(asked.id)
            if not repeated:
                self.store.spend(digest)
            return self._issue(holder, key, digest, "" if token is None else token.scope)

    def renew(self, id: str, role: Role, request: bytes) -> bytes:
        """A new certificate (PEM) for a holder whose connection proved that it is `id` in `role`.

        Raises
        ------
        IdentityError
            The request (PEM) is for another holder, or another key than the one that joined, or the holder
            was removed.
        """
        holder, key = _read_request(request, id, role)
        with self.store.transaction():
            known = self.store.holder(id)
            _check_holder(known, holder, key)
            if known is None:
                raise IdentityError(f"{id} never joined this broker as {role}: join with a token")
            self._check_refusal(id)
            return self._issue(holder, key, known.token_digest, known.scope)

    def _check_refusal(self, id: str) -> None:
        if refusal := self.refusal(id):
            raise IdentityError(refusal)

    def renew_ended(self, id: str, role: Role, request: bytes) -> bytes:
        """A new certificate (PEM) for a holder whose own has ended, and whose key signed the request.

        Without the key the certificate is of no use, so it does no harm if a request is repeated.

        Raises
        ------
        IdentityError
            As `renew`; or the certificate ended too long ago.
        """
        known = self.store.holder(id)  # cheaply, before a signature is checked or others have to wait
        if known is None:
            raise IdentityError(f"{id} never joined this broker as {role}: join with a token")
        ended = certificate_from_pem(known.certificate).not_valid_after_utc.timestamp()
        if self.clock() > ended + RENEWABLE_SECONDS:
            raise IdentityError(
                f"the certificate of {id} ended more than {duration_words(RENEWABLE_SECONDS)} ago: join again"
                f" with a token (farflung token create --role {role}) and another --folder or --name"
            )
        return self.renew(id, role, request)

    def seal(self, generation: int) -> bytes:
        """What shows to any broker with this authority that one of them had this generation."""
        secret = hashlib.sha256(b"farflung generation\0" + key_to_pem(self.key)).digest()
        return hmac.digest(secret, str(generation).encode(), "sha256")

    def _issue(
        self, holder: tuple[str, Role], key: ec.EllipticCurvePublicKey, token_digest: bytes, scope: str = ""
    ) -> bytes:
        certificate = self._sign(holder, key)
        digest = public_key_digest(public_bytes(key))
        self.store.write_holder(Holder(holder[0], holder[1], digest, token_digest, certificate, scope))
        seen = decode_scope(scope)
        if seen is None:
            self.scopes.pop(holder[0], None)
        else:
            self.scopes[holder[0]] = seen
        return certificate

    def _sign(self, holder: tuple[str, Role], key: ec.EllipticCurvePublicKey) -> bytes:
        now, lifetime = self.clock(), self.lifetime_seconds
        certificate = sign_holder(self.certificate, self.key, holder, key, now, lifetime)
        return certificates_to_pem([certificate, *self._trust.chain(now)])


def open_certificate(
    folder: Path, store: BrokerStore, now: float, source: KeySource = IN_FOLDER, needs_key: bool = True
) -> x509.Certificate:
    """The certificate of the authority of a broker's folder, created with its key on first use.

    An encrypted key is not opened. Without `needs_key` it need not be there.

    Raises
    ------
    IdentityError
        The key is missing, or is not the certificate's.
    """
    with store.transaction():  # only one of several processes may create the key
        if not (folder / AUTHORITY_FILE).exists():
            store.bind(None)
            key = new_key()
            source.write(folder, key)
            write_atomically(folder / AUTHORITY_FILE, certificate_to_pem(sign_authority(key, now)))
        certificate = read_certificate(folder)
        if needs_key:
            source.check(folder, certificate)
        older = Trust.read(folder).older
        store.bind(fingerprint(certificate), [fingerprint(one) for one in older])
    return certificate


def create_token(
    folder: Path, role: TokenRole, uses: int = 1, hours: float = 24, jobs: Sequence[str] = ()
) -> Token:
    """Create a token for the broker of `folder`, which may be running or may never have run.

    This needs no key, so it may be encrypted or kept apart. A viewer that joins with the token sees only the
    `jobs` that are named, by name or id, if any are.
    """
    with open_store(folder, Timeouts(), sole=False) as store:
        now = time.time()
        certificate = open_certificate(folder, store, now, needs_key=False)
        return add_token(store, certificate, now, role, uses, hours, jobs)


def add_token(
    store: BrokerStore,
    certificate: x509.Certificate,
    now: float,
    role: TokenRole,
    uses: int,
    hours: float,
    jobs: Sequence[str] = (),
) -> Token:
    """Create a token of the authority with this certificate, at `now` (Unix seconds)."""
    scope = encode_scope(role, jobs)
    if not 1 <= uses <= 1_000_000:
        raise IdentityError(f"expected a token for 1 to 1000000 uses, found {uses}")
    if not 0 < hours <= 24 * 365:
        raise IdentityError(f"expected a token for more than 0 and at most 8760 hours, found {hours}")
    token = Token.create(role, fingerprint(certificate))
    store.add_token(TokenRecord(token.digest, role, uses, 0, now + hours * 3600, now, scope))
    return token


def _read_request(request: bytes, id: str, role: Role) -> tuple[tuple[str, Role], ec.EllipticCurvePublicKey]:
    named_id, named_role, key = read_signing_request(request)
    if (named_id, named_role) != (id, role):
        raise IdentityError(
            f"expected a certificate request for {id} as {role}, found one for {named_id} as {named_role}"
        )
    return (named_id, named_role), key


def _is_same(known: Holder, key: ec.EllipticCurvePublicKey) -> bool:
    return known.key_digest == public_key_digest(public_bytes(key))


def _check_holder(known: Holder | None, holder: tuple[str, Role], key: ec.EllipticCurvePublicKey) -> None:
    if known is None:
        return
    if not _is_same(known, key):
        raise IdentityError(f"the id {known.id!r} is taken by another key: choose another with --name")
    if known.role != holder[1]:
        raise IdentityError(
            f"the id {known.id!r} belongs to {with_article(known.role)}: choose another with --name"
        )


def _check_token(token: TokenRecord | None, role: Role, now: float, repeated: bool) -> None:
    if token is None:
        found = (
            "this broker does not know the token any more: it was revoked, or created after the backup that"
            " the broker was restored from"
        )
    elif token.role != role:
        found = f"the token is for {with_article(token.role)}, not for {with_article(role)}"
    elif now >= token.expires_at:
        past = now - token.expires_at
        found = (
            f"the token expired {f'{past / 3600:.1f} hours' if past >= 3600 else format_seconds(past)} ago"
        )
    elif token.used >= token.uses and not repeated:
        found = f"the token is used up ({token.used} of {token.uses} uses)"
    else:
        return
    raise IdentityError(f"{found}: create another with farflung token create --role {role}")
