"""A topology as a picture: workers as circles at their sites, ways between them as lines by what they carry.

Each half of a line shows what its end sends: a home with a slow uplink is thin on its own side.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from farflung.picture.labels import Labels
from farflung.picture.places import WORKER_RADIUS, Group, Spot, groups
from farflung.picture.rates import CLASSES, class_of, latency_words, rate_words
from farflung.picture.svg import document, element, haloed, text, title
from farflung.picture.ways import Between, between, chosen, inside
from farflung.plans import Topology, WorkerSpec
from farflung.text import count_of

MARGIN = 64.0
HEAD, FOOT = 70.0, 70.0
LABEL_SIZE = 11.0
MOST_INSIDE = 8
MOST_DETAILED = 16
INK, PALE, GROUND = "#22262b", "#6b7280", "#f3f5f7"


def draw_topology(topology: Topology) -> str:
    """The topology as an SVG document."""
    found = groups(topology)
    ways = between(topology, found)
    drawn = chosen(ways, len(found))
    left, top, right, bottom = _bounds(found)
    width, height = max(right - left, 620.0) + 2 * MARGIN, bottom - top + HEAD + FOOT + 2 * MARGIN
    shift = f"translate({(width - left - right) / 2:.1f} {HEAD + MARGIN - top:.1f})"
    labels = Labels([group.spot for group in found])
    lines = [part for way in drawn for part in _line(way, found)]
    sites = [part for group in found for part in _site(topology, group)]
    words = list(_way_labels(drawn, found, labels))
    return document(
        width,
        height,
        [
            *_head(topology, found, len(drawn), len(ways), width),
            element("g", *lines, *sites, *words, transform=shift),
            *_legend(topology, width, height),
        ],
    )


def _bounds(found: Sequence[Group]) -> tuple[float, float, float, float]:
    spots = [group.spot for group in found]
    return (
        min(spot.x - spot.radius for spot in spots),
        min(spot.y - spot.radius for spot in spots),
        max(spot.x + spot.radius for spot in spots),
        max(spot.y + spot.radius for spot in spots),
    )


def _head(topology: Topology, found: Sequence[Group], drawn: int, ways: int, width: float) -> Iterator[str]:
    sites = sum(len(group.members) > 1 or bool(topology.workers[group.members[0]].site) for group in found)
    count = count_of(len(topology.workers), "worker") + (f" at {count_of(sites, 'site')}" if sites else "")
    name = topology.title or topology.name or count
    size = min(18.0, 1.5 * width / len(name))
    yield text(name, width / 2, 34, size, fill=INK, font_weight="600")
    shown = "" if drawn == ways else f"; of {ways} ways the {drawn} fastest that join everybody are drawn"
    yield text(
        f"{count}; lines show Mbit/s, each half what its end sends, and ms one way{shown}",
        width / 2, 56, 12, fill=PALE,
    )  # fmt: skip


def _line(way: Between, found: Sequence[Group]) -> Iterator[str]:
    one, other = found[way.one].spot, found[way.other].spot
    middle = Spot((one.x + other.x) / 2, (one.y + other.y) / 2, 0)
    for end, mbps in ((one, way.there_mbps), (other, way.back_mbps)):
        kind = class_of(mbps)
        dashes = {"stroke_dasharray": "3 5"} if not mbps else {}
        yield element(
            "line", title(_told(way, found)), x1=end.x, y1=end.y, x2=middle.x, y2=middle.y,
            stroke=kind.colour, stroke_width=kind.width, **dashes,
        )  # fmt: skip


def _told(way: Between, found: Sequence[Group]) -> str:
    one, other = found[way.one].name, found[way.other].name
    return (
        f"{one} to {other}: {rate_words(way.there_mbps)} Mbit/s, back {rate_words(way.back_mbps)} Mbit/s,"
        f" {latency_words(way.latency_ms)} one way"
    )


def _way_labels(drawn: Sequence[Between], found: Sequence[Group], labels: Labels) -> Iterator[str]:
    """Words on lines, the fastest first, as far as there is room: the others tell when pointed at."""
    for way in reversed(drawn):
        there, back = rate_words(way.there_mbps), rate_words(way.back_mbps)
        rates = "no way" if not way.both_mbps else there if there == back else f"{there} | {back}"
        words = f"{rates} · {latency_words(way.latency_ms)}"
        if found[way.one].spot.x > found[way.other].spot.x and there != back and way.both_mbps:
            words = f"{back} | {there} · {latency_words(way.latency_ms)}"
        spot = labels.place(words, LABEL_SIZE, found[way.one].spot, found[way.other].spot)
        if spot is not None:
            yield element(
                "rect", x=spot.x - spot.radius, y=spot.y - LABEL_SIZE * 0.6, width=2 * spot.radius,
                height=LABEL_SIZE * 1.25, rx=3, fill="#ffffff", fill_opacity=0.9,
            )  # fmt: skip
            yield text(words, spot.x, spot.y + LABEL_SIZE / 3, LABEL_SIZE, fill=INK)


def _site(topology: Topology, group: Group) -> Iterator[str]:
    is_alone = len(group.members) == 1
    if not is_alone:
        yield from _disc(topology, group)
    for number in group.members:
        yield from _worker(topology.workers[number], group.workers[number], len(topology.workers), is_alone)


def _disc(topology: Topology, group: Group) -> Iterator[str]:
    spot, found = group.spot, inside(topology, group)
    assert found is not None
    mbps, ms = found
    kind = class_of(mbps)
    yield element(
        "circle", title(f"{group.name}: {rate_words(mbps)} Mbit/s, {latency_words(ms)} inside"),
        cx=spot.x, cy=spot.y, r=spot.radius, fill=GROUND, stroke=kind.colour, stroke_width=kind.width / 2,
    )  # fmt: skip
    if len(group.members) <= MOST_INSIDE:
        for a, b in itertools.combinations(group.members, 2):
            yield from _inner_line(topology, a, b, group)
    yield haloed(group.name, spot.x, spot.y - spot.radius - 20, 13, fill=INK, font_weight="600")
    inner = f"inside {rate_words(mbps)} Mbit/s · {latency_words(ms)}"
    yield haloed(inner, spot.x, spot.y - spot.radius - 6, 10.5, fill=PALE)


def _inner_line(topology: Topology, a: int, b: int, group: Group) -> Iterator[str]:
    kind = class_of(min(topology.bandwidth_mbps[a][b], topology.bandwidth_mbps[b][a]))
    one, other = group.workers[a], group.workers[b]
    yield element(
        "line", x1=one.x, y1=one.y, x2=other.x, y2=other.y,
        stroke=kind.colour, stroke_width=kind.width / 2, stroke_opacity=0.5,
    )  # fmt: skip


def _worker(worker: WorkerSpec, spot: Spot, count: int, is_alone: bool) -> Iterator[str]:
    dashes = {"stroke_dasharray": "4 3"} if worker.behind_nat else {}
    yield element(
        "circle", title(_everything(worker)), cx=spot.x, cy=spot.y, r=WORKER_RADIUS,
        fill=INK if not worker.behind_nat else "#ffffff", stroke=INK, stroke_width=2, **dashes,
    )  # fmt: skip
    size, y = (12.0 if is_alone else 10.0), spot.y + WORKER_RADIUS + 12
    yield haloed(_shortened(worker.id, 16 if is_alone else 9), spot.x, y, size, fill=INK)
    if is_alone and count <= MOST_DETAILED:
        for row, words in enumerate(_details(worker), start=1):
            yield haloed(words, spot.x, y + 12 * row, 10, fill=PALE)


def _details(worker: WorkerSpec) -> Iterator[str]:
    yield f"{worker.tflops:.3g} TFLOP/s · {worker.memory_gb:.3g} GB"
    if worker.up_mbps is not None or worker.down_mbps is not None:
        up, down = (
            ("any" if rate is None else rate_words(rate)) for rate in (worker.up_mbps, worker.down_mbps)
        )
        yield f"line {up} up · {down} down"


def _everything(worker: WorkerSpec) -> str:
    nat = ["behind NAT"] if worker.behind_nat else []
    site = [f"site {worker.site}"] if worker.site else []
    return ", ".join([worker.id, *site, *_details(worker), *nat])


def _signs(topology: Topology, width: float, y: float) -> Iterator[str]:
    """What is not said by a colour: whose number is whose, and who is behind NAT."""
    words = "a | b: the end on the left sends a, the one on the right b"
    if not any(worker.behind_nat for worker in topology.workers):
        yield text(words, width / 2, y, 11, fill=PALE)
        return
    left = width / 2 - 293
    yield text(words, left, y, 11, fill=PALE, text_anchor="start")
    yield element(
        "circle", cx=left + 356, cy=y - 4, r=6, fill="#ffffff", stroke=INK, stroke_width=2,
        stroke_dasharray="4 3",
    )  # fmt: skip
    yield text("dashed: behind NAT, nobody can dial it", left + 370, y, 11, fill=PALE, text_anchor="start")


def _shortened(words: str, most: int) -> str:
    return words if len(words) <= most else f"{words[: most - 1]}…"


def _legend(topology: Topology, width: float, height: float) -> Iterator[str]:
    step, y = 118.0, height - 44
    yield from _signs(topology, width, height - 18)
    x = (width - step * (len(CLASSES) + 1)) / 2
    yield text("Mbit/s", x + 20, y + 4, 11, fill=PALE)
    for index, kind in enumerate(CLASSES, start=1):
        start = x + step * index - 40
        yield element(
            "line", x1=start, y1=y, x2=start + 30, y2=y, stroke=kind.colour, stroke_width=kind.width
        )
        yield text(kind.words, start + 36, y + 4, 11, fill=INK, text_anchor="start")
