"""A model of the zoo on the accelerator that is not there, beside the same on the CPU."""

from __future__ import annotations

import gc
from typing import Any

import torch
from benchmarks.zoo import devices
from benchmarks.zoo.devices import STEADY as STEADY
from benchmarks.zoo.devices import Difference
from tests.gpu.fake_streams import Watched
from tests.gpu.numbers_device import NAME
from tests.gpu.race_detector import Detector


def compare(name: str, *given: Any) -> Difference:
    """See `benchmarks.zoo.devices.compare`; raises AssertionError if there was a race."""
    found, races = detected(name, *given)
    assert not races, races[0]
    return found


def detected(name: str, *given: Any) -> tuple[Difference, list[str]]:
    """See `benchmarks.zoo.devices.compare`; also gives the races that there were."""
    torch.set_num_threads(1)
    Watched.detector = Detector()
    found = devices.compare(torch.device(NAME), name, *given)
    gc.collect()
    Watched.detector.find_freed()
    return found, Watched.detector.races
