"""The process of an attacker: attacks from one line of standard input to the next, then says what it tried.

    python -m benchmarks.hostile.attacker NAME ROLE HOST:PORT [IDENTITY FOLDER]

It ends when standard input does, and so with the process that started it.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
from pathlib import Path

import msgspec
from benchmarks.hostile.attacks import ATTACKS
from benchmarks.hostile.raw import Target

from farflung.transport.security.identity import Identity

READY = b"ready\n"
DESCRIPTORS = 4096


async def main(name: str, role: str, address: str, folder: str = "") -> None:
    """Wait for a line, attack until the next one, and print the tally."""
    at = Target(address, Identity.load(Path(folder)) if folder else None)
    sys.stdout.write(READY.decode())
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)
    attacking = asyncio.ensure_future(ATTACKS[name, role](at))
    end = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    await asyncio.wait([attacking, end], return_when=asyncio.FIRST_COMPLETED)
    if attacking.done():
        attacking.result()  # it never ends by itself: this raises why it failed
    print(msgspec.json.encode(at.tally).decode(), flush=True)
    attacking.cancel()
    await asyncio.gather(attacking, return_exceptions=True)


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # each link that the broker cuts is a line
    asyncio.run(main(*sys.argv[1:]))
