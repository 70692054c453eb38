"""When a run saves checkpoints, as `--checkpoint-every` and `--checkpoint-to` say it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from farflung.client.options.durations import parse_duration
from farflung.errors import JobError

if TYPE_CHECKING:
    from farflung.client.output.run_record import RunOptions
    from farflung.client.run.checkpointing import CheckpointPolicy

END, NEVER = "end", "never"
MOST_STEPS = 10**9

_STEPS = re.compile("[0-9]{1,18}")


def parse_policy(given: str | None) -> CheckpointPolicy:
    """Parse `--checkpoint-every`; raises JobError if it says nothing."""
    from farflung.client.run.checkpointing import CheckpointPolicy

    if given is None or given == END:
        return CheckpointPolicy()
    if given == NEVER:
        return CheckpointPolicy(end=False)
    if _STEPS.fullmatch(given) and 1 <= int(given) <= MOST_STEPS:
        return CheckpointPolicy(steps=int(given))
    if (seconds := parse_duration(given)) is not None:
        return CheckpointPolicy(seconds=seconds)
    raise JobError(
        "--checkpoint-every takes a number of steps, a time of at least 1s such as 30s, 10m or 2h, end or"
        f" never, found {given[:40]!r}"
    )


def checkpoint_policy(options: RunOptions, is_resumed: bool, is_emulated: bool) -> CheckpointPolicy:
    """When a run with these options saves.

    Raises
    ------
    JobError
        The options contradict each other, or ask for checkpoints of emulated devices.
    """
    policy = parse_policy(options.checkpoint_every)
    if is_emulated:
        if is_resumed or options.checkpoint_to or options.checkpoint_every not in (None, NEVER):
            raise JobError(
                "emulated devices have no state to save: leave --checkpoint-every, --checkpoint-to and"
                " --resume out"
            )
        return parse_policy(NEVER)
    if options.checkpoint_to is not None and not policy.saves and not is_resumed:
        raise JobError("--checkpoint-to is given, but --checkpoint-every never saves none: leave one out")
    return policy
