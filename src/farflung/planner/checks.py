"""What every scheduler asks first: whether there can be a plan at all, and if not, what is missing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from farflung.errors import PlanError
from farflung.planner.ties import kept_together
from farflung.workload import Workload

NOTHING_TO_TRAIN = (
    "the loss depends on no trainable parameter: set requires_grad on those that are to be trained"
)


def require_segments(workload: Workload, count: int) -> None:
    """Refuse what cannot be cut into `count` segments of which each owns a parameter.

    Raises
    ------
    PlanError
        There is nothing to train, or there are too few places to cut, with the most segments there can be.
    """
    if not workload.trainable_bytes.any():
        raise PlanError(NOTHING_TO_TRAIN)
    most = most_segments(workload, workload.legal)
    if count > most:
        raise PlanError(
            f"the model can be cut into at most {most} segments, {count} were asked for: "
            "use fewer workers (--workers, --local or --segments)"
        )


def refuse_ties(workload: Workload, count: int) -> PlanError:
    """Why there are no `count` segments if the uses of each parameter must stay on one worker."""
    most = most_segments(workload, kept_together(workload))
    return PlanError(
        f"parameters are used all over the model and their uses must stay on one worker: at most {most} "
        f"workers can share it, {count} were asked for: use fewer workers (--workers, --local or --segments)"
    )


def most_segments(workload: Workload, legal: NDArray[np.bool_]) -> int:
    """Into how many segments a workload can be cut at `legal` positions, each owning a parameter."""
    owned = workload.owned
    most, start = 1, 0
    for position in np.flatnonzero(legal[:-1])[1:]:  # cutting as early as possible leaves most to cut
        if owned[start] < owned[position] < owned[-1]:
            most, start = most + 1, position
    return most
