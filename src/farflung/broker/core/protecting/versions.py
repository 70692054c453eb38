"""When workers copy the state of a job to each other's disks, and which version counts. Pure.

A version is taken right after a step, at most one at a time: the first one after the first step of an
attempt, and the next one as soon as the one before is stable. Between two decisions at least `COSTS` times
the seconds pass that the last version was on its way, which is all but `FREE_SECONDS` of what it took from
its decision until it was stable. So copies are on their way in about a third of the time, however slow lines
and disks are; on home lines steps take about a tenth longer meanwhile. A share's base, which training does
not change, is sent to a disk once: the time that this took does not count. And so many seconds pass that the
disk that gets most of a version is not written at more than `WEAR` bytes a second: disks wear. Only the first
version that goes to a standby waits for neither: without it a share must be sent to a worker that takes over.

After a version that could not be made, `FIRST_RETRY_SECONDS` pass, twice as many after each further one in a
row, up to `RETRY_SECONDS`: most troubles are over soon, a full disk is not. Nor fewer than `COSTS` times as
many, up to these, as the version was on its way. As long as there is no stable one, or a member that is to
leave waits for one, `FIRST_RETRY_SECONDS` pass each time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from farflung.plans import LinkCodec, Plan
from farflung.protocol.copies import Digest, StateVersion
from farflung.schedule import Unit

COSTS = 3.0
FREE_SECONDS = 1.0
"""A small version takes as long without much load on a line: threads take turns, disks sync."""

WEAR = 3.8e6
"""A common disk of 1 TB is sold for 600 TB: written like this without a pause, it lasts for five years."""

RETRY_SECONDS = 300.0
FIRST_RETRY_SECONDS = 10.0


@dataclass(frozen=True)
class Version:
    """One version of a job's state, decided at `at` (seconds since 1970).

    `codecs` are those of the job's links from the next unit on, `step` counts the steps that were applied.
    Once it is stable, `digests` has the SHA-256 of each share's copy, and `holders` the worker that has it
    beside its owner.

    If the job has another plan by now, `names` says which parameters and buffers each share has, and `on`
    which workers may have copies; else both are empty, because the plan says so.
    """

    name: StateVersion
    at: float
    step: int
    codecs: tuple[LinkCodec, ...] = ()
    digests: Mapping[int, Digest] = field(default_factory=dict)
    names: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    on: tuple[str, ...] = ()
    holders: Mapping[int, str] = field(default_factory=dict)

    @property
    def next_unit(self) -> int:
        """The unit at which a job goes on from it."""
        return self.name.unit + 1

    def names_by_share(self, plan: Plan, owned: Sequence[Collection[str]]) -> dict[int, tuple[str, ...]]:
        """The names that each share has; `plan` is the job's, and its segments own `owned`."""
        if self.names:
            return dict(self.names)
        shares = [plan.segments_of(worker) for worker in plan.workers()]
        return {min(share): tuple(name for part in share for name in owned[part]) for share in shares}

    def may_be_on(self, plan: Plan, holders: Mapping[str, str]) -> tuple[str, ...]:
        """The workers that may have copies; `plan` is the job's, with these `holders`."""
        return self.on or tuple(sorted({*plan.workers(), *holders.values(), *self.holders.values()}))


