"""Which workers jobs use first, by what is held against them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from farflung.broker.core.records import State


def least_suspected(
    state: State, workers: Sequence[str], needed: int, unfit: Collection[str] = ()
) -> list[str]:
    """Those of `workers` to use: all that are not suspected, and others only if too few of these are there.

    Others are used, too, if those that are not suspected are known to be `unfit`.
    """
    trusted = [name for name in workers if name not in state.suspicions]
    if trusted and set(trusted) <= set(unfit):
        return list(workers)
    suspected = [name for name in workers if name in state.suspicions]
    suspected.sort(key=lambda name: (state.suspicions[name].count, name))
    used = {*trusted, *suspected[: max(0, needed - len(trusted))]}
    return [name for name in workers if name in used]
