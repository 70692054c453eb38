"""Certificates as an authority signs them: its own, and those of holders."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from farflung.transport.security.certificates import BACKDATE_SECONDS, LIFETIME_SECONDS
from farflung.transport.security.names import Role, holder_name

_AUTHORITY_YEARS = 10


def sign_authority(key: ec.EllipticCurvePrivateKey, now: float) -> x509.Certificate:
    """The self-signed certificate of a new authority; `now` in Unix seconds."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "farflung broker authority")])
    start = _start(now)
    builder = _builder(name, name, key.public_key(), start, start + timedelta(days=365 * _AUTHORITY_YEARS))
    return (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def cross_sign(
    newest: x509.Certificate,
    old: x509.Certificate,
    old_key: ec.EllipticCurvePrivateKey,
    now: float,
    ends_at: float,
) -> x509.Certificate:
    """The newest authority's certificate by the key of the old one, valid until `ends_at` (Unix seconds).

    Both have the same name, so that it counts as self-issued and the old one's path length of 0 allows it.
    """
    key = newest.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    end = datetime.fromtimestamp(ends_at, UTC)
    issuer = old.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer)
    return (
        _builder(newest.subject, old.subject, key, _start(now), end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(issuer_id, critical=False)
        .sign(old_key, hashes.SHA256())
    )


def sign_holder(
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    holder: tuple[str, Role],
    key: ec.EllipticCurvePublicKey,
    now: float,
    lifetime_seconds: float = LIFETIME_SECONDS,
) -> x509.Certificate:
    """A certificate of (id, role), valid from a day before `now` (Unix seconds) for its lifetime."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, holder[0])])
    end = datetime.fromtimestamp(now + lifetime_seconds, UTC)
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    names = x509.SubjectAlternativeName([x509.DNSName(holder_name(*holder))])
    issuer = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer)
    return (
        _builder(name, authority.subject, key, _start(now), end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(usages, critical=False)
        .add_extension(names, critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(issuer_id, critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder(serial_number=x509.random_serial_number())
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .not_valid_before(start)
        .not_valid_after(end)
    )


def _start(now: float) -> datetime:
    return datetime.fromtimestamp(now - BACKDATE_SECONDS, UTC)


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
