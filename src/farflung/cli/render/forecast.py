"""A forecast as text: which segment runs where, how long a step takes, its bottleneck, and what would help.

`sparkline` draws a model's cut candidates over its depth in one row of a terminal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from farflung.cli.render.plan import spare_words
from farflung.cli.render.tables import WIDTH, bar, columns, paragraph, wrapped
from farflung.text import count_of, format_bytes, format_number, format_rate, format_seconds

if TYPE_CHECKING:
    from farflung.planner.advice.forecast import Expected, Forecast, LinkRow, SegmentRow, WorkerRow


MOST_ROWS = 24
MOST_LINKS = 8


def forecast_lines(found: Forecast, asked: int = 0) -> Iterator[str]:
    """The output of `farflung plan`; `asked` is the number of workers that was requested, 0 for any."""
    pool = len(found.workers) + len(found.left_out)
    used = count_of(pool, "worker") if not found.left_out else f"{len(found.workers)} of {pool} workers"
    microbatches = count_of(found.microbatches, "microbatch", "microbatches")
    used += f" in {found.replicas} replicas of the model" if found.replicas > 1 else ""
    yield from paragraph(
        f"{found.model}: {microbatches} of {found.microbatch_size} on {used}, planned by {found.scheduler}"
    )
    yield ""
    yield from _placement(found.segments, found.workers)
    yield ""
    yield from _links(found.links)
    yield ""
    speed = f"{format_number(found.samples_per_second)} samples/s"
    yield f"  step         {format_seconds(found.step_seconds)}, {speed}, simulated"
    yield from wrapped("bottleneck", found.bottleneck)
    yield from wrapped("lower bound", _bound(found))
    for worker, lacking in found.unable.items():
        yield from wrapped("left out", f"{worker}: {lacking}")
    brief, others = _brief_tasks(found), {*found.unreachable, *found.unable}
    if idle := [worker for worker in found.left_out if worker not in others]:
        yield from wrapped("left out", spare_words(idle, asked, bool(brief)))
    for note in found.notes:
        yield from wrapped("note", note)
    yield from brief
    yield from what_if_lines(found)


def expected_lines(found: Expected) -> Iterator[str]:
    """The output of `farflung simulate`."""
    yield from _placement(found.segments, found.workers)
    yield ""
    yield from _links(found.links)
    yield ""
    yield (
        f"  step         {format_seconds(found.step_seconds)}, simulated:"
        f" {count_of(found.microbatches, 'microbatch', 'microbatches')}, window {found.window}"
    )
    yield from wrapped("bottleneck", found.bottleneck)
    yield from _brief_tasks(found)


def _brief_tasks(found: Forecast | Expected) -> list[str]:
    """A warning if tasks are so short that what is not simulated outweighs what is."""
    from farflung.simulator.simulation import brief_notes

    busy = max((row.busy for row in found.workers), default=0.0)
    notes = brief_notes(busy, found.step_seconds, found.microbatches, len(found.workers))
    return [line for words in notes for line in wrapped("note", words)]


def _placement(segments: Sequence[SegmentRow], workers: Sequence[WorkerRow]) -> Iterator[str]:
    known = {row.worker: row for row in workers}
    with_names = any(row.holds for row in segments)
    with_memory = any(row.memory_bytes is not None for row in workers)
    with_sites = any(row.site not in ("", row.worker) for row in workers)
    headings = ["segment", "worker", *["site"] * with_sites, *["holds"] * with_names, "work", "busy"]
    headings += ["memory"] * with_memory
    right = "><" + "<" * with_sites + "<" * with_names + "><" + ">" * with_memory
    rows, shown = [], set()
    for segment in segments:
        for worker in segment.workers:
            found, again = known[worker], worker in shown
            shown.add(worker)
            row = [str(segment.segment), worker, *[found.site] * with_sites]
            row += [_holds(segment.holds)] * with_names
            row += [f"{segment.work:.0%}", '"' if again else bar(found.busy, 4)]
            row += ['"' if again else _memory(found)] * with_memory
            rows.append(row)
    yield from columns(headings, rows[:MOST_ROWS], right)
    if len(rows) > MOST_ROWS:
        yield f"  ... and {len(rows) - MOST_ROWS} more (--json has all)"


def _links(links: Sequence[LinkRow]) -> Iterator[str]:
    if not links:
        yield "  nothing crosses the network"
        return
    rows = [
        [
            link.name.removeprefix("the link "),
            format_bytes(link.bytes),
            format_rate(link.mbps),
            bar(link.busy),
        ]
        for link in links[:MOST_LINKS]
    ]
    yield from columns(["link", "a step", "rate", "busy"], rows, "<>><")
    if len(links) > MOST_LINKS:
        yield f"  ... and {len(links) - MOST_LINKS} that are less busy (--json has all)"


def what_if_lines(found: Forecast) -> Iterator[str]:
    """The last of these lines, on what would help most; none if that was not asked."""
    if found.what_if is None:
        return
    yield ""
    if not found.what_if:
        yield "No single change that was tried makes a step at least 2 % shorter."
        return
    yield "What would help most:"
    rows = [[f"{row.change:+.0%}", format_seconds(row.step_seconds), row.what] for row in found.what_if]
    yield from columns(["step", "", "change"], rows, ">><")


def _bound(found: Forecast) -> str:
    if found.lower_bound_seconds is None or found.gap is None:
        return f"none: {found.no_bound}"
    if found.gap < 1.005:
        return f"{format_seconds(found.lower_bound_seconds)}: no plan is faster"
    return f"{format_seconds(found.lower_bound_seconds)}: no plan is more than {1 - 1 / found.gap:.0%} faster"


def _holds(names: Sequence[str]) -> str:
    first, last = (_module(name) for name in (names[0], names[-1])) if names else ("", "")
    return first if first == last else f"{first} … {last}"


def _module(name: str) -> str:
    """The block of a parameter: its name up to the first number, or without its last component."""
    words = name.split(".")
    numbered = next((at for at, word in enumerate(words) if word.isdigit()), None)
    return ".".join(words[: numbered + 1] if numbered is not None else words[:-1] or words)


def _memory(row: WorkerRow) -> str:
    if row.memory_bytes is None:
        return ""
    needed, limit = _brief(row.memory_bytes), _brief(row.memory_limit_bytes)
    number, unit = needed.split()
    return f"{number if unit == limit.split()[1] else needed} of {limit}"


def _brief(count: int) -> str:
    """Bytes with two significant digits, or more before the decimal point."""
    number, unit = format_bytes(count).split()
    return f"{float(number):.1f} {unit}" if float(number) < 10 else f"{float(number):.0f} {unit}"


_HEIGHTS = "▁▂▃▄▅▆▇█"
_NO_CUT = "·"


def sparkline(crossing: Sequence[float], legal: Sequence[bool], width: int = WIDTH - 4) -> str:
    """Draw the cheapest legal cut in each stretch of the model's depth; a dot means that there is none.

    Heights are logarithmic in bytes. `crossing` and `legal` have one entry per cut position, n + 1 for n
    nodes.
    """
    count = len(crossing) - 1
    columns = min(width, max(1, count - 1))
    lowest: list[float | None] = []
    for column in range(columns):
        first = 1 + column * (count - 1) // columns
        last = 1 + (column + 1) * (count - 1) // columns
        found = [crossing[at] for at in range(first, last) if legal[at]]
        lowest.append(min(found) if found else None)
    logs = [math.log10(max(value, 1.0)) for value in lowest if value is not None]
    least, most = min(logs, default=0.0), max(logs, default=0.0)
    return "".join(_letter(value, least, most) for value in lowest)


def _letter(value: float | None, least: float, most: float) -> str:
    if value is None:
        return _NO_CUT
    share = (math.log10(max(value, 1.0)) - least) / (most - least) if most > least else 0.0
    return _HEIGHTS[round(share * (len(_HEIGHTS) - 1))]
