"""Broker, workers and submitters keep the laws in every world, whatever happens to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import HealthCheck, Phase, example, find, given, settings
from hypothesis import strategies as st
from tests.simulation import campaign, planner
from tests.simulation.faults import KINDS, Fault, drawn
from tests.simulation.fleet import Fleet
from tests.simulation.mending_bugs import MENDING_BUGS
from tests.simulation.planting import only
from tests.simulation.recovery_bugs import reads_too_few_shares
from tests.simulation.standby_bugs import hurry
from tests.simulation.test_planted_bugs import forgets_stop, ignores_lost_workers
from tests.simulation.world import REMEMBERED, WIDEST, LawBroken

from farflung.broker.core import facts
from farflung.broker.core.fleet import replanning

pytestmark = pytest.mark.faults

FAULTS = st.builds(
    Fault,
    after=st.integers(0, 150),
    kind=st.sampled_from(KINDS),
    victim=st.integers(0, 11),
    other=st.integers(0, 11),
    seconds=st.integers(0, 200).map(lambda tenths: tenths / 10),
)
SCHEDULES = st.lists(FAULTS, max_size=12)


def suffer(seed: int, schedule: list[Fault]) -> Fleet:
    """A world of this seed that has come to rest after the faults of a schedule."""
    fleet = Fleet(seed, f"suffer({seed}, {schedule})")
    fleet.suffer(iter(schedule), 2000)
    fleet.rest()
    return fleet


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 100), schedule=SCHEDULES)
@example(
    seed=42,
    schedule=[Fault(83, "power", 0, 0, 1.0), Fault(150, "damage", 9, 0, 0.0), Fault(0, "fail", 1, 0, 0.0)],
)
def test_a_fleet_stands_any_schedule_of_faults(seed: int, schedule: list[Fault]) -> None:
    suffer(seed, schedule)


@pytest.mark.full
@pytest.mark.parametrize("events", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_fleets_stand_long_runs(events: int) -> None:
    figures = campaign.run(events, seed=1)
    assert figures.events >= events
    if events < 100_000:
        return
    # Everything that can happen has happened.
    happened = figures.happened
    kinds = {kind.__name__ for kind in facts.Decision.__subclasses__()}
    ends = {"job done", "job failed", "job cancelled", "crash before", "crash after", "copy", "collected"}
    back = {"done after a rollback", "rolled back while loading", "rolled back while running"}
    for what in kinds | set(KINDS) | ends | back | {"refusal", "snapshot", "a copy that was not stored"}:
        rare = what in (
            "refusal",
            "JobEnding",
            "JobReplaying",
            "JobMended",
            "JobRestoring",
            "PlanGivenUp",
            "JobMoves",
            "VersionFailed",
            "WorkerBlamed",
            "WorkerSuspected",
        )  # or needs two faults at a time
        least = 0 if what in ("VersionGivenUp", "JobMoves") else 1 if rare else 5
        assert happened.get(what, 0) >= least, (what, happened)


def shrinking(seed: int) -> Counter[str]:
    """What happens in a world whose workers leave for long, and where none can take another one's place."""
    fleet = Fleet(seed, f"shrinking({seed})")
    fleet.world.alike, fleet.broker.replace_seconds = False, 5.0
    draw = fleet.world.random("faults")
    coming = (drawn(draw, 60, ("lose",)) for _ in count())
    while fleet.world.count < 1500:
        fleet.suffer(coming, 500)
        fleet.rest()
    return fleet.world.laws.counts


@pytest.mark.full
def test_a_fleet_that_shrinks_goes_on_from_its_disks_in_other_cuts() -> None:
    happened = sum((shrinking(seed) for seed in range(20)), Counter[str]())
    assert happened["a version on another cut"] > 1 and happened["done after a rollback"] > 1


def test_a_job_that_reads_too_few_shares_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    reads_too_few_shares(monkeypatch)
    with pytest.raises(LawBroken, match="owns"):
        for seed in range(100):
            shrinking(seed)


