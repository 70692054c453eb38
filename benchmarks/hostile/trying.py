"""How attackers try: so many at once, each again and again, whatever the broker says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

from benchmarks.hostile.raw import RawLink, Target

from farflung.errors import FarflungError
from farflung.protocol.messages import Message

PAUSE_SECONDS = 0.01
"""Before an attacker that was refused tries again: it has little CPU, and should not spend it on its loop."""


class LinkRefused(Exception):
    """The broker ended a link, for this reason."""


async def say_all(
    at: Target, link: RawLink, said: Iterable[Message], hear: Callable[[bytes], None] | None
) -> None:
    """Say one message after another, until all are said and the broker has closed the link."""
    listening = asyncio.create_task(link.until_closed(hear))
    try:
        with suppress(OSError):
            for message in said:
                at.tally.tries += 1
                await link.say(message)
                await asyncio.sleep(0)
        raise LinkRefused(await listening)
    finally:
        listening.cancel()


async def use_links(at: Target, most: int, use: Callable[[RawLink, int], Awaitable[None]]) -> None:
    """Use `most` links at once, each again when it has ended."""
    context = at.holder.client_context()

    async def one(number: int) -> None:
        link = await RawLink.open(at, context)
        try:
            await use(link, number)
        except LinkRefused as refused:
            at.tally.refuse(str(refused))
        finally:
            link.abort()

    await together(at, most, one)


async def together(at: Target, most: int, one: Callable[[int], Awaitable[None]]) -> None:
    """Do `most` of these at once, each again and again; one that fails was refused."""

    async def again(number: int) -> None:
        while True:
            at.tally.tries += 1
            try:
                await one(number)
            except (OSError, FarflungError) as error:
                at.tally.refuse(f"{type(error).__name__}: {error}"[:200])
            await asyncio.sleep(PAUSE_SECONDS)

    async with asyncio.TaskGroup() as group:
        for number in range(most):
            group.create_task(again(number))
