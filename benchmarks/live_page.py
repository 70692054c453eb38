"""What the live page costs a broker's process, and how fast it is for a viewer.

A process serves the page of a fleet that is made up: so many workers and links, and a job whose step changes
each second, so that each second brings a new picture. The status is built anew for each, as a broker does.
Viewers are processes of their own, which read all they get. With `--browser`, one of them is Chromium: how
long until workers, links and map are drawn, and how many frames it paints a second while the map is moved.

    python benchmarks/live_page.py [--workers N] [--links N] [--viewers N] [--seconds S] [--browser] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import NamedTuple, Never

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import positive, whole
from benchmarks.browser import browsing

from farflung.broker.view import FleetView
from farflung.errors import FarflungError
from farflung.pages.live.server import FILES, serve_pages
from farflung.protocol.messages import Status
from farflung.protocol.reachability import LinkReport, LinkStatus
from farflung.protocol.viewer import JobStatus, LinkView, WorkerStatus

ADDRESS = "127.0.0.1:7791"
WARM_UP_SECONDS = 3.0
AS_BROWSERS = "Accept-Encoding: gzip\r\nConnection: close\r\n"
FIRST = [path for path in FILES if path not in ("/api", "/api.js", "/grafana.json")]
"""What a browser loads for the page."""
VIEWER = """
import socket
viewer = socket.create_connection(("127.0.0.1", 7791))
viewer.sendall(b"GET /api/v1/events HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n")
while viewer.recv(1 << 20):
    pass
"""


class Cost(NamedTuple):
    """`core_share` is CPU seconds a second of the serving process; `first_view_bytes` are compressed."""

    workers: int
    links: int
    viewers: int
    seconds: float
    core_share: float
    most_memory_mb: float
    first_view_bytes: int


async def measured(workers: int, links: int, viewers: int, seconds: float) -> Cost:
    """The cost while so many viewers look."""
    steps = count(1)
    serving = asyncio.create_task(serve_pages(ADDRESS, view_of(lambda: fleet(workers, links, next(steps)))))
    await asyncio.sleep(1.0)
    watching = [await asyncio.create_subprocess_exec(sys.executable, "-c", VIEWER) for _ in range(viewers)]
    try:
        await asyncio.sleep(WARM_UP_SECONDS)
        spent, began = time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        share = (time.process_time() - spent) / (time.monotonic() - began)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        return Cost(workers, links, viewers, seconds, share, memory, await first_view())
    finally:
        for one in watching:
            one.kill()
            await one.wait()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def fleet(workers: int, links: int, step: int) -> Status:
    """A status, built anew."""
    names = [f"worker-{number}" for number in range(workers)]
    job = JobStatus("job-1", "gpt", "running", "", step, 10**9, 2.5, 100.0, names[:8])
    link = LinkStatus("worker-1", "direct", "203.0.113.5:7000", "bbr", 4, 12.5, 100.0, 10**9, 10**9)
    views = [
        LinkView(names[n % workers], "job-1", LinkReport(names[(n + 1) % workers], "", 7000, link))
        for n in range(links)
    ]
    shown = [
        WorkerStatus(name, "training", "a device", "site", "203.0.113.5:7000", 0.5, "job-1", 0.0)
        for name in names
    ]
    return Status("0.1.0", float(step), shown, [job], [], {}, views, 100.0)


def view_of(says: Callable[[], Status]) -> FleetView:
    """What a broker lets the page see; nothing is asked here but the status."""

    async def refused(*asked: object) -> Never:
        raise FarflungError("nothing is trained here")

    return FleetView(says, refused, refused, lambda job: [], refused)


class Seen(NamedTuple):
    """What a viewer sees: seconds to the first picture, and frames a second while the map is moved."""

    workers: int
    links: int
    first_view_seconds: float
    frames_per_second: float


MOVING = """
async (seconds) => {
  const map = document.getElementById("map"), began = performance.now();
  let frames = 0;
  while (performance.now() - began < seconds * 1000) {
    map.dispatchEvent(new KeyboardEvent("keydown", { key: frames % 40 < 20 ? "ArrowLeft" : "ArrowRight" }));
    await new Promise(requestAnimationFrame);
    frames += 1;
  }
  return frames / ((performance.now() - began) / 1000);
}
"""


def looked_at(seconds: float) -> tuple[float, float]:
    """Seconds until the first picture is drawn in a new browser, and frames a second while the map moves."""
    with browsing("about:blank", viewport={"width": 1200, "height": 900}) as found:
        began = time.monotonic()
        found.page.goto(f"http://{ADDRESS}/", wait_until="commit")
        found.page.locator("#workers td").first.wait_for()
        found.page.locator("#links td").first.wait_for()
        first = time.monotonic() - began
        frames = found.page.evaluate(MOVING, seconds)
        assert not found.complaints, found.complaints
        return first, frames


async def seen(workers: int, links: int, seconds: float) -> Seen:
    """What Chromium makes of the page."""
    steps = count(1)
    says = view_of(lambda: fleet(workers, links, next(steps)))
    serving = asyncio.create_task(serve_pages(ADDRESS, says))
    await asyncio.sleep(1.0)
    try:
        return Seen(workers, links, *await asyncio.to_thread(looked_at, seconds))
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def first_view() -> int:
    """The bytes of the page's files, compressed."""
    found = 0
    host, _, port = ADDRESS.partition(":")
    for path in FIRST:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{AS_BROWSERS}\r\n".encode())
        found += len((await reader.read()).partition(b"\r\n\r\n")[2])
        writer.close()
    return found


def main() -> None:
    """Measure without viewers and with them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=whole, default=1000)
    parser.add_argument("--links", type=whole, default=5000)
    parser.add_argument("--viewers", type=whole, default=10)
    parser.add_argument("--seconds", type=positive, default=20.0)
    parser.add_argument("--browser", action="store_true", help="see it in Chromium, too")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    sides = (0, asked.viewers)
    found = [asyncio.run(measured(asked.workers, asked.links, side, asked.seconds)) for side in sides]
    view = asyncio.run(seen(asked.workers, asked.links, 5.0)) if asked.browser else None
    if asked.json:
        print(json.dumps([one._asdict() for one in (*found, *([view] if view else []))]))
        return
    for one in found:
        of = f"{one.workers} workers, {one.links} links, {one.viewers} viewers"
        cost = f"{100 * one.core_share:.2f} % of a core, {one.most_memory_mb:.0f} MB"
        print(f"{of}: {cost}; a first view loads {one.first_view_bytes / 1000:.0f} kB")
    if view:
        first, frames = view.first_view_seconds, view.frames_per_second
        print(
            f"in Chromium: all is drawn after {first:.2f} s; {frames:.0f} frames a second while it is moved"
        )


if __name__ == "__main__":
    main()
