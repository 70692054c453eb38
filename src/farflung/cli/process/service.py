"""Run a broker or a worker until a signal or the end of its parent process stops it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from farflung.heap import collect_as_usual

LogJsonOption = Annotated[bool, typer.Option("--json", help="Log JSON lines to standard output.")]
ExitWithParent = Annotated[
    Path | None,
    typer.Option(
        "--exit-with-parent",
        hidden=True,
        help="Exit when standard input closes, and remove this folder if that came unasked.",
    ),
]


def heed_parent(folder: Path | None) -> None:
    """Apply --exit-with-parent. Call it before anything in a command that can take long or fail."""
    if folder is not None:
        from farflung.localhost.parent_watch import stop_with_parent

        stop_with_parent(folder)


_WORDS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(
            {
                "at": record.created,
                "level": record.levelname.lower(),
                "from": record.name,
                "message": record.getMessage(),
            }
        )


def run_service(
    service: Coroutine[None, None, None], as_json: bool, ask: Callable[[], bool] = lambda: False
) -> None:
    """Run `service` until SIGINT (exit code 130) or SIGTERM (exit code 0); its log goes to standard error.

    At the first of them `ask` may ask the service to end by itself (exit code 0), and returns whether it
    does. With `as_json` the log goes to standard output, one JSON object per line.
    """
    _log_to(as_json)
    collect_as_usual()
    received = asyncio.run(_until_signal(service, ask))
    if received is not None:
        logging.getLogger("farflung").info("stopped by %s", _WORDS[received])
    if received == signal.SIGINT:
        raise typer.Exit(130)


def restart_process(reason: str) -> NoReturn:
    """Replace this process by a new one with the same command; this ends its threads and frees its memory."""
    logging.getLogger("farflung").error("%s: restarting", reason)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


async def _until_signal(
    service: Coroutine[None, None, None], ask: Callable[[], bool]
) -> signal.Signals | None:
    task = asyncio.ensure_future(service)
    received: list[signal.Signals] = []
    may_ask = True

    def stop(number: signal.Signals) -> None:
        nonlocal may_ask
        is_first, may_ask = may_ask, False
        if not (is_first and ask()):
            received.append(number)
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not received:
            raise
    return received[0] if received else None


def _log_to(as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stdout if as_json else sys.stderr)
    handler.setFormatter(
        _JsonFormatter() if as_json else logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S")
    )
    log = logging.getLogger("farflung")
    log.addHandler(handler)
    log.propagate = False  # a library may give the root logger a handler, which would print all again
    log.setLevel(logging.INFO)
