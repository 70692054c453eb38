"""A topology as a picture: workers on cards at their sites, cards on a ring, links coloured by rate.

Each half of a link shows what its end sends: a home with a slow uplink has a thin half on its own side.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import networkx as nx

from farflung.pictures.figure import (
    GREY,
    GROUND,
    INK,
    PALE,
    RED,
    Space,
    extent,
    new_figure,
    plain_text,
    rate_text,
    style,
)
from farflung.plans import Topology, WorkerSpec
from farflung.text import count_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARGIN, HEAD, FOOT = 24.0, 64.0, 58.0
LEAST_WIDTH, GAP = 640.0, 26.0
ROW, PAD = 13.0, 8.0
MOST_DETAILED = 16
"""With more workers, their cards only name them."""
MOST_ROWS = 10
"""Of one column of a card."""
FEW_SITES, MANY_SITES = 9, 24
"""Up to the first, all links are drawn; beyond it the two fastest of each site, beyond the second one."""

_SHARES = (0.5, 0.45, 0.55, 0.4, 0.6, 0.35, 0.65, 0.3, 0.7, 0.25, 0.75, 0.2, 0.8)
"""Where on a link its label may stand."""


class RateClass(NamedTuple):
    """Rates below `below_mbps` that are in no class before."""

    below_mbps: float
    text: str
    colour: str
    width: float


CLASSES = (
    RateClass(5, "below 5", RED, 1.2),
    RateClass(20, "5 to 20", "#f46d43", 1.8),
    RateClass(100, "20 to 100", "#dfae2b", 2.6),
    RateClass(500, "100 to 500", "#6baed6", 3.5),
    RateClass(float("inf"), "500 and more", "#313695", 4.6),
)
NO_LINK = RateClass(0, "no link", GREY, 1.0)


class Card(NamedTuple):
    """A site with its workers (by index), or one worker without a site; its size is in points."""

    name: str
    members: tuple[int, ...]
    title: str
    subtitle: str
    rows: tuple[str, ...]
    columns: int
    width: float
    height: float


class SiteLink(NamedTuple):
    """The link between two cards (by index): medians over their workers, both directions."""

    one: int
    other: int
    there_mbps: float
    back_mbps: float
    latency_ms: float

    @property
    def least_mbps(self) -> float:
        """The rate of the slower direction."""
        return min(self.there_mbps, self.back_mbps)


class Point(NamedTuple):
    """A place in the picture, in points."""

    x: float
    y: float


@style()
def draw_topology(topology: Topology) -> Figure:
    """Draw a topology; names of workers and sites are shown as plain text."""
    cards = list(_cards(topology))
    centres = ring([(card.width, card.height) for card in cards])
    links = links_between(topology, cards)
    drawn = links_to_draw(links, len(cards))
    halves = [(card.width / 2, card.height / 2) for card in cards]
    left = min(c.x - w for c, (w, _) in zip(centres, halves, strict=True))
    right = max(c.x + w for c, (w, _) in zip(centres, halves, strict=True))
    low = min(c.y - h for c, (_, h) in zip(centres, halves, strict=True))
    high = max(c.y + h for c, (_, h) in zip(centres, halves, strict=True))
    width = max(right - left + 2 * MARGIN, LEAST_WIDTH)
    height = high - low + HEAD + FOOT + 2 * MARGIN
    centres = [Point(c.x + (width - left - right) / 2, c.y - low + FOOT + MARGIN) for c in centres]
    axes = _canvas(width, height)
    _draw_links(axes, drawn, centres)
    space = Space()
    for card, centre in zip(cards, centres, strict=True):
        _draw_card(axes, topology, card, centre, space)
    _label_links(axes, drawn, centres, space)
    _draw_head(axes, topology, len(drawn), len(links), width, height)
    _draw_legend(axes, topology, width)
    return axes.get_figure(root=True)  # type: ignore[return-value]


def class_of(mbps: float) -> RateClass:
    """The class of a rate; a rate of 0 is no link."""
    if mbps <= 0:
        return NO_LINK
    return CLASSES[bisect.bisect_right([one.below_mbps for one in CLASSES], mbps)]


def ring(sizes: Sequence[tuple[float, float]]) -> list[Point]:
    """Centres of boxes on an ellipse, clockwise from the left, as close as they fit without touching."""
    if len(sizes) == 1:
        return [Point(0.0, 0.0)]
    arcs = [math.hypot(*size) + GAP for size in sizes]
    turn, turns = math.pi * (1 - (len(sizes) > 2) / len(sizes)), []
    for before, arc in itertools.pairwise([*arcs, arcs[0]]):
        turns.append(turn)
        turn -= math.pi * (before + arc) / sum(arcs)
    radius = 120.0
    while True:
        centres = [Point(1.5 * radius * math.cos(turn), radius * math.sin(turn)) for turn in turns]
        if not _any_touch(centres, sizes):
            return centres
        radius *= 1.08


def _any_touch(centres: Sequence[Point], sizes: Sequence[tuple[float, float]]) -> bool:
    """Whether neighbours on a ring come closer than the gap, which is wider for few boxes."""
    gap = GAP if len(sizes) > FEW_SITES else 3 * GAP
    boxes = list(zip(centres, sizes, strict=True))
    return any(
        abs(a.x - b.x) < (wide + wide2) / 2 + gap and abs(a.y - b.y) < (high + high2) / 2 + gap
        for (a, (wide, high)), (b, (wide2, high2)) in itertools.combinations(boxes, 2)
    )


def links_between(topology: Topology, cards: Sequence[Card]) -> list[SiteLink]:
    """The links of every two cards, slow and long ones first."""
    links = []
    for a, b in itertools.combinations(range(len(cards)), 2):
        pairs = list(itertools.product(cards[a].members, cards[b].members))
        there = statistics.median(topology.bandwidth_mbps[i][j] for i, j in pairs)
        back = statistics.median(topology.bandwidth_mbps[j][i] for i, j in pairs)
        links.append(
            SiteLink(a, b, there, back, statistics.median(topology.latency_ms[i][j] for i, j in pairs))
        )
    return sorted(links, key=lambda link: (link.least_mbps, -link.latency_ms))


def links_to_draw(links: Sequence[SiteLink], count: int) -> list[SiteLink]:
    """All links of few cards; else the fastest links that join all cards, and each card's fastest."""
    if count <= FEW_SITES:
        return list(links)
    graph = nx.Graph()
    for rank, link in enumerate(links):
        if link.least_mbps:
            graph.add_edge(link.one, link.other, rank=rank)
    chosen = {edge["rank"] for *_, edge in nx.maximum_spanning_edges(graph, weight="rank")}
    for card in range(count):
        own = [rank for rank, link in enumerate(links) if card in (link.one, link.other)]
        chosen.update(own[-2 if count <= MANY_SITES else -1 :])
    return [links[rank] for rank in sorted(chosen)]


def _cards(topology: Topology) -> Iterator[Card]:
    members: dict[tuple[str, str], list[int]] = {}
    for index, worker in enumerate(topology.workers):
        members.setdefault((worker.site, "" if worker.site else worker.id), []).append(index)
    axes = _canvas(100, 100)
    for (site, _), indices in members.items():
        yield _card(axes, topology, site, tuple(indices))


def _card(axes: Axes, topology: Topology, site: str, members: tuple[int, ...]) -> Card:
    first = topology.workers[members[0]]
    is_detailed = len(topology.workers) <= MOST_DETAILED
    rows = []
    for worker in (topology.workers[index] for index in members):
        name = plain_text(worker.id, 40)
        rows += [name, *(_details(worker) if is_detailed else ())]
    title = subtitle = ""
    if len(members) > 1:
        title, subtitle = plain_text(site, 32), _inside(topology, members)
    elif site and site != first.id:
        title = plain_text(site, 32)
    columns = math.ceil(len(members) / MOST_ROWS)
    widths = [_width(axes, row, 8.5) + 16 for row in rows]
    width = max(
        columns * max(widths) + 2 * PAD,
        _width(axes, title, 9.5, "bold") + 2 * PAD,
        _width(axes, subtitle, 8) + 2 * PAD,
    )
    lines = math.ceil(len(rows) / columns) + bool(title) + bool(subtitle)
    return Card(site or first.id, members, title, subtitle, tuple(rows), columns, width, lines * ROW + PAD)


def _width(axes: Axes, text: str, size: float, weight: str = "normal") -> float:
    if not text:
        return 0.0
    artist = axes.text(0, 0, text, fontsize=size, fontweight=weight)
    width = extent(artist).width
    artist.remove()
    return float(width)


def _inside(topology: Topology, members: Sequence[int]) -> str:
    """The median link between the workers of a site, in words."""
    links = [topology.link(a, b) for a, b in itertools.permutations(members, 2)]
    mbps = statistics.median(link.bandwidth_mbps for link in links)
    return (
        f"inside {rate_text(mbps)} Mbit/s · {_latency_text(statistics.median(k.latency_ms for k in links))}"
    )


def _latency_text(ms: float) -> str:
    return f"{ms:.1f} ms".replace(".0 ", " ") if ms < 10 else f"{ms:.0f} ms"


def _details(worker: WorkerSpec) -> Iterator[str]:
    yield f"{worker.tflops:.3g} TFLOP/s · {worker.memory_gb:.3g} GB"
    if worker.up_mbps is not None or worker.down_mbps is not None:
        up, down = ("any" if r is None else rate_text(r) for r in (worker.up_mbps, worker.down_mbps))
        yield f"access {up} up · {down} down"


def _canvas(width: float, height: float) -> Axes:
    """Axes over a whole new figure whose unit is a point."""
    axes = new_figure(width, height).add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    return axes


def _draw_links(axes: Axes, links: Sequence[SiteLink], centres: Sequence[Point]) -> None:
    for link in links:
        one, other = centres[link.one], centres[link.other]
        middle = Point((one.x + other.x) / 2, (one.y + other.y) / 2)
        for end, mbps in ((one, link.there_mbps), (other, link.back_mbps)):
            kind = class_of(mbps)
            dashes = "-" if mbps else (0, (2, 4))
            axes.plot(
                [end.x, middle.x], [end.y, middle.y], color=kind.colour, lw=kind.width, ls=dashes, zorder=1
            )


