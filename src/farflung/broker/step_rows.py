"""From what each worker saw of one step to the step's timeline. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from farflung.protocol.timeline import LINK, RowSpan, StepShown, StepSpan, StepTimeline

TASKS = ("forward", "backward", "accumulate", "update")
UPDATE, SUBMITTER = "update", "submitter"
MOST_SHOWN = 100_000
"""Spans of one step, of all workers: some 8 MB."""
COMPUTING, UPDATING, DECISION, BETWEEN = (
    "computing",
    "updating",
    "waiting for the decision",
    "between tasks",
)


def timeline_of(
    job: str,
    step: int,
    shown: Mapping[str, StepShown],
    away: Mapping[str, float],
    submitter: str,
    silent: Sequence[str] = (),
) -> StepTimeline:
    """The timeline of a step that these workers saw, with at most `MOST_SHOWN` spans.

    Each worker's clock starts when the broker's decision reaches it, `away` seconds after the broker sent it:
    half of a round trip, so links that are slower in one direction shift a worker by half of the difference.
    """
    spans = [
        RowSpan(
            f"{_shown_as(span.peer, submitter)}{LINK}{worker}" if span.peer else worker,
            span.kind,
            span.microbatch,
            span.start + away.get(worker, 0.0),
            span.end + away.get(worker, 0.0),
        )
        for worker, one in shown.items()
        for span in one.spans
    ]
    spans.sort(key=lambda span: LINK in span.row)  # what workers did is worth more than what they got
    seconds = max((one.seconds for one in shown.values()), default=0.0)
    spent = {worker: spent_of(one, submitter) for worker, one in shown.items()}
    cut = sum(one.cut for one in shown.values()) + max(0, len(spans) - MOST_SHOWN)
    return StepTimeline(job, step, seconds, spans[:MOST_SHOWN], spent, list(silent), cut)


def makes_sense(shown: StepShown, peers: Collection[str], seconds: float) -> bool:
    """Whether a worker's answer can be true: of peers that it has, and of no longer than was waited for it.

    It still may be false: nothing is decided by it.
    """
    tasks_are_own = all((span.peer == "") == (span.kind in TASKS) for span in shown.spans)
    peers_are_known = all(not span.peer or span.peer in peers for span in shown.spans)
    return tasks_are_own and peers_are_known and shown.seconds <= seconds


def _shown_as(peer: str, submitter: str) -> str:
    return SUBMITTER if peer == submitter else peer


def spent_of(shown: StepShown, submitter: str = "") -> dict[str, float]:
    """Where the seconds of a worker's step went, by words; they add up to its seconds.

    A gap before a task counts to the last sender whose value arrived in it. A gap in which nothing arrived is
    "between tasks"; that after the last task waits for the decision.
    """
    tasks = sorted((span for span in shown.spans if not span.peer), key=lambda span: span.start)
    arrivals = sorted((span for span in shown.spans if span.peer), key=lambda span: span.end)
    ends = [span.end for span in arrivals]
    spent: defaultdict[str, float] = defaultdict(float)
    now = 0.0
    for task in tasks:
        start = min(max(now, task.start), shown.seconds)
        end = min(max(start, task.end), shown.seconds)
        peer = _last_arrival(arrivals, ends, now, start)
        spent[f"waiting for {_shown_as(peer, submitter)}" if peer else BETWEEN] += start - now
        spent[UPDATING if task.kind == UPDATE else COMPUTING] += end - start
        now = end
    spent[DECISION] += shown.seconds - now
    return {words: seconds for words, seconds in spent.items() if seconds > 0}


def _last_arrival(arrivals: Sequence[StepSpan], ends: Sequence[float], began: float, ended: float) -> str:
    """Who sent the last value that arrived in a gap; empty if none did."""
    before = bisect_right(ends, ended) - 1
    return arrivals[before].peer if before >= 0 and ends[before] >= began else ""
