"""Certificates for tests and benchmarks: an authority and holders, without a broker."""

from __future__ import annotations

import datetime
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from farflung.transport.security.certificates import (
    certificate_to_pem,
    client_context,
    key_to_pem,
    new_key,
    server_context,
)
from farflung.transport.security.names import Role, holder_name


@dataclass(frozen=True)
class Holder:
    """TLS contexts of one holder."""

    client: ssl.SSLContext
    server: ssl.SSLContext


@dataclass(frozen=True)
class TestAuthority:
    """A self-signed authority whose holders' files lie in `folder`."""

    __test__ = False

    folder: Path
    key: ec.EllipticCurvePrivateKey = field(default_factory=new_key)

    @property
    def certificate(self) -> x509.Certificate:
        """Its own certificate."""
        name = _name("test authority")
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = _builder(name, name, self.key.public_key(), self.key.public_key())
        builder = builder.add_extension(constraints, critical=True).add_extension(usage, critical=True)
        return builder.sign(self.key, hashes.SHA256())

    def files(self, id: str, role: Role) -> tuple[Path, Path, Path]:
        """Issue a certificate for a fresh key: where the authority's, the holder's and the key lie."""
        key = new_key()
        builder = _builder(_name(id), _name("test authority"), key.public_key(), self.key.public_key())
        names = x509.SubjectAlternativeName([x509.DNSName(holder_name(id, role))])
        builder = builder.add_extension(names, critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        certificate = builder.sign(self.key, hashes.SHA256())
        stem = f"{id}.{role}.{certificate.serial_number}"
        authority, shown, secret = (self.folder / name for name in ("ca.pem", f"{stem}.pem", f"{stem}.key"))
        authority.write_bytes(certificate_to_pem(self.certificate))
        shown.write_bytes(certificate_to_pem(certificate))
        secret.write_bytes(key_to_pem(key))
        return authority, shown, secret

    def holder(self, id: str, role: Role, admit_joiners: bool = False) -> Holder:
        """Issue a certificate for a fresh key and give the contexts that show it."""
        authority, shown, secret = self.files(id, role)
        pem = authority.read_bytes()
        return Holder(client_context(pem, shown, secret), server_context(pem, shown, secret, admit_joiners))

    def stranger(self) -> ssl.SSLContext:
        """The context of somebody who knows the authority and holds no certificate."""
        return client_context(certificate_to_pem(self.certificate))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=7))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )
