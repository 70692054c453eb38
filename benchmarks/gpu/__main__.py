"""Everything that farflung claims of a GPU, measured on one in some minutes.

    python -m benchmarks.gpu [--device cuda] [--sections rates codecs] [--json]

Each section stands alone: one that fails says so in a line, and the others go on. Without a GPU everything
runs on the CPU, which shows that the program works and nothing else. Exits 1 if a section failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from benchmarks.gpu.codecs import codecs
from benchmarks.gpu.memory import memory
from benchmarks.gpu.overlap import overlap
from benchmarks.gpu.parity import parity
from benchmarks.gpu.processes import processes
from benchmarks.gpu.rates import rates
from benchmarks.gpu.runner import runner

from farflung.heap import keep_freed_memory

Row = dict[str, Any]
SECTIONS: dict[str, Callable[[torch.device], Iterable[Row]]] = {
    "rates": rates,
    "codecs": codecs,
    "runner": runner,
    "memory": memory,
    "overlap": overlap,
    "processes": processes,
    "parity": parity,
}


def described(device: torch.device) -> dict[str, object]:
    """The device and the torch that uses it."""
    found: dict[str, object] = {"device": str(device), "torch": torch.__version__}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {"name": properties.name, "memory_gb": round(properties.total_memory / 1e9, 1)}
        found |= {"cuda": torch.version.cuda, "rocm": torch.version.hip}
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the sections; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sections", nargs="+", choices=sorted(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    keep_freed_memory()
    device = torch.device(options.device)
    report: dict[str, Any] = described(device)
    if not options.json:
        print(json.dumps(report))
    failed = False
    for name in options.sections:
        began = time.perf_counter()
        found: list[Row] = []
        if not options.json:
            print(name, flush=True)
        try:
            for row in SECTIONS[name](device):
                found.append(row)
                if not options.json:
                    print("  " + "  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        except Exception as error:
            failed = True
            found.append({"error": f"{type(error).__name__}: {error}".splitlines()[0]})
            if not options.json:
                print(f"  error {found[-1]['error']}")
        report[name] = {"seconds": round(time.perf_counter() - began, 1), "found": found}
    if options.json:
        print(json.dumps(report, indent=1))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
