"""Live pages, which `broker` and `train --local` serve."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.errors import ConnectionFailed, JobError

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


WebJobsOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Show only the jobs of this name on the page (repeat for several)."),
]


def pages_at(address: str, token: str, jobs: Sequence[str] = ()) -> Pages:
    """Serves the live page at an address; of these jobs only, if any are named.

    Raises
    ------
    JobError
        What serves it is not installed.
    ConnectionFailed
        The address may not be used so, or its port is in use.
    """
    try:
        from farflung.pages.live.server import check_pages, serve_pages
    except ModuleNotFoundError as error:
        missing = f"--web needs {error.name}, which is not installed"
        raise JobError(f"{missing}: pip install 'farflung[web]'") from None
    check_pages(address, token)
    _require_free(address)
    if not jobs:
        return partial(serve_pages, address, token=token)
    return lambda view: serve_pages(address, view.limited_to(jobs), token)


def require_pages(address: str, is_local: bool) -> None:
    """Refuse a page that local workers could not have.

    Raises
    ------
    JobError
        The run is not local, the address is not, or what serves the page is not installed.
    ConnectionFailed
        The port is in use.
    """
    from farflung.transport.net.addresses import is_loopback, parse_address

    if not is_local:
        raise JobError("--web is for --local: a broker shows its page by `farflung broker --web HOST:PORT`")
    host, port = parse_address(address)
    if not is_loopback(host) or not port:
        raise JobError(
            f"expected an address of this machine and a port, found --web {address}: try 127.0.0.1:7701"
        )
    pages_at(address, "")


def _require_free(address: str) -> None:
    from farflung.transport.net.addresses import parse_address
    from farflung.transport.net.sockets import require_free

    try:
        asyncio.run(require_free(*parse_address(address)))
    except ConnectionFailed as error:
        cause = str(error).partition(":")[0] if "in use" in str(error) else str(error)
        raise ConnectionFailed(f"--web {address}: {cause}; choose another address") from None
