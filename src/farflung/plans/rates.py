"""What a device sustains beside its float32 rate, as its worker measured it or a topology file says."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

Arithmetic = Literal["float32", "tf32", "bfloat16"]
"""What matrix products of a job compute in."""

MOST_RATE = 1e6
LEAST_RATE = 1e-9


class Rates(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Rates of a device; None: it has no such arithmetic or copies, or they were not measured.

    Rates of matrix products are in TFLOP/s, with float32 sums. `memory_gb_per_second` counts bytes read and
    written by a copy within the device, the other two bytes copied from and to the host's pinned memory, in
    10^9. `launch_us` are the microseconds of one small operation among many that are queued. A number that is
    not finite, not positive or too large raises ValueError.
    """

    tf32_tflops: float | None = None
    bfloat16_tflops: float | None = None
    memory_gb_per_second: float | None = None
    to_device_gb_per_second: float | None = None
    from_device_gb_per_second: float | None = None
    launch_us: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            rate = getattr(self, name)
            if rate is not None and not (math.isfinite(rate) and LEAST_RATE <= rate <= MOST_RATE):
                raise ValueError(f"{name} must be {LEAST_RATE:g} to {MOST_RATE:g}, found {rate:g}")

    def tflops(self, arithmetic: Arithmetic) -> float | None:
        """The rate of matrix products; None for float32, which is not among these."""
        if arithmetic == "tf32":
            return self.tf32_tflops
        return self.bfloat16_tflops if arithmetic == "bfloat16" else None


def arithmetic_of(precision: str, deterministic: bool) -> Arithmetic:
    """What the products of a job compute in: its precision, and TF32 for float32 unless it must repeat."""
    if precision == "bfloat16":
        return "bfloat16"
    return "float32" if deterministic else "tf32"


def tflops_text(tflops: float, rates: Rates | None) -> str:
    """Rates of matrix products in TFLOP/s, such as "51.2, TF32 380, bf16 701"."""
    named = {} if rates is None else {"TF32": rates.tf32_tflops, "bf16": rates.bfloat16_tflops}
    return ", ".join([f"{tflops:.3g}", *(f"{name} {rate:.3g}" for name, rate in named.items() if rate)])
