"""A holder's identity: a key that never leaves its folder, and the broker's certificate for it."""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from farflung.errors import IdentityError
from farflung.files import write_atomically
from farflung.transport.net.addresses import parse_addresses
from farflung.transport.security import certificates
from farflung.transport.security.certificates import (
    BACKDATE_SECONDS,
    certificate_from_pem,
    certificates_from_pem,
    certificates_to_pem,
    is_issued_by,
    key_from_pem,
    key_to_pem,
    new_key,
    public_bytes,
    read_holder,
    signing_request,
)
from farflung.transport.security.names import BROKER_ID, Role, check_id, holder_name

KEY_FILE = "key.pem"
CERTIFICATE_FILE = "certificate.pem"
AUTHORITY_FILE = "authority.pem"
RECORD_FILE = "identity.json"

BROKER_NAME = holder_name(BROKER_ID, "broker")


class Record(msgspec.Struct, frozen=True):
    """`identity.json`: what the folder contains, for people and for the next start."""

    id: str
    role: Role
    broker: str


@dataclass(frozen=True)
class Identity:
    """One holder: `certificate` names `id` and `role`.

    `broker` is HOST:PORT, or several of them with commas between; "" for a broker itself.
    """

    folder: Path
    id: str
    role: Role
    broker: str
    certificate: x509.Certificate

    @classmethod
    def load(cls, folder: Path, ended_too: bool = False) -> Identity:
        """Read an identity folder and check that its parts belong together.

        Raises
        ------
        IdentityError
            There is no identity, a part is missing or does not match, others may read the key, or the
            certificate has expired, unless such ones are wanted, too (`ended_too`); the message says what to
            do.
        """
        record = _read_record(folder)
        key = read_key(folder)
        certificate = _read_certificate(folder)
        identity = cls(folder, check_id(record.id), record.role, record.broker, certificate)
        _check_parts(identity, key, _read(folder, AUTHORITY_FILE))
        if not ended_too:
            identity.require_valid()
        return identity

    @classmethod
    def write(cls, folder: Path, certificate_pem: bytes, authority_pem: bytes, broker: str) -> Identity:
        """Store a certificate for the key in `folder` (see `key_in`); the record is written last."""
        certificate = certificate_from_pem(certificate_pem)
        id, role = read_holder(certificate)
        identity = cls(folder, id, role, broker, certificate)
        _check_parts(identity, read_key(folder), authority_pem)
        record = msgspec.json.format(msgspec.json.encode(Record(id, role, broker)))
        _keep(folder / AUTHORITY_FILE, authority_pem)
        _keep(folder / CERTIFICATE_FILE, certificate_pem)
        _keep(folder / RECORD_FILE, record + b"\n")
        return identity

    @property
    def broker_addresses(self) -> list[str]:
        """Each HOST:PORT at which its broker may answer."""
        return parse_addresses(self.broker)

    def joined_at(self) -> str:
        """HOST:PORT of the broker that issued it; `broker` may have been changed since."""
        return _read_record(self.folder).broker

    @property
    def expires_at(self) -> float:
        """When the certificate expires, in Unix seconds."""
        return self.certificate.not_valid_after_utc.timestamp()

    @property
    def has_ended(self) -> bool:
        """Whether the certificate has expired."""
        return time.time() >= self.expires_at

    def authority(self) -> bytes:
        """The certificates (PEM) of the authorities that it trusts, newest first; one of them issued it."""
        return _read(self.folder, AUTHORITY_FILE)

    def require_valid(self) -> None:
        """IdentityError if the certificate has expired; the message says what to do."""
        if self.has_ended:
            raise IdentityError(
                f"the certificate of {self.id} expired at "
                f"{self.certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: run farflung token create"
                f" --role {self.role} on the broker and join again with that token"
            )

    @property
    def renewal_due_at(self) -> float:
        """When half of the certificate's lifetime is over, in Unix seconds."""
        issued_at = self.certificate.not_valid_before_utc.timestamp() + BACKDATE_SECONDS
        return (issued_at + self.expires_at) / 2

    @property
    def lifetime_seconds(self) -> float:
        """From the certificate's issue to its end."""
        return 2 * (self.expires_at - self.renewal_due_at)

    def needs_renewal(self, now: float) -> bool:
        """Whether half of the certificate's lifetime is over at `now` (Unix seconds)."""
        return now >= self.renewal_due_at

    def client_context(self) -> ssl.SSLContext:
        """The TLS context for dialling other holders of the same broker."""
        authority = _read(self.folder, AUTHORITY_FILE)
        return certificates.client_context(authority, self.folder / CERTIFICATE_FILE, self.folder / KEY_FILE)

    def server_context(self, admit_joiners: bool) -> ssl.SSLContext:
        """The TLS context for listening; only a broker's port admits joiners."""
        authority = _read(self.folder, AUTHORITY_FILE)
        certificate, key = self.folder / CERTIFICATE_FILE, self.folder / KEY_FILE
        return certificates.server_context(authority, certificate, key, admit_joiners)

    def present_in(self, context: ssl.SSLContext) -> None:
        """Use this certificate for new connections of an existing context, after a renewal.

        The context trusts new authorities too from now on; old ones it goes on to trust.
        """
        context.load_verify_locations(cadata=self.authority().decode("ascii"))
        context.load_cert_chain(self.folder / CERTIFICATE_FILE, self.folder / KEY_FILE)

    def renewal_request(self) -> bytes:
        """A certificate request (PEM) for the same key, id and role."""
        return signing_request(read_key(self.folder), self.id, self.role)

    def renewed(self, certificate_pem: bytes, authorities_pem: bytes = b"") -> Identity:
        """Store the answer to a renewal request; IdentityError if it is not for this key, id and role.

        From now on these authorities are trusted, if any are named.
        """
        fresh = replace(self, certificate=certificate_from_pem(certificate_pem))
        known = self.authority()
        trusted = authorities_pem or known
        _check_parts(fresh, read_key(self.folder), trusted)
        chain = certificates_to_pem(certificates_from_pem(certificate_pem))
        files = [(AUTHORITY_FILE, trusted), (CERTIFICATE_FILE, chain)]
        if not is_issued_by_any(self.certificate, trusted):
            files.reverse()  # so that the two fit each other also after a kill in between
        for name, content in files:
            if content != _read(self.folder, name):
                _keep(self.folder / name, content)
        return fresh


def is_issued_by_any(certificate: x509.Certificate, authorities_pem: bytes) -> bool:
    """Whether one of the authorities (PEM) has issued a certificate."""
    return any(is_issued_by(certificate, one) for one in certificates_from_pem(authorities_pem))


def key_in(folder: Path) -> ec.EllipticCurvePrivateKey:
    """The key in `folder`; the first call makes both, readable by their owner only."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise IdentityError(
            f"{folder} cannot hold an identity ({error.strerror}): choose another --folder"
        ) from None
    if not (folder / KEY_FILE).exists():
        _keep(folder / KEY_FILE, key_to_pem(new_key()), mode=0o600)
    return read_key(folder)


def read_key(folder: Path, name: str = KEY_FILE) -> ec.EllipticCurvePrivateKey:
    """Read a private key; IdentityError if there is none or others may read it."""
    return key_from_pem(read_private(folder / name))


def read_private(path: Path) -> bytes:
    """The bytes of a file with a private key; IdentityError if it cannot be read, or others may read it."""
    pem = _read(path.parent, path.name)
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise IdentityError(f"others may read the private key {path} (mode {mode:04o}): run chmod 600 {path}")
    return pem


def _keep(path: Path, data: bytes, mode: int = 0o644) -> None:
    try:
        write_atomically(path, data, mode)
    except OSError as error:
        raise IdentityError(
            f"{path} cannot be written ({error.strerror}): check the disk and permissions, then try again"
        ) from None


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError:
        raise IdentityError(
            f"there is no identity in {folder} ({name} is missing): the first time, add --token with what"
            " `farflung token create` prints on the broker's machine"
        ) from None
    except OSError as error:
        raise IdentityError(f"{folder / name} cannot be read: {error.strerror}") from None


def _read_record(folder: Path) -> Record:
    data = _read(folder, RECORD_FILE)
    try:
        return msgspec.json.decode(data, type=Record)
    except (msgspec.DecodeError, ValueError) as error:
        raise IdentityError(f"{folder / RECORD_FILE} is damaged ({error}): join again with --token") from None


def _read_certificate(folder: Path) -> x509.Certificate:
    pem = _read(folder, CERTIFICATE_FILE)
    try:
        return certificate_from_pem(pem)
    except IdentityError:
        raise IdentityError(f"{folder / CERTIFICATE_FILE} is damaged: join again with --token") from None


def _check_parts(identity: Identity, key: ec.EllipticCurvePrivateKey, authority_pem: bytes) -> None:
    certificate = identity.certificate
    if not is_issued_by_any(certificate, authority_pem):
        found = "was not issued by the authority in its folder"
    elif public_bytes(certificate.public_key()) != public_bytes(key.public_key()):
        found = "is for another key"
    elif read_holder(certificate) != (identity.id, identity.role):
        found = f"names {'.'.join(read_holder(certificate))}, not {identity.id}.{identity.role}"
    else:
        return
    raise IdentityError(f"the certificate for {identity.folder} {found}: join again with --token")
