"""Keys and X.509 certificates, for the authority and for holders, and the TLS contexts that use them.

TLS settings: version 1.3 only, strict X.509, and no authority but the broker's.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from farflung.errors import IdentityError
from farflung.transport.security.names import Role, holder_name, parse_holder_name

LIFETIME_SECONDS = 24 * 3600
RENEWABLE_SECONDS = 7 * 24 * 3600
"""So long after its end a certificate can still be renewed, by the key that it is for: a machine that was off
comes back without a token."""
BACKDATE_SECONDS = (
    24 * 3600
)  # clocks of home machines are often wrong, and a certificate must be valid at once

Parsed = TypeVar("Parsed")


def new_key() -> ec.EllipticCurvePrivateKey:
    """A fresh P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_to_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The private key as PEM, for a file that only its owner may read."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def key_from_pem(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Read a private key; IdentityError if it is not a P-256 key."""
    key = _parse("private key", lambda: serialization.load_pem_private_key(pem, None))
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError("expected a P-256 private key, found another kind")
    return key


def public_bytes(key: object) -> bytes:
    """A P-256 public key as DER SubjectPublicKeyInfo; IdentityError for any other kind."""
    return _p256(key).public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def certificate_from_pem(pem: bytes) -> x509.Certificate:
    """Read one certificate; IdentityError if that fails."""
    return _parse("certificate", lambda: x509.load_pem_x509_certificate(pem))


def certificates_from_pem(pem: bytes) -> list[x509.Certificate]:
    """Read certificates that follow on each other; IdentityError if one of them is none."""
    return _parse("certificate", lambda: x509.load_pem_x509_certificates(pem)) if pem.strip() else []


def certificates_to_pem(certificates: Iterable[x509.Certificate]) -> bytes:
    """The certificates as PEM, one after the other."""
    return b"".join(map(certificate_to_pem, certificates))


def certificate_to_pem(certificate: x509.Certificate) -> bytes:
    """The certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def fingerprint(certificate: x509.Certificate) -> bytes:
    """SHA-256 of the whole certificate (DER), 32 bytes. Join tokens contain it."""
    return certificate.fingerprint(hashes.SHA256())


def public_key_digest(public_key: bytes) -> bytes:
    """SHA-256 of `public_bytes`, 32 bytes, by which the authority recognises a key."""
    return hashlib.sha256(public_key).digest()


def signing_request(key: ec.EllipticCurvePrivateKey, id: str, role: Role) -> bytes:
    """A certificate request (PEM) for the name `id` in `role`."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, id)])
    name = x509.SubjectAlternativeName([x509.DNSName(holder_name(id, role))])
    builder = (
        x509.CertificateSigningRequestBuilder().subject_name(subject).add_extension(name, critical=False)
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def read_signing_request(pem: bytes) -> tuple[str, Role, ec.EllipticCurvePublicKey]:
    """The holder that a certificate request names, and the P-256 key whose possession it proves.

    Raises
    ------
    IdentityError
        It is not a request, is not signed by its own key, or does not name exactly one holder.
    """
    request = _parse("certificate request", lambda: x509.load_pem_x509_csr(pem))
    key = _p256(_parse("certificate request's key", request.public_key))
    if not _parse("certificate request", lambda: request.is_signature_valid):
        raise IdentityError("the certificate request is not signed by its own key")
    return *read_holder(request), key


def read_holder(document: x509.Certificate | x509.CertificateSigningRequest) -> tuple[str, Role]:
    """The (id, role) that a certificate or request names; IdentityError unless it is exactly one."""
    names: list[x509.GeneralName] = []
    for extension in _parse("certificate", lambda: document.extensions):
        if isinstance(extension.value, x509.SubjectAlternativeName):
            names.extend(extension.value)
    if len(names) != 1 or not isinstance(names[0], x509.DNSName):
        raise IdentityError(f"expected a certificate that names one holder, found {len(names)} names")
    return parse_holder_name(names[0].value)


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the authority's key signed this certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _p256(key: object) -> ec.EllipticCurvePublicKey:
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError("expected a P-256 public key, found another kind")
    return key


def _parse(what: str, read: Callable[[], Parsed]) -> Parsed:
    try:
        return read()
    except Exception as error:  # cryptography raises many exception types for hostile input
        raise IdentityError(f"expected a {what}, found something else ({type(error).__name__})") from None


ALPN = "farflung/1"


def client_context(
    authority_pem: bytes, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """A context for dialling: the peer must hold one of these authorities' certificates for the dialled name.

    Without `certificate` and `key`, the dialling side can only send a join request.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.hostname_checks_common_name = False
    context.load_verify_locations(cadata=authority_pem.decode("ascii"))
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


def server_context(authority_pem: bytes, certificate: Path, key: Path, admit_joiners: bool) -> ssl.SSLContext:
    """A context for listening: peers show a certificate of one of these authorities or, for joiners, none."""
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_OPTIONAL if admit_joiners else ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority_pem.decode("ascii"))
    context.load_cert_chain(certificate, key)
    # A resumed session would skip the certificate check, and farflung never resumes one.
    context.num_tickets = 0
    return context


def unverified_context() -> ssl.SSLContext:
    """A context for one purpose: fetching an authority's certificate, to compare it with a token.

    Send nothing secret under this context, and do not trust what it returns.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols([ALPN])
    return context
