"""Read byte ranges of files at URLs: over HTTP, from this machine's disk, or through fsspec.

Everything here blocks: call it on a thread.
"""

from __future__ import annotations

import http.client
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from string import punctuation
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urljoin

from farflung.errors import WeightsError
from farflung.text import first_line, printable
from farflung.weights.allowed import (
    PORTS,
    Allowed,
    Prefix,
    addresses,
    public_addresses,
    shown,
    split,
)
from farflung.weights.connections import SILENCE_SECONDS, Pace, connect, stopped

CHUNK_BYTES = 2**20
PART_BYTES = 2**24
ATTEMPTS = 3
"""Requests for the same bytes, if connections break or the server is busy."""

MOST_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_ABSENT = (404, 410)
_BUSY = (408, 429, 500, 502, 503, 504)


def _never() -> bool:
    return False


class Ranges(ABC):
    """The bytes of one file. Methods raise `WeightsError` with one line; call `close` at the end.

    `read` also raises it soon after `is_stopped`, which it calls on its thread, returns True.
    """

    is_stopped: Callable[[], bool] = staticmethod(_never)

    @abstractmethod
    def read(self, offset: int, buffers: Sequence[memoryview]) -> None:
        """Fill `buffers` with the bytes from `offset` on, one after the other."""

    def version(self) -> str:
        """What changes with the file's bytes, such as its ETag; empty if nothing is known that does."""
        return ""

    def close(self) -> None:  # noqa: B027
        """Close connections and files."""


def open_ranges(url: str, allowed: Allowed | None, is_stopped: Callable[[], bool] = _never) -> Ranges:
    """The file at a URL, as far as that is `allowed`; None: the URL is the user's own.

    Raises
    ------
    WeightsError
        The URL is not allowed, or of no known kind.
    """
    parts = split(url)
    prefix = None if allowed is None else allowed.prefix_of(url)
    ranges: Ranges
    if parts.scheme in PORTS:
        ranges = HttpRanges(url, allowed)
    elif parts.scheme == "file":
        ranges = FileRanges(local_path(parts), prefix)
    else:
        ranges = StoreRanges(url)
    ranges.is_stopped = is_stopped
    return ranges


class FileRanges(Ranges):
    """A file of this machine, which must lie below `prefix`, if there is one, links followed."""

    def __init__(self, path: Path, prefix: Prefix | None = None) -> None:
        if prefix is not None and not path.resolve().is_relative_to(Path(unquote(prefix.path)).resolve()):
            raise WeightsError(f"{path} leads out of what `farflung join --base` allows here")
        self._path = path

    def read(self, offset: int, buffers: Sequence[memoryview]) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(offset)
                for part in _parts(buffers):
                    if self.is_stopped():
                        raise stopped(str(self._path))
                    if file.readinto(part) != len(part):
                        raise WeightsError(f"{self._path} is too short")
        except OSError as error:
            raise WeightsError(f"{self._path} cannot be read: {error.strerror}") from None

    def version(self) -> str:
        with suppress(OSError):
            stat = self._path.stat()
            return f"{stat.st_ino}-{stat.st_size}-{stat.st_mtime_ns}"
        return ""


class StoreRanges(Ranges):
    """A file in an object store, through fsspec, with this machine's own credentials."""

    def __init__(self, url: str) -> None:
        from farflung.file_systems import file_system

        self._name = shown(url)
        try:
            self._files, self._path = file_system(url)
        except Exception as error:
            raise WeightsError(f"{self._name} cannot be read: {first_line(error)}") from None

    def read(self, offset: int, buffers: Sequence[memoryview]) -> None:
        for part in _parts(buffers):
            if self.is_stopped():
                raise stopped(self._name)
            try:
                found = self._files.cat_file(self._path, start=offset, end=offset + len(part))
            except Exception as error:  # each store raises its own
                raise WeightsError(f"{self._name} cannot be read: {first_line(error)}") from None
            if len(found) != len(part):
                raise WeightsError(f"{self._name} is too short")
            part[:] = found
            offset += len(part)

    def whole(self, most_bytes: int) -> bytes:
        """The whole file, which has at most so many bytes; empty if there is none."""
        try:
            return bytes(self._files.cat_file(self._path, start=0, end=most_bytes))
        except FileNotFoundError:
            return b""
        except Exception as error:
            raise WeightsError(f"{self._name} cannot be read: {first_line(error)}") from None

    def version(self) -> str:
        with suppress(Exception):
            return str(self._files.ukey(self._path))
        return ""


