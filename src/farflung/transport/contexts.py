"""TLS settings: version 1.3 only, strict X.509, no authority but the broker's own."""

from __future__ import annotations

import ssl
from pathlib import Path

ALPN = "farflung/1"


def client_context(
    authority_pem: bytes, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """A dialler's context: the peer must hold a certificate of this authority for the name that is dialled.

    Without `certificate` and `key` the dialler stays a stranger, whom a broker lets join and nothing else.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.hostname_checks_common_name = False
    context.load_verify_locations(cadata=authority_pem.decode("ascii"))
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


def server_context(
    authority_pem: bytes, certificate: Path, key: Path, admit_strangers: bool
) -> ssl.SSLContext:
    """A listener's context: peers show a certificate of this authority, or, if strangers are let in, none."""
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_OPTIONAL if admit_strangers else ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority_pem.decode("ascii"))
    context.load_cert_chain(certificate, key)
    # A resumed session would skip the certificate check, and nobody here resumes.
    context.num_tickets = 0
    return context


def unverified_context() -> ssl.SSLContext:
    """For one thing only: to fetch an authority's certificate, which is then compared with a token's.

    Nothing secret may be sent under this context, and nothing it brings may be believed.
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