@dataclass(frozen=True)
class Versions:
    """The versions of one job's state: the one under way and the newest stable one, if any.

    No other is taken before `not_before` (seconds since 1970). The stable one `took` so many seconds, not
    counting what it took to send bases with it; that took `base_seconds` when it last was to be done.
    `trouble` says why the last one failed, if anything is wrong. `wanted_from` is not 0 if one is wanted
    that is decided then or later: a member is to leave, or the stable one has lost a copy. Since the stable
    one so many `failures` came in a row.
    """

    under_way: Version | None = None
    stable: Version | None = None
    not_before: float = 0.0
    trouble: str = ""
    took: float = 0.0
    wanted_from: float = 0.0
    base_seconds: float = 0.0
    failures: int = 0

    def takes(self, unit: Unit, now: float, standbys: Collection[str] = ()) -> bool:
        """Whether a version is to be taken right after `unit`, if these standbys hold copies from now on."""
        is_due = now >= self.not_before or (not self.trouble and self._is_first_for(standbys))
        return unit.train and self.under_way is None and is_due

    def _is_first_for(self, standbys: Collection[str]) -> bool:
        """Whether there are standbys, and the stable version lies with none of them."""
        having = () if self.stable is None else self.stable.holders.values()
        return bool(standbys) and not set(standbys) & set(having)

    def wanted(self, now: float) -> Versions:
        """The versions once the next one is wanted soon: a member is to leave, or a copy is lost."""
        return replace(self, not_before=min(self.not_before, now), wanted_from=now)

    def decided(self, version: Version) -> Versions:
        """The versions once this one is under way."""
        return replace(self, under_way=version)

    def with_codecs(self, unit: int, codecs: tuple[LinkCodec, ...]) -> Versions:
        """The versions once it is decided that links use `codecs` from `unit` on."""
        if self.under_way is None or self.under_way.next_unit != unit:
            return self
        return replace(self, under_way=replace(self.under_way, codecs=codecs))

    def became_stable(
        self,
        digests: Mapping[int, Digest],
        written_bytes: int,
        now: float,
        holders: Mapping[int, str] = {},
        base_part: float = 0.0,
    ) -> Versions:
        """The versions once every share of the one under way is on two disks.

        So many bytes of it were written to the disk that got most, without bases. These were `base_part` of
        what came to the disk that got most from others.
        """
        assert self.under_way is not None
        took = max(0.0, now - self.under_way.at)
        base_seconds = took * base_part or self.base_seconds
        took *= 1 - base_part
        pause = max(COSTS * (took - FREE_SECONDS), written_bytes / WEAR)
        stable = replace(self.under_way, digests=digests, holders=holders)
        if stable.at < self.wanted_from:
            return Versions(None, stable, took=took, wanted_from=self.wanted_from, base_seconds=base_seconds)
        return Versions(None, stable, stable.at + pause, took=took, base_seconds=base_seconds)

    def retry_seconds(self, now: float, is_urgent: bool) -> float:
        """The pause if the version under way cannot be made; it `is_urgent` if a member waits for one."""
        if self.stable is None or is_urgent:
            return FIRST_RETRY_SECONDS
        lasted = 0.0 if self.under_way is None else now - self.under_way.at
        pause = max(FIRST_RETRY_SECONDS * 2 ** min(self.failures, 10), COSTS * (lasted - FREE_SECONDS))
        return min(RETRY_SECONDS, pause)

    def failed(self, reason: str, not_before: float) -> Versions:
        """The versions once the one under way cannot be made."""
        failures = self.failures + bool(reason)
        return replace(self, under_way=None, not_before=not_before, trouble=reason, failures=failures)

    def seated(self, codecs: tuple[LinkCodec, ...]) -> Versions:
        """The versions once other workers took places in the plan: `codecs` name these now."""
        return replace(self, stable=self.stable and replace(self.stable, codecs=codecs))

    def without_shares(self, shares: Collection[int], codecs: tuple[LinkCodec, ...]) -> Versions:
        """The versions once only these shares are left of the plan, as pipelines were dropped.

        The stable one has these `codecs`, by the names of those in their places.
        """
        stable = self.stable
        if stable is not None and not stable.names:
            digests = {share: digest for share, digest in stable.digests.items() if share in shares}
            holders = {share: name for share, name in stable.holders.items() if share in shares}
            stable = replace(stable, digests=digests, holders=holders)
        return replace(self, stable=stable and replace(stable, codecs=codecs))

    def recut(
        self, names: Mapping[int, tuple[str, ...]], on: tuple[str, ...], codecs: tuple[LinkCodec, ...]
    ) -> Versions:
        """The versions once the job has another plan, with these codecs, than that of the stable one."""
        assert self.stable is not None
        stable = replace(self.stable, names=names, on=on, codecs=codecs)
        took, wanted, base_seconds = self.took, self.wanted_from, self.base_seconds
        return Versions(None, stable, took=took, wanted_from=wanted, base_seconds=base_seconds)

    def interrupted(self) -> Versions:
        """The versions once the attempt has ended: one under way may never arrive, and the next is due."""
        return replace(self, under_way=None, not_before=0.0)
