"""What a run of hostile attackers found."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

import msgspec

LEAST_SPEED_KEPT = 0.9
MOST_BROKER_MB = 256.0
MOST_JOIN_SECONDS = 10.0


class Pace(msgspec.Struct, frozen=True):
    """How a job trained for a while: `speed` goes by the median time of a step, `mean_speed` by all, both in
    steps per second. `broker_cores` is what the broker used of the processors.
    """

    speed: float
    mean_speed: float
    broker_cores: float

    @classmethod
    def of(cls, ends: Sequence[float], broker_cores: float) -> Pace:
        """The pace of steps that ended at these moments, of which the first one counts for nothing else."""
        took = [later - earlier for earlier, later in itertools.pairwise(ends)]
        if not took:
            return cls(0.0, 0.0, broker_cores)
        return cls(1 / statistics.median(took), len(took) / sum(took), broker_cores)


class Window(msgspec.Struct, frozen=True):
    """The pace while an attack went on, and just before and after it."""

    before: Pace
    attacked: Pace
    after: Pace

    @property
    def kept(self) -> float:
        """The share of its speed that training kept; 0 where it stood still without an attack, too."""
        return _share(self.attacked.speed, self.before.speed, self.after.speed)

    @property
    def mean_kept(self) -> float:
        """The same of its mean speed."""
        return _share(self.attacked.mean_speed, self.before.mean_speed, self.after.mean_speed)


class Attacked(msgspec.Struct, frozen=True):
    """One attack: whether the fleet `held`, and by which figures.

    `speed_kept` is the median of the windows' shares, `mean_speed_kept` that of the shares of mean speeds,
    which a few slow steps change, too. `broker_mb` is the most memory that the broker process
    had at any time, `disk_mb` by how much its folder grew, `broker_cores` the median of the processors that
    it used in attacked windows, and `broker_calm_cores` in the others. `honest_failed`: a job of the honest
    submitter ended badly, or its attempt did. `join_seconds` is the longest time that a newcomer took from
    its token to its registration, `second_job_seconds` how long a small honest job took that was submitted
    under attack (None: that was not tried). `tries` and `refused` count what the attacker did, `reasons` say
    why.
    """

    name: str
    role: str
    held: bool
    speed_kept: float
    mean_speed_kept: float
    broker_mb: float
    honest_failed: bool
    join_seconds: float
    second_job_seconds: float | None
    disk_mb: float
    broker_cores: float
    broker_calm_cores: float
    tries: int
    refused: int
    reasons: dict[str, int]
    windows: list[Window]


class Result(msgspec.Struct, frozen=True):
    """One run. `cap` says how attackers were held to `cpu` cores; `load` is over 15 min at the end."""

    ok: bool
    cap: str
    cpu: float
    job: str
    window_seconds: float
    load: float
    attacks: list[Attacked]


def holds(speed_kept: float, broker_mb: float, honest_failed: bool, join_seconds: float) -> bool:
    """Whether a fleet that is attacked is still one that can be used."""
    is_slow = speed_kept < LEAST_SPEED_KEPT or join_seconds > MOST_JOIN_SECONDS
    return not (is_slow or honest_failed or broker_mb >= MOST_BROKER_MB)


def line(row: Attacked) -> str:
    """One attack for people."""
    kept = " ".join(f"{window.kept:.2f}" for window in row.windows)
    second = "" if row.second_job_seconds is None else f", second job {row.second_job_seconds:.1f} s"
    held = "held" if row.held else "NOT held"
    return (
        f"{row.name + ', ' + row.role:32} {held:8} speed kept {row.speed_kept:.2f} ({kept}),"
        f" mean {row.mean_speed_kept:.2f},"
        f" broker {row.broker_mb:.0f} MB, {row.broker_calm_cores:.2f} to {row.broker_cores:.2f} cores,"
        f" disk +{row.disk_mb:.0f} MB, honest failed: {row.honest_failed},"
        f" join {row.join_seconds:.2f} s{second}; {row.tries:,} tries, {row.refused:,} refused"
    )


def _share(attacked: float, before: float, after: float) -> float:
    calm = (before + after) / 2
    return attacked / calm if calm else 0.0
