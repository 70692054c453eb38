"""What evaluations run if the user does not say how many microbatches they take. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

from farflung.plans.wishes import VALIDATION_SHARE

LEAST, MOST = 8, 64
FORWARD_PASSES = 2
"""A microbatch that is evaluated takes at most one of so many parts of what one of training takes."""
SHORT_STEPS = 80
"""On lines so slow that links are coded, one microbatch took as long as 1.3 coded steps without codecs and as
half a step with them (docs/measurements/lab.md): before and after so many steps, both are 5 % of them."""


class Evaluations(NamedTuple):
    """What a job evaluates: so many `microbatches` (None: all of the validation set).

    It runs before the `first` step, too. On links whose codecs are chosen during the run it runs with them
    and without any (`twice`), or only without (`plain`).
    """

    microbatches: int | None
    first: bool = True
    twice: bool = False
    plain: bool = False


def evaluations_of(
    asked: int | Literal["auto"] | None, steps: int, microbatches: int, every: int | None, tunes_codecs: bool
) -> Evaluations:
    """What a job of so many steps and `microbatches` a step evaluates, if `asked` for so many of validation.

    A short job that `tunes_codecs` is evaluated once: codec tuning goes by its training loss and by samples.
    """
    if asked != "auto":
        return Evaluations(asked, twice=tunes_codecs)
    is_between = every is not None and every < steps
    is_short = tunes_codecs and not is_between and steps < SHORT_STEPS
    first, twice = not is_short, tunes_codecs and not is_short
    times = (-(-steps // min(every or steps, steps)) + first) * (1 + twice)
    affordable = VALIDATION_SHARE * steps * microbatches * FORWARD_PASSES / times
    return Evaluations(max(LEAST, min(MOST, int(affordable))), first, twice, plain=is_short)
