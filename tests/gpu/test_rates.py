"""A device says how fast it is in each precision, and which it lacks."""

from __future__ import annotations

import msgspec
import pytest
from tests.gpu import measuring
from tests.gpu.conftest import Ask

from farflung.plans import Rates

pytestmark = pytest.mark.slow


def test_float32_is_measured_without_tf32_and_what_the_device_has_beside_it(there: Ask) -> None:
    seen = there(measuring.measured, True)
    assert seen.tflops > 0 and seen.alone and not any(seen.alone)
    assert all(seen.others)
    assert all(rate > 0 for rate in msgspec.structs.astuple(seen.rates))


def test_a_unit_takes_as_long_as_its_events_say(there: Ask) -> None:
    tasks, reported, kinds = there(measuring.a_unit)
    assert tasks > 1 and reported == tasks * measuring.TASK_SECONDS
    assert kinds[0] == "update" and len(kinds) == 1 + tasks


def test_tf32_is_absent_where_the_device_has_none(there: Ask) -> None:
    seen = there(measuring.measured, False)
    assert [name for name in Rates.__struct_fields__ if getattr(seen.rates, name) is None] == ["tf32_tflops"]


def test_a_device_without_bfloat16_says_so_and_has_no_rate_for_it(there: Ask) -> None:
    device = there(measuring.described_without_bfloat16)
    assert device.lacks == ("bfloat16",) == device.ability.lacks
    assert device.rates is not None and device.rates.bfloat16_tflops is None
    assert device.tflops > 0
