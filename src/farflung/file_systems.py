"""File systems behind URLs, through fsspec: S3, Google Cloud Storage, Azure and what else it knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from farflung.errors import StoreUnknown
from farflung.text import first_line

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

OBSTORE = frozenset(("s3", "s3a", "gs", "az", "abfs", "abfss"))
"""Protocols that obstore serves where fsspec's own package for them (s3fs, gcsfs, adlfs) is not installed."""

REQUEST_TIMEOUT = "10 minutes"
"""Of one request. obstore sends twelve parts of 5 MB at once, which share a home's access line: one can take
minutes. With its default of 30 seconds, no part arrived over 1.2 Mbit/s, and the upload failed."""


def credentials_in(url: str) -> str:
    """What a URL has between `://` and `@`, such as `user:password`; empty if there is no password.

    `abfs://container@account/path` has none.
    """
    before, at, _ = url.partition("://")[2].partition("/")[0].rpartition("@")
    return before if at and ":" in before else ""


def without_credentials(url: str) -> str:
    """The URL for messages, without the user and the password in it."""
    secret = credentials_in(url)
    return url.replace(f"{secret}@", "", 1) if secret else url


def file_system(url: str) -> tuple[AbstractFileSystem, str]:
    """The file system of a URL, and the path in it.

    Raises
    ------
    StoreUnknown
        A package is missing, or the URL is of no known protocol.
    """
    protocol, _, path = url.partition("://")
    missing = f"{protocol}:// needs packages that are not installed: pip install 'farflung[remote]'"
    try:
        from fsspec import get_filesystem_class
        from fsspec.core import url_to_fs
    except ImportError:
        raise StoreUnknown(missing) from None
    try:
        get_filesystem_class(protocol)
    except ValueError:
        raise StoreUnknown(
            f"{without_credentials(url)}: there is no file system called {protocol!r}"
        ) from None
    except ImportError as error:
        if protocol not in OBSTORE:
            raise StoreUnknown(f"{protocol}:// needs another package: {first_line(error)}") from None
    else:
        files, root = url_to_fs(url, skip_instance_cache=True)
        return files, str(root)
    try:
        from obstore.fsspec import FsspecStore
    except ImportError:
        raise StoreUnknown(missing) from None
    opened: Callable[..., AbstractFileSystem] = FsspecStore
    options = {"timeout": REQUEST_TIMEOUT, "allow_http": True}  # the user's environment names the address
    return opened(protocol, client_options=options, skip_instance_cache=True), path
