"""The holder that a connection's certificate names."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from farflung.errors import IdentityError, ProtocolError
from farflung.transport.security.certificates import ALPN
from farflung.transport.security.names import Role, holder_name, parse_holder_name


@dataclass(frozen=True)
class Peer:
    """A holder of a certificate from this broker's authority."""

    id: str
    role: Role

    @property
    def name(self) -> str:
        """The DNS name in its certificate."""
        return holder_name(self.id, self.role)

    def __str__(self) -> str:
        return "the broker" if self.role == "broker" else f"{self.role} {self.id}"


def certified_peer(connection: ssl.SSLSocket) -> Peer | None:
    """The holder that a connection's verified certificate names; None if the other side sent none.

    Raises
    ------
    ProtocolError
        The other side does not speak this protocol (ALPN), or its certificate names no holder.
    """
    found = connection.selected_alpn_protocol()
    if found != ALPN:
        raise ProtocolError(f"expected a peer that speaks {ALPN} (ALPN), found {found or 'none'}")
    certificate = connection.getpeercert()
    if not certificate:
        return None
    names = [value for kind, value in _alternative_names(certificate) if kind == "DNS"]
    if len(names) != 1:
        raise ProtocolError(f"expected a certificate that names one holder, found {len(names)} names")
    try:
        return Peer(*parse_holder_name(names[0]))
    except IdentityError as error:
        raise ProtocolError(str(error)) from None


def require_peer(connection: ssl.SSLSocket, expected: Peer) -> None:
    """Check that the other side is `expected`; ProtocolError if its certificate names another holder."""
    peer = certified_peer(connection)
    if peer != expected:
        raise ProtocolError(f"expected {expected}, found {peer or 'a peer without a certificate'}")


def _alternative_names(certificate: ssl._PeerCertRetDictType) -> tuple[tuple[str, str], ...]:
    return certificate.get("subjectAltName", ())  # type: ignore[return-value]
