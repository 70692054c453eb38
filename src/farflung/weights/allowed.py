"""From which URLs a worker fetches base weights.

A job names the URLs, and its submitter may be a stranger. So a worker never reads its own files for a
job, and never reaches into its own network, unless its owner names a prefix that says so.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from farflung.errors import WeightsError
from farflung.text import printable

MOST_URL = 2048
NOWHERE = "none"
PORTS = {"https": 443, "http": 80}
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_LEADS_INWARD = (ipaddress.ip_network("::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
"""IPv6 addresses that stand for IPv4 ones: in a form out of use, and in a network's own NAT64."""

log = logging.getLogger("farflung.worker")


class Address(NamedTuple):
    """Where to connect for a URL: an address that was checked, and its port."""

    host: str
    port: int


@dataclass(frozen=True)
class Prefix:
    """A prefix of URLs that a worker's owner allows, with its addresses, whatever they are.

    A URL has it if scheme, host and port are equal, and the path is the prefix's or lies below it.
    """

    scheme: str
    host: str
    port: int | None
    path: str

    @classmethod
    def parse(cls, text: str) -> Prefix:
        """Read a prefix such as `https://huggingface.co/` or `file:///models`.

        Raises
        ------
        WeightsError
            It has no scheme, or names more than a place.
        """
        parts = split(text)
        if parts.query:
            raise WeightsError(f"{shown(text)} has a query: give the beginning of a URL, up to a folder")
        return cls(parts.scheme, parts.hostname or "", _port(parts), parts.path.rstrip("/"))

    def holds(self, parts: SplitResult) -> bool:
        """Whether a URL has this prefix."""
        is_there = (parts.scheme, parts.hostname or "", _port(parts)) == (self.scheme, self.host, self.port)
        return is_there and (parts.path == self.path or parts.path.startswith(f"{self.path}/"))


@dataclass(frozen=True)
class Allowed:
    """The URLs that a worker may fetch from: those with one of `prefixes`; None: any public https URL."""

    prefixes: tuple[Prefix, ...] | None = None

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Allowed:
        """What `farflung join --base` names; WeightsError if a prefix is none."""
        found = list(texts)
        if not found:
            return cls()
        return cls(tuple(Prefix.parse(text) for text in found if text != NOWHERE))

    def prefix_of(self, url: str) -> Prefix | None:
        """The prefix that allows a URL; None if it is allowed as long as its address is public.

        Raises
        ------
        WeightsError
            The URL is not allowed.
        """
        parts = split(url)
        for prefix in self.prefixes or ():
            if prefix.holds(parts):
                return prefix
        if self.prefixes is not None or not _is_plain_https(parts):
            raise WeightsError(f"{shown(url)} is not among the URLs that `farflung join --base` allows here")
        return None

    def redirected(self, url: str) -> Prefix | None:
        """The same for a URL to which an allowed one leads: it may also be any public https URL."""
        parts = split(url)
        for prefix in self.prefixes or ():
            if prefix.holds(parts):
                return prefix
        if not _is_plain_https(parts):
            raise WeightsError(f"a redirect leads to {shown(url)}, which is no public https URL")
        return None


ANYTHING = None
"""In place of `Allowed`: the URLs are the user's own, so any of them will do."""


def split(url: str) -> SplitResult:
    """The parts of a URL, which must mean the same to everyone who reads it.

    Raises
    ------
    WeightsError
        It is no URL, is too long, has a user or password, or a path that leads upwards.
    """
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - it raises ValueError if that is no number
    except ValueError:
        raise WeightsError(f"{shown(url)} is no URL") from None
    is_one = _SCHEME.fullmatch(url.partition("://")[0]) and "://" in url and "\\" not in url
    if not is_one or len(url) > MOST_URL or not url.isprintable() or " " in url or "%00" in url:
        raise WeightsError(f"{shown(url)} is no URL such as https://example.org/model/")
    if (parts.scheme not in PORTS and "::" in url) or parts.fragment:
        raise WeightsError(f"{shown(url)} is more than the URL of a file or folder")
    if parts.username is not None or parts.password is not None:
        raise WeightsError("a URL of weights must not hold a user or password: all workers would see it")
    if {".", ".."} & {unquote(part) for part in unquote(parts.path).split("/")}:
        raise WeightsError(f"the path of {shown(url)} leads upwards")
    return parts


def public_addresses(host: str, port: int) -> list[Address]:
    """The addresses of a host, all of which must be public.

    Raises
    ------
    WeightsError
        The host is unknown, or an address of it is of a private network or of this machine. Which, only the
        log says: the error goes to a stranger, who could learn what names mean in this network.
    """
    found = addresses(host, port)
    name = printable(host)[:100]
    for address in found:
        if not is_public(address.host):
            log.warning("a job's base weights are at %s, which is %s here and not public", name, address.host)
            raise WeightsError(
                f"{name} has an address that is not public: only this worker's owner can allow it"
                " (`farflung join --base`)"
            )
    return found


def addresses(host: str, port: int) -> list[Address]:
    """The addresses of a host; WeightsError if it is unknown."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise WeightsError(f"the host {printable(host)[:100]} is unknown") from None
    return list(dict.fromkeys(Address(str(address[0]), port) for *_, address in found))


def is_public(address: str) -> bool:
    """Whether an IP address is of the public internet, also inside an IPv6 address that stands for it."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if any(found in network for network in _LEADS_INWARD):
            return False
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if inner is None and found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return found.is_global and not found.is_multicast


def shown(url: str) -> str:
    """A URL for messages: without its query, which may hold a secret, and at most 200 characters."""
    text = printable(url.partition("?")[0])
    scheme, separator, rest = text.partition("://")
    if "@" in rest.partition("/")[0]:
        rest = rest.partition("@")[2]
    return f"{scheme}{separator}{rest}"[:200]


def _port(parts: SplitResult) -> int | None:
    return parts.port or PORTS.get(parts.scheme)


def _is_plain_https(parts: SplitResult) -> bool:
    return parts.scheme == "https" and bool(parts.hostname) and _port(parts) == PORTS["https"]
