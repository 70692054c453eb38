"""`--checkpoint-every` and what contradicts it."""

from __future__ import annotations

import pytest

from farflung.client.options.checkpoints import checkpoint_policy, parse_policy
from farflung.client.output.run_record import RunOptions
from farflung.client.run.checkpointing import CheckpointPolicy
from farflung.errors import JobError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, CheckpointPolicy()),
        ("end", CheckpointPolicy()),
        ("never", CheckpointPolicy(end=False)),
        ("50", CheckpointPolicy(steps=50)),
        ("30s", CheckpointPolicy(seconds=30.0)),
        ("1.5m", CheckpointPolicy(seconds=90.0)),
        ("2h", CheckpointPolicy(seconds=7200.0)),
        ("1d", CheckpointPolicy(seconds=86_400.0)),
    ],
)
def test_when_checkpoints_are_saved(given: str | None, expected: CheckpointPolicy) -> None:
    assert parse_policy(given) == expected
    assert expected.saves is (given != "never")


@pytest.mark.parametrize(
    "given",
    [
        "",
        "0",
        "-5",
        "1.5",
        "0s",
        "0.5s",
        "m",
        "10 m",
        "10w",
        "1e3s",
        "END",
        "often",
        "9" * 30,
        "99999h",
        "٣",
        "nan",
        "2m\n",
    ],
)
def test_what_says_nothing_is_one_line(given: str) -> None:
    with pytest.raises(
        JobError, match="--checkpoint-every takes a number of steps, a time of at least 1s"
    ) as caught:
        parse_policy(given)
    assert "\n" not in str(caught.value)


def test_emulated_devices_have_nothing_to_save() -> None:
    for options in (RunOptions(), RunOptions(checkpoint_every="never")):
        assert not checkpoint_policy(options, False, is_emulated=True).saves
    for options in (RunOptions(checkpoint_every="end"), RunOptions(checkpoint_to="x")):
        with pytest.raises(JobError, match="emulated devices have no state to save"):
            checkpoint_policy(options, False, is_emulated=True)
    with pytest.raises(JobError, match="emulated devices have no state to save"):
        checkpoint_policy(RunOptions(), True, is_emulated=True)


def test_a_place_for_no_checkpoints_is_refused() -> None:
    options = RunOptions(checkpoint_every="never", checkpoint_to="x")
    with pytest.raises(JobError, match="leave one out"):
        checkpoint_policy(options, False, False)
    assert not checkpoint_policy(options, True, False).saves
