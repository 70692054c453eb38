"""Why a connection could not be made or was lost, in words for a user."""

from __future__ import annotations

import errno
import socket
import ssl
from typing import Literal

Cause = Literal["word", "death", "trouble"]
"""Why a link is over: somebody said so for good, the process at the other end hung up without a word (as the
kernel does for one that dies), or the network failed (silence, a time-out), and another link may do better.
"""

GIVEN_UP = "the other end gave the connection up, as nothing came through for a while"
"""Why a connection ended that was closed or reset after a silence: its peer may well live."""

_UNKNOWN_ISSUER = {18, 19, 20, 21}
"""OpenSSL's verdicts on a certificate that may be right, but is of nobody who is trusted here."""

_ALERTS = {
    "CERTIFICATE_REQUIRED": "no certificate was shown, and this port admits only certificate holders",
    "UNKNOWN_CA": "the other side does not trust the authority of this certificate: join its broker",
    "CERTIFICATE_EXPIRED": "the other side found this certificate out of date: check the clock",
    "BAD_CERTIFICATE": "the other side refused this certificate: join its broker",
    "DECRYPT_ERROR": "the other side found this certificate's signature wrong: join its broker",
    "PROTOCOL_VERSION": "the other side does not speak TLS 1.3",
}


def why_never_greeted(error: BaseException | None) -> str:
    """Why a connection was lost between our half of the TLS handshake and the other side's hello.

    In TLS 1.3 the other side judges our certificate only now, and asyncio hangs up without sending its alert.
    """
    if isinstance(error, ssl.SSLError):
        return why_tls(error)
    return (
        "it hung up before it said hello: this port admits only certificate holders of its own authority, "
        "and this certificate may be of another, out of date or missing"
    )


def why_lost(error: BaseException | None, unacknowledged_seconds: float) -> str:
    """Why a connection that stood has ended; None is an end of file without a word."""
    if error is None:
        return "the connection was closed without a word: the process at the other end may have died"
    if isinstance(error, ssl.SSLError):
        return why_tls(error)
    if isinstance(error, OSError) and error.errno == errno.ETIMEDOUT:
        return f"nothing was acknowledged for {unacknowledged_seconds:g} s (TCP user timeout)"
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return "connection reset: the process at the other end may have died"
    return f"the connection failed: {_words(error)}"


def why_over(peer: str, lease_seconds: float, reason: str) -> str:
    """Why a lost connection to `peer`, which ended for `reason`, is not waited for any longer."""
    words = why_silent(peer, lease_seconds)
    return words if reason.startswith(_silence(peer)) else f"{words} ({reason})"


def why_silent(peer: str, seconds: float) -> str:
    """Why a connection to `peer` ended over which nothing came for so many seconds."""
    return f"{_silence(peer)} {seconds:g} s"


def _silence(peer: str) -> str:
    return f"nothing heard from {peer} for"


def cause_of(error: BaseException | None) -> Cause:
    """What kind of end `error` is for a connection that stood; None is an end of file without a word."""
    if error is None or isinstance(error, ConnectionResetError | BrokenPipeError):
        return "death"
    return "word" if isinstance(error, ssl.SSLError) else "trouble"


def end_of(error: BaseException | None, was_silent: bool, unacknowledged_seconds: float) -> tuple[str, Cause]:
    """Why a connection that stood has ended, and its kind; `was_silent`: nothing came of late.

    After a silence it is the kernel of a peer that gave the connection up who hangs up or resets it.
    """
    if cause_of(error) == "death" and was_silent:
        return GIVEN_UP, "trouble"
    return why_lost(error, unacknowledged_seconds), cause_of(error)


def why_unreachable(error: BaseException, address: str, seconds: float) -> str:
    """Why nobody could be reached at `address`."""
    if isinstance(error, socket.gaierror):
        return f"{address}: the name cannot be resolved ({_words(error)}): check the spelling"
    if isinstance(error, ConnectionRefusedError):
        return f"{address} refused the connection: nothing listens there, check the port and that it runs"
    if isinstance(error, ssl.SSLError):
        return f"{address}: {why_tls(error)}"
    if isinstance(error, TimeoutError):
        return f"{address} did not answer within {seconds:g} s: check the address and its firewall"
    if isinstance(error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError):
        return f"{address} hung up: it may not be farflung, or this port admits only certificate holders"
    return f"{address} cannot be reached: {_words(error)}"


def is_of_another_authority(error: BaseException) -> bool:
    """Whether a certificate was refused only for who issued it."""
    return isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _UNKNOWN_ISSUER


def why_tls(error: ssl.SSLError) -> str:
    """What went wrong in TLS: our verdict on their certificate, or theirs on ours."""
    if is_of_another_authority(error):
        return "its certificate was refused: it is a certificate of another authority"
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
