"""Where `farflung train` trains, as its options say."""

from __future__ import annotations

import pytest

from farflung.client.options.target import parse_target
from farflung.client.output.run_record import RunOptions
from farflung.plans import CodecWishes


@pytest.mark.parametrize(("scheduler", "is_said"), [("auto", False), ("equal-compute", True)])
def test_a_scheduler_that_local_workers_leave_nothing_to_ask_is_told(scheduler: str, is_said: bool) -> None:
    target = parse_target(RunOptions(local=2, scheduler=scheduler), None, CodecWishes())
    assert target.local == 2
    assert any(f"--scheduler {scheduler} is ignored" in line for line in target.notes) == is_said
