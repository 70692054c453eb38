"""Why a connection could not be made or was lost, explained to users."""

from __future__ import annotations

import errno
import socket
import ssl
from typing import Literal

Cause = Literal["closed", "crashed", "network"]
"""How a link ended.

`closed`: one side closed it for good. `crashed`: the kernel at the other end hung up without a goodbye, as it
does for a process that died. `network`: silence or a time-out; a new link may do better.
"""

GIVEN_UP = "the other end gave the connection up, because nothing arrived for a while"
"""Reason for a connection that was closed or reset after a silence: its peer may well be alive."""

_UNKNOWN_ISSUER = {18, 19, 20, 21}
"""OpenSSL's codes for a certificate whose issuer is not trusted here."""

_ALERTS = {
    "CERTIFICATE_REQUIRED": "you sent no certificate, and this port admits only certificate holders",
    "UNKNOWN_CA": "the other side does not trust the authority of this certificate: join its broker",
    "CERTIFICATE_EXPIRED": "the other side found this certificate out of date: check the clock",
    "BAD_CERTIFICATE": "the other side refused this certificate: join its broker",
    "DECRYPT_ERROR": "the other side found this certificate's signature wrong: join its broker",
    "PROTOCOL_VERSION": "the other side does not speak TLS 1.3",
}


def why_never_greeted(error: BaseException | None) -> str:
    """Why a connection was lost between our half of the TLS handshake and the other side's hello.

    In TLS 1.3 the other side checks our certificate only now, and asyncio hangs up without sending its alert.
    """
    if isinstance(error, ssl.SSLError):
        return why_tls(error)
    return (
        "it hung up before it said hello: this port admits only certificates of its own authority; "
        "yours may be missing, expired or of another authority"
    )


def why_lost(error: BaseException | None, unacknowledged_seconds: float) -> str:
    """Why an established connection ended; None means an end of file without a goodbye."""
    if error is None:
        return "the connection was closed without a goodbye: the process at the other end may have died"
    if isinstance(error, ssl.SSLError):
        return why_tls(error)
    if isinstance(error, OSError) and error.errno == errno.ETIMEDOUT:
        return f"the peer acknowledged nothing for {unacknowledged_seconds:g} s (TCP user timeout)"
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return "connection reset: the process at the other end may have died"
    return f"the connection failed: {_words(error)}"


def why_given_up(peer: str, lease_seconds: float, reason: str) -> str:
    """Why a lost connection to `peer`, which ended for `reason`, is no longer waited for."""
    words = why_silent(peer, lease_seconds)
    return words if reason.startswith(_silence(peer)) else f"{words} ({reason})"


def why_silent(peer: str, seconds: float) -> str:
    """Why a connection to `peer` ended after `seconds` of silence."""
    return f"{_silence(peer)} {seconds:g} s"


def _silence(peer: str) -> str:
    return f"nothing heard from {peer} for"


def cause_of(error: BaseException | None) -> Cause:
    """Classify the end of an established connection; None is an end of file without a goodbye."""
    if error is None or isinstance(error, ConnectionResetError | BrokenPipeError):
        return "crashed"
    return "closed" if isinstance(error, ssl.SSLError) else "network"


def reason_and_cause(
    error: BaseException | None, was_silent: bool, unacknowledged_seconds: float
) -> tuple[str, Cause]:
    """Why an established connection ended, and its cause; `was_silent`: nothing arrived lately.

    A hang-up or reset after a silence comes from the kernel of a live peer that gave the connection up.
    """
    if cause_of(error) == "crashed" and was_silent:
        return GIVEN_UP, "network"
    return why_lost(error, unacknowledged_seconds), cause_of(error)


def why_unreachable(error: BaseException, address: str, seconds: float) -> str:
    """Why nothing could be reached at `address`."""
    if isinstance(error, socket.gaierror):
        return f"{address}: cannot resolve the name ({_words(error)}): check the spelling"
    if isinstance(error, ConnectionRefusedError):
        return f"{address} refused the connection: check the port, and that a broker or worker runs there"
    if isinstance(error, ssl.SSLError):
        return f"{address}: {why_tls(error)}"
    if isinstance(error, TimeoutError):
        return f"{address} did not answer within {seconds:g} s: check the address and the firewall there"
    if isinstance(error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError):
        return f"{address} hung up: it may not be farflung, or this port admits only certificate holders"
    return f"{address} cannot be reached: {_words(error)}"


def is_of_another_authority(error: BaseException) -> bool:
    """Whether a certificate was refused only because of its issuer."""
    return isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _UNKNOWN_ISSUER


def why_tls(error: ssl.SSLError) -> str:
    """What went wrong in TLS: we refused their certificate, or they refused ours."""
    if is_of_another_authority(error):
        return "its certificate was refused: another authority issued it"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate was refused: {error.verify_message}"
    reason = error.reason or "unknown reason"
    for alert, words in _ALERTS.items():
        if reason.endswith(alert):
            return words
    return f"TLS failed: {reason.lower().replace('_', ' ')}"


def _words(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) else None
    return text or str(error) or type(error).__name__
