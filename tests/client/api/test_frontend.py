"""What a Python program hears of what happens around its runs."""

from __future__ import annotations

import logging

import pytest
from tests.localhost.jobs import job

from farflung.client.api.frontend import Frontend
from farflung.client.beginning.capturing import capture_model
from farflung.client.options.target import parse_target
from farflung.client.output.run_record import RunOptions
from farflung.plans import CodecWishes


def test_each_stage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    target = parse_target(RunOptions(local=2), None, CodecWishes())
    with caplog.at_level(logging.INFO, "farflung"):
        capture_model(job(), target, Frontend())
    said = [record.message for record in caplog.records if record.name == "farflung"]
    assert said[0] == "capturing the model" and said[1].startswith("comparing ")
    assert len(said) == len(set(said))
