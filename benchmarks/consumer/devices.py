"""The two devices that FusionAI compares, as their maker states them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """`tflops` is dense fp16 on tensor cores with fp32 sums, `link_mbps` each way inside a machine."""

    name: str
    tflops: float
    memory_gb: float
    memory_gb_per_second: float
    watts: int
    source: str
    link_mbps: float = 0.0


RTX_3080 = Card(
    name="RTX 3080",
    tflops=59.5,
    memory_gb=10,
    memory_gb_per_second=760,
    watts=320,
    source="NVIDIA Ampere GA102 GPU Architecture whitepaper, comparison of GeForce RTX 3080 and RTX 2080 "
    "(119 with sparsity, or with fp16 sums)",
)
H100_PCIE = Card(
    name="H100 PCIe",
    tflops=756,
    memory_gb=80,
    memory_gb_per_second=2000,
    watts=350,
    source="NVIDIA H100 Tensor Core GPU data sheet, PCIe form factor (1,513 with sparsity, halved); "
    "PCIe Gen5 128 GB/s both ways together",
    link_mbps=64 * 8 * 1000,
)
