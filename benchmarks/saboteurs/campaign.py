"""Run jobs one after the other, each with a saboteur among its workers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import cycle, groupby
from pathlib import Path

import msgspec
from benchmarks.saboteurs.figures import FAILED, STUCK, Kept, Row
from benchmarks.saboteurs.fleet import MEMBERS, SabotagedFleet
from benchmarks.saboteurs.job import job
from benchmarks.saboteurs.kinds import FIRST, IDLE, KINDS, LAST, MIDDLE, Orders

import farflung
from farflung.client.output.history import effective_rows
from farflung.errors import FarflungError

PLACES = (FIRST, MIDDLE, LAST, IDLE)
STUCK_SECONDS = 240.0
END_SECONDS = 30.0


class Case(msgspec.Struct, frozen=True):
    """One job: how much of it is checked, where its saboteur is, and what that does."""

    key: str
    verify: float
    place: str
    steps: int
    orders: Orders


def cases(jobs: int, kinds: Sequence[str], steps: int) -> list[Case]:
    """So many jobs with `verify=1`, of these kinds in turn, each in its places in turn."""
    found, places = list[Case](), {kind: cycle(KINDS[kind]) for kind in kinds}
    for number, kind in zip(range(jobs), cycle(kinds), strict=False):
        first = (number // len(kinds)) % (steps - 1)
        orders, place = Orders(kind, 0 if KINDS[kind] == (IDLE,) else first), next(places[kind])
        found.append(Case(f"all-{steps}-{number}-{kind}", 1.0, place, steps, orders))
    return found


def drawn_cases(jobs: int, verify: float, share: float, steps: int) -> list[Case]:
    """So many jobs with another `verify`, of a saboteur that cheats in a `share` of its intervals."""
    found = []
    for number in range(jobs):
        key, orders = f"{verify:g}-{share:g}-{steps}-{number}", Orders("skipped update", 0, share, number)
        found.append(Case(key, verify, FIRST, steps, orders))
    return found


def run(wanted: Sequence[Case], kept: Kept, folder: Path) -> Iterator[Row]:
    """Run the cases that are not kept, on a fleet for each place; yields all rows."""
    yield from (kept.rows[case.key] for case in wanted if case.key in kept.rows)
    left = sorted((case for case in wanted if case.key not in kept.rows), key=_place)
    for place, here in groupby(left, key=_place):
        yield from _run_at(PLACES[place], list(here), kept, folder / PLACES[place])


def _place(case: Case) -> int:
    return PLACES.index(case.place)


def _run_at(place: str, here: list[Case], kept: Kept, folder: Path) -> Iterator[Row]:
    """Run cases on one fleet, and on a new one after a job that never ended."""
    fleets = 0
    while here:
        with SabotagedFleet(folder / f"fleet-{fleets}", place) as fleet:
            references: dict[int, Outcome] = {}
            is_stuck = False
            while here and not is_stuck:
                case = here.pop(0)
                if case.verify == 1 and case.steps not in references:
                    references[case.steps] = honest(fleet, case.steps, folder / f"reference-{fleets}")
                row = _sabotaged(fleet, case, references.get(case.steps), folder / f"run-{fleets}")
                kept.add(row)
                yield row
                is_stuck = row.state == STUCK
        fleets += 1


class Outcome(msgspec.Struct, frozen=True):
    """How a run ended: its weights' bytes, if any came home, the losses that count, and its members."""

    state: str
    reason: str
    weights: bytes | None
    losses: list[float | None]
    members: list[str]


def honest(fleet: SabotagedFleet, steps: int, folder: Path) -> Outcome:
    """Train on honest workers only, without checks."""
    fleet.order(Orders())
    found = _train(fleet, job(steps, 0.0), folder, on=fleet.honest[:MEMBERS])
    if found.weights is None:
        raise SystemExit(f"saboteurs: an undisturbed run failed: {found.reason}")
    return found


def _sabotaged(fleet: SabotagedFleet, case: Case, reference: Outcome | None, folder: Path) -> Row:
    fleet.order(case.orders)
    begin = time.monotonic()
    found = _train(fleet, job(case.steps, case.verify), folder, workers=MEMBERS)
    seconds = time.monotonic() - begin
    deeds, suspected = fleet.deeds(), dict(fleet.suspected())
    named = suspected.pop(fleet.saboteur, "")
    intervals = deeds.versions if named else deeds.intervals
    fleet.forgive()
    is_right = None
    if found.weights is not None and reference is not None:
        is_right = (found.weights, found.losses) == (reference.weights, reference.losses)
    return Row(
        case.key, case.verify, case.orders.kind, case.place, case.orders.share, case.steps, found.state,
        found.reason, is_right, named, sorted(suspected), found.members, deeds.cheats, deeds.as_checker,
        intervals, round(seconds, 2),
    )  # fmt: skip


def _train(
    fleet: SabotagedFleet,
    what: farflung.Job,
    folder: Path,
    workers: int | None = None,
    on: Sequence[str] | None = None,
) -> Outcome:
    begun = fleet.farflung.train(what, out=folder, workers=workers, on=on, checkpoint_every="never")
    try:
        summary = begun.wait(STUCK_SECONDS, signals=())
        state, reason = summary.state, summary.reason
    except TimeoutError:
        state, reason = STUCK, f"it was not over after {STUCK_SECONDS:g} s"
    except FarflungError as error:
        state, reason = FAILED, str(error)
    finally:
        begun.end_at_once()
        begun.settled(END_SECONDS)
    weights = folder / "model.safetensors"
    rows = effective_rows(folder) if (folder / "metrics.jsonl").exists() else []
    came = weights.read_bytes() if weights.exists() else None
    return Outcome(state, reason, came, [row.loss for row in rows], _first_members(folder))


def _first_members(folder: Path) -> list[str]:
    """The workers of a run's first plan."""
    lines = (folder / "events.jsonl").read_bytes().splitlines()
    planned = [event for line in lines if (event := msgspec.json.decode(line))["event"] == "planned"]
    return list(planned[0]["workers"]) if planned else []