def replicated(seed: int) -> Counter[str]:
    """What happens in a world of replicas whose machines are killed and stopped in good order."""
    fleet = Fleet(seed, f"replicated({seed})")
    fleet.world.alike = True
    draw = fleet.world.random("faults")
    coming = (drawn(draw, 60, ("kill", "power", "drain")) for _ in count())
    while fleet.world.count < 800:
        fleet.suffer(coming, 400)
        fleet.rest()
    return fleet.world.laws.counts


@pytest.fixture
def doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each plan on an even number of workers has two replicas."""
    monkeypatch.setattr(planner, "SETS_A_REPLICA", 1)


@pytest.mark.slow
@pytest.mark.usefixtures("doubled")
def test_replicas_keep_their_state_when_members_of_others_are_lost() -> None:
    happened = sum((replicated(seed) for seed in range(12)), Counter[str]())
    assert happened["a replica less"] > 2 and happened["a state given to another replica"] > 0
    assert happened["mended while running"] > 2 and happened["mended while loading"] > 0


@pytest.mark.cases(3)
@pytest.mark.slow
@pytest.mark.usefixtures("doubled")
@pytest.mark.parametrize("plant", MENDING_BUGS)
def test_a_bug_in_how_replicas_go_on_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(LawBroken):
        for seed in range(60):
            replicated(seed)


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any plan pays that seems faster, at any time."""
    for name in ("LEAST_GAIN", "LEAST_PAUSE_SECONDS", "PAUSES", "CONSIDER_SECONDS"):
        monkeypatch.setattr(replanning, name, 0.0)
    monkeypatch.setattr(replanning, "LEAST_STEPS", 1)


@pytest.mark.full
@pytest.mark.usefixtures("restless")
def test_jobs_that_move_again_and_again_lose_no_unit_by_that() -> None:
    happened = sum((campaign.live(seed, 1500)[1] for seed in range(20)), Counter[str]())
    assert happened["JobMoves"] > 2


@pytest.mark.usefixtures("restless")
def test_a_move_that_does_not_wait_for_its_version_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replanning.Replanning, "is_moving", False)
    # An assertion of the broker may find it first: nothing else decides a unit while a job moves.
    with pytest.raises(LawBroken, match=r"a move costs units|broker raised AssertionError"):
        for seed in range(200):
            campaign.live(seed, 1500)


def test_standbys_that_stay_silent_hold_up_no_version_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    only(monkeypatch, "full")
    happened = sum((campaign.live(seed)[1] for seed in range(12)), Counter[str]())
    assert happened["a worker stands by"] > 1 and happened["VersionFailed"] > 1


def test_a_seed_gives_the_same_world_each_time() -> None:
    assert campaign.live(7) == campaign.live(7)
    assert campaign.live(7) != campaign.live(8)


def test_a_broken_law_tells_the_last_events_and_how_to_repeat_them(monkeypatch: pytest.MonkeyPatch) -> None:
    forgets_stop(monkeypatch)
    with pytest.raises(LawBroken) as found:
        campaign.run(20_000, seed=1)
    lines = str(found.value).splitlines()
    assert "not free" in lines[0] or "while it holds" in lines[0]
    assert len(lines) <= REMEMBERED + 4 and max(map(len, lines[:-1])) <= WIDEST + 20
    seed, events = lines[-1].removeprefix("repeat it: python -m tests.simulation --seed ").split(" --events ")
    with pytest.raises(LawBroken) as again:
        campaign.live(int(seed), int(events))
    assert str(again.value) == str(found.value)


@pytest.mark.full
def test_hypothesis_shrinks_a_schedule_to_the_faults_that_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    ignores_lost_workers(monkeypatch)

    def breaks(schedule: list[Fault]) -> bool:
        try:
            suffer(3, schedule)
        except LawBroken:
            return True
        return False

    limited = settings(max_examples=500, phases=[Phase.generate, Phase.shrink], derandomize=True)
    least = find(SCHEDULES, breaks, settings=limited)
    assert len(least) <= 4, least
