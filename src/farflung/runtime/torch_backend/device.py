"""What a device of PyTorch needs said: its generator, how the host reads its numbers, which indices it takes.

The host runs ahead of a device and queues its work. Each number that it reads makes it wait until the queue
is empty, so a segment reads once in a unit (`read`). An index out of range is an exception on a CPU; on a
GPU it ends the process's use of the device. So indices are checked before they go there (`on_the_host`).
Those that the device computes are kept in range there, and read with the unit's other numbers (`Place`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from farflung.runtime.indices import IndexRange, require_in_range

if TYPE_CHECKING:
    from farflung.runtime.torch_backend.crossing import Crossing

HOST = torch.device("cpu")


def placed(device: torch.device) -> torch.device:
    """The device with the number that its tensors have, so that devices can be compared."""
    return device if device.type == "cpu" else torch.device(device.type, device.index or 0)


def generator_of(device: torch.device) -> torch.Generator:
    """The generator that random ops draw from on the device, where none is given to them."""
    if device.type == "cpu":
        return torch.default_generator
    if device.type == "mps":
        generator: torch.Generator = torch.mps._get_default_mps_generator()
        return generator
    generators = torch.get_device_module(device).default_generators
    of_device: torch.Generator = generators[device.index or 0]
    return of_device


def widest(device: torch.device) -> torch.dtype:
    """The element type in which sums are kept: float64, which MPS lacks."""
    return torch.float32 if device.type == "mps" else torch.float64


def read(numbers: Sequence[Tensor]) -> list[float]:
    """The numbers in tensors of one element on one device; waits for the device once."""
    if not numbers:
        return []
    wide = widest(numbers[0].device)
    found: list[float] = torch.stack([number.detach().to(wide) for number in numbers]).cpu().tolist()
    return found


def on_the_host(expected: IndexRange, indices: Tensor, microbatch: int) -> None:
    """Check indices in the host's memory.

    Raises
    ------
    JobError
        One of them is out of range.
    """
    counted = indices if expected.ignored is None else indices[indices != expected.ignored]
    if counted.numel():
        require_in_range(expected, int(counted.min()), int(counted.max()), microbatch)


class Place:
    """The device that a segment computes on, and what that finds of indices until the host reads it.

    `crossing` copies to and from a device with streams.
    """

    def __init__(self, device: torch.device = HOST, crossing: Crossing | None = None) -> None:
        self.device = placed(device)
        self.crossing = crossing
        self.is_host = device.type == "cpu"
        self.microbatch = 0
        self._found: list[tuple[IndexRange, int, Tensor, Tensor]] = []

    def brought(self, tensor: Tensor) -> Tensor:
        """A copy on the device of a contiguous tensor of the host."""
        return tensor.to(self.device) if self.crossing is None else self.crossing.bring(tensor).here()

    def bounding(self, expected: IndexRange) -> Callable[[Tensor], Tensor]:
        """What keeps indices in range on the device, and notes the smallest and largest of them."""
        least, most, ignored = expected.least, expected.limit - 1, expected.ignored

        def bounded(indices: Tensor) -> Tensor:
            counted = indices if ignored is None else indices.masked_fill(indices == ignored, least)
            low, high = torch.aminmax(counted)
            self.note(expected, low, high)
            kept = counted.clamp(least, most)
            return kept if ignored is None else torch.where(indices == ignored, indices, kept)

        return bounded

    def note(self, expected: IndexRange, low: Tensor, high: Tensor) -> None:
        """Note the smallest and largest of some indices of this microbatch, which `read` checks."""
        self._found.append((expected, self.microbatch, low, high))

    def take_noted(self) -> list[tuple[IndexRange, Tensor, Tensor]]:
        """What was noted and not read, which is then forgotten."""
        found, self._found = self._found, []
        return [(expected, low, high) for expected, _, low, high in found]

    def read(self, numbers: Sequence[Tensor]) -> list[float]:
        """The numbers, as the function `read` gives them; waits for the device once.

        Raises
        ------
        JobError
            An index was out of range since the last call.
        """
        found, self._found = self._found, []
        values = read([*numbers, *(number for _, _, *pair in found for number in pair)])
        for at, (expected, microbatch, _, _) in enumerate(found):
            low, high = values[len(numbers) + 2 * at : len(numbers) + 2 * at + 2]
            require_in_range(expected, int(low), int(high), microbatch)
        return values[: len(numbers)]

    @property
    def has_unread(self) -> bool:
        """Whether indices were found that the host has not read."""
        return bool(self._found)

    def forget(self) -> None:
        """Drop what was found and not read."""
        self._found = []


ON_HOST = Place()


def tightest(ranges: Iterable[IndexRange]) -> dict[int, IndexRange]:
    """The ranges of each value as one, which is in all of them."""
    found: dict[int, IndexRange] = {}
    for each in ranges:
        other = found.get(each.value)
        if other is not None:
            both = each if each.limit <= other.limit else other
            ignored = each.ignored if each.ignored == other.ignored else None
            each = both._replace(least=max(each.least, other.least), ignored=ignored)
        found[each.value] = each
    return found
