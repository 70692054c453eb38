"""Live pages, which `broker` and `train --local` serve."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.errors import JobError

if TYPE_CHECKING:
    from farflung.broker.service import Pages

WebOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Serve a live page of the fleet there, such as 127.0.0.1:7701 (needs farflung[web]).",
    ),
]
WebTokenOption = Annotated[
    str,
    typer.Option(
        envvar="FARFLUNG_WEB_TOKEN",
        metavar="T",
        help="Show the page only to those who know T; needed where others reach HOST. T travels unencrypted.",
    ),
]


def pages_at(address: str, token: str) -> Pages:
    """Serves the live page at an address.

    Raises
    ------
    JobError
        What serves it is not installed.
    ConnectionFailed
        The address may not be used so.
    """
    try:
        from farflung.pages.live.server import check_pages, serve_pages
    except ModuleNotFoundError as error:
        missing = f"--web needs {error.name}, which is not installed"
        raise JobError(f"{missing}: pip install 'farflung[web]'") from None
    check_pages(address, token)
    return partial(serve_pages, address, token=token)


def require_pages(address: str, is_local: bool) -> None:
    """Refuse a page that local workers could not have.

    Raises
    ------
    JobError
        The run is not local, or what serves the page is not installed.
    ConnectionFailed
        The port is in use, or others could reach it.
    """
    if not is_local:
        raise JobError("--web is for --local: a broker shows its page by `farflung broker --web HOST:PORT`")
    from farflung.transport.net.addresses import parse_address
    from farflung.transport.net.sockets import require_free

    pages_at(address, "")
    asyncio.run(require_free(*parse_address(address)))