class HttpRanges(Ranges):
    """A file on a web server that answers requests for ranges.

    A name is looked up once, and the address that was checked is the one that is dialled, so a name that
    means another address a moment later leads nowhere else. Proxies of the environment are not used. A server
    that sends more than it was asked for is cut off, one that sends too slowly is given up (`Pace`).
    """

    def __init__(self, url: str, allowed: Allowed | None) -> None:
        self._name = shown(url)
        self._first, self._url, self._allowed = url, url, allowed
        self._connection: http.client.HTTPConnection | None = None
        self._pace = Pace(self._name, lambda: self.is_stopped())
        self._etag = ""

    def read(self, offset: int, buffers: Sequence[memoryview]) -> None:
        try:
            self._read(offset, buffers)
        except WeightsError:
            self.close()
            raise

    def _read(self, offset: int, buffers: Sequence[memoryview]) -> None:
        left = [buffer for buffer in buffers if len(buffer)]
        self._pace.begin()
        attempt = 0
        while left:
            try:
                before = sum(map(len, left))
                self._read_some(offset + sum(map(len, buffers)) - before, left)
            except _FAILURES as error:
                self.close()
                self._url = self._first  # what it redirects to may be valid for a while only
                attempt = 1 if sum(map(len, left)) < before else attempt + 1
                if attempt >= ATTEMPTS:
                    raise WeightsError(f"{self._name} cannot be read: {_words(error)}") from None

    def whole(self, most_bytes: int) -> bytes:
        """The whole file, which has at most so many bytes; empty if the server says that there is none."""
        self._pace.begin()
        try:
            answer = self._answer("bytes=0-", is_optional=True)
            data = b"" if answer.status in _ABSENT else self._rest(answer, most_bytes + 1)
        except _FAILURES as error:
            raise WeightsError(f"{self._name} cannot be read: {_words(error)}") from None
        finally:
            self.close()
        if len(data) > most_bytes:
            raise WeightsError(f"{self._name} has more than {most_bytes} bytes")
        return data

    def _rest(self, answer: http.client.HTTPResponse, most_bytes: int) -> bytes:
        found, chunk = bytearray(), memoryview(bytearray(CHUNK_BYTES))
        while len(found) < most_bytes and (count := answer.readinto(chunk[: most_bytes - len(found)])):
            self._pace.received(count)
            found += chunk[:count]
        if answer.length and len(found) < most_bytes:
            raise http.client.IncompleteRead(b"")
        return bytes(found)

    def version(self) -> str:
        return "" if self._etag.startswith("W/") else self._etag

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _read_some(self, offset: int, left: list[memoryview]) -> None:
        """Request what is `left` from `offset` on; what has come is taken off the list."""
        total = sum(map(len, left))
        answer = self._answer(f"bytes={offset}-{offset + total - 1}")
        if answer.status == 200 or not (answer.headers.get("Content-Range") or "").startswith(
            f"bytes {offset}-{offset + total - 1}/"
        ):
            self.close()
            raise WeightsError(f"{self._name} cannot be read in parts: its server does not answer ranges")
        self._etag = answer.headers.get("ETag") or ""
        while left:
            count = answer.readinto(left[0][:CHUNK_BYTES])
            if not count:
                raise http.client.IncompleteRead(b"")
            self._pace.received(count)
            left[0] = left[0][count:]
            if not len(left[0]):
                del left[0]
        if not answer.isclosed():  # there is more to come, which a server could send without end
            self.close()

    def _answer(self, wanted: str, is_optional: bool = False) -> http.client.HTTPResponse:
        for _ in range(MOST_REDIRECTS + 1):
            answer = self._request(wanted)
            if answer.status in _REDIRECTS and (location := answer.headers.get("Location")):
                self.close()
                self._url = self._joined(location)
                continue
            if answer.status in (200, 206) or (is_optional and answer.status in _ABSENT):
                return answer
            self.close()
            said = f"the server says {answer.status} {printable(answer.reason)[:60]}"
            if answer.status in _BUSY or self._url != self._first:  # what it led to may have been valid once
                raise _Busy(said)
            raise WeightsError(f"{self._name} cannot be read: {said}")
        raise WeightsError(f"{self._name} redirects more than {MOST_REDIRECTS} times")

    def _joined(self, location: str) -> str:
        """Where a redirect leads. `http.client` decodes headers as Latin-1, whatever their bytes mean."""
        try:
            return urljoin(self._url, quote(location, safe=punctuation, encoding="latin-1"))
        except ValueError:
            raise WeightsError(f"{self._name} redirects to {shown(location)}, which is no URL") from None

    def _request(self, wanted: str) -> http.client.HTTPResponse:
        parts = split(self._url)
        if self._connection is None:
            self._connection = self._connected(parts)
        path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
        path = quote(path, safe=punctuation)  # a URL may have letters that a request may not
        # Without compression: ranges are those of the file's own bytes.
        self._connection.request("GET", path, headers={"Range": wanted, "Accept-Encoding": "identity"})
        return self._connection.getresponse()

    def _connected(self, parts: SplitResult) -> http.client.HTTPConnection:
        host, port = parts.hostname or "", parts.port or PORTS.get(parts.scheme, 0)
        if parts.scheme not in PORTS or not host:
            raise WeightsError(f"{self._name} redirects to {shown(self._url)}, which is no web address")
        prefix: Any = True
        if self._allowed is not None:
            is_first = self._url == self._first
            prefix = (self._allowed.prefix_of if is_first else self._allowed.redirected)(self._url)
        found = addresses(host, port) if prefix is not None else public_addresses(host, port)
        return connect(parts.scheme, host, found, self._pace)