def _draw_card(axes: Axes, topology: Topology, card: Card, centre: Point, space: Space) -> None:
    from matplotlib.patches import FancyBboxPatch
    from matplotlib.transforms import Bbox

    left, top = centre.x - card.width / 2, centre.y + card.height / 2
    axes.add_patch(
        FancyBboxPatch(
            (left, top - card.height), card.width, card.height, boxstyle="round,pad=0,rounding_size=5",
            facecolor=GROUND, edgecolor=PALE, lw=0.8, zorder=2,
        )
    )  # fmt: skip
    space.claim(Bbox.from_bounds(left, top - card.height, card.width, card.height))
    y = top - PAD / 2 - ROW / 2
    for text, size, weight, colour in ((card.title, 9.5, "bold", INK), (card.subtitle, 8, "normal", PALE)):
        if text:
            axes.text(
                centre.x, y, text, ha="center", va="center_baseline", fontsize=size, fontweight=weight,
                color=colour, zorder=4,
            )  # fmt: skip
            y -= ROW
    per_worker = len(card.rows) // len(card.members)
    per_column = math.ceil(len(card.members) / card.columns) * per_worker
    for number, text in enumerate(card.rows):
        column, row = divmod(number, per_column)
        x = left + PAD + column * (card.width - 2 * PAD) / card.columns
        is_name = number % per_worker == 0
        axes.text(
            x + 14, y - row * ROW, text, va="center_baseline", zorder=4,
            fontsize=8.5 if is_name else 8, color=INK if is_name else PALE,
        )  # fmt: skip
        if is_name:
            _draw_dot(axes, topology.workers[card.members[number // per_worker]], x + 5, y - row * ROW)


def _draw_dot(axes: Axes, worker: WorkerSpec, x: float, y: float) -> None:
    face = "white" if worker.behind_nat else INK
    axes.plot([x], [y], marker="o", ms=6.5, mfc=face, mec=INK, mew=1.3, zorder=4, ls="none", label=worker.id)


def _label_links(axes: Axes, links: Sequence[SiteLink], centres: Sequence[Point], space: Space) -> None:
    """Rates and latencies on links, the fastest first, where there is room and few other links cross."""
    from matplotlib.path import Path

    paths = {link: Path([centres[link.one], centres[link.other]]) for link in links}
    for link in reversed(links):
        one, other = centres[link.one], centres[link.other]
        text = axes.text(
            0, 0, _link_text(link, one, other), ha="center", va="center", fontsize=7.5, zorder=3,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.92},
        )  # fmt: skip
        free = []
        for share in _SHARES:
            place = Point(one.x + (other.x - one.x) * share, one.y + (other.y - one.y) * share)
            text.set_position(place)
            box = extent(text).padded(2)
            if space.is_free(box):
                crossing = sum(path.intersects_bbox(box, filled=False) for path in paths.values())
                free.append((crossing, abs(share - 0.5), place, box))
        if not free:
            text.remove()
            continue
        *_, place, box = min(free, key=lambda found: found[:2])
        text.set_position(place)
        space.claim(box)


def _link_text(link: SiteLink, one: Point, other: Point) -> str:
    latency = _latency_text(link.latency_ms)
    if not link.least_mbps and not max(link.there_mbps, link.back_mbps):
        return NO_LINK.text
    rates = [rate_text(mbps) for mbps in (link.there_mbps, link.back_mbps)]
    if (round(one.x), -one.y) > (round(other.x), -other.y):
        rates.reverse()
    return f"{rates[0] if rates[0] == rates[1] else ' | '.join(rates)} · {latency}"


def _draw_head(axes: Axes, topology: Topology, drawn: int, links: int, width: float, height: float) -> None:
    sites = len({worker.site for worker in topology.workers if worker.site})
    count = count_of(len(topology.workers), "worker") + (f" at {count_of(sites, 'site')}" if sites else "")
    name = plain_text(topology.title or topology.name or count)
    lines = textwrap.wrap(name, max(20, int(width / 8)), max_lines=2, placeholder="…")
    axes.text(
        width / 2, height - 12, "\n".join(lines), ha="center", va="top", fontsize=12.5, fontweight="bold"
    )
    shown = "" if drawn == links else f" · the {drawn} fastest of {links} links that join all are drawn"
    axes.text(
        width / 2, height - 16 - 18 * len(lines), f"{count} · links: Mbit/s · ms one way{shown}",
        ha="center", va="top", color=PALE,
    )  # fmt: skip


def _draw_legend(axes: Axes, topology: Topology, width: float) -> None:
    step, y = 104.0, 40.0
    left = (width - step * (len(CLASSES) + 0.6)) / 2
    axes.text(left, y, "Mbit/s", color=PALE, va="center")
    for number, kind in enumerate(CLASSES):
        x = left + 0.55 * step + step * number
        axes.plot([x, x + 26], [y, y], color=kind.colour, lw=kind.width)
        axes.text(x + 32, y, kind.text, va="center")
    signs = "a | b: the left end sends a, the right end b (upper and lower, if vertical)"
    if any(worker.behind_nat for worker in topology.workers):
        signs += "   ○ behind NAT: cannot be dialled"
    axes.text(width / 2, 20, signs, ha="center", va="center", color=PALE)