def whole_file(url: str, most_bytes: int) -> bytes:
    """A small file at a URL of the user's own; empty if there is none.

    Raises
    ------
    WeightsError
        The server refuses or cannot be reached, or the file has more than `most_bytes`.
    """
    parts = split(url)
    if parts.scheme in PORTS:
        return HttpRanges(url, None).whole(most_bytes)
    try:
        if parts.scheme == "file":
            path = local_path(parts)
            return path.read_bytes() if path.exists() else b""
        ranges = StoreRanges(url)
        return ranges.whole(most_bytes)
    except OSError as error:
        raise WeightsError(f"{shown(url)} cannot be read: {_words(error)}") from None


class _Busy(Exception):
    """The server asks to come again."""


_FAILURES = (OSError, http.client.HTTPException, ValueError, _Busy)
"""What a connection, or `http.client` on an answer that is none, raises."""


def _parts(buffers: Sequence[memoryview]) -> Iterator[memoryview]:
    """The buffers in parts, between which reading may be stopped."""
    for buffer in buffers:
        for start in range(0, len(buffer), PART_BYTES):
            yield buffer[start : start + PART_BYTES]


def local_path(parts: SplitResult) -> Path:
    """The path of a file URL; WeightsError if it names a host."""
    if parts.netloc not in ("", "localhost"):
        raise WeightsError(
            f"{shown(parts.geturl())} names a host: a file URL has three slashes, file:///models"
        )
    return Path(unquote(parts.path))


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return f"it was silent for {SILENCE_SECONDS:g} s"
    if isinstance(error, http.client.IncompleteRead):
        return "it ends too soon"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return printable(first_line(error))
