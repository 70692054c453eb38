"""How long a segment on JAX takes to trace and compile, and to read again from disk: CPU seconds.

Each size of GPT (dropout on) is one segment, compiled in a process of its own and then, by another process,
from what the first one kept. Verifying is what a worker does before it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SIZES = {"small": (2, 64), "example": (4, 128), "medium": (6, 384)}  # layers, width
SAMPLES, SEQUENCE = 4, 128


def measure(size: str, folder: Path) -> dict[str, float]:
    """Figures of one compilation in this process."""
    import torch
    from examples.gpt import GPT, Config

    from farflung.opdag.capture import capture
    from farflung.planner import plan_graph
    from farflung.runtime.jax_backend import backend
    from farflung.runtime.jax_backend.background_compile import CancelToken
    from farflung.runtime.jax_backend.compiled import TrainingFunctions
    from farflung.runtime.jax_backend.verify import verify_segment

    backend.use_cache(folder)
    layers, width = SIZES[size]
    module = GPT(Config(symbols=256, sequence=SEQUENCE, layers=layers, heads=4, width=width, dropout=0.1))
    symbols = torch.zeros(SAMPLES, SEQUENCE, dtype=torch.int64)
    graph = capture(module, {"tokens": symbols, "targets": symbols.clone()}).graph
    (segment,) = plan_graph(graph, 1, SAMPLES, ["worker"]).segments
    begin = time.process_time()
    verify_segment(segment, SAMPLES)
    verified = time.process_time()
    TrainingFunctions(segment, SAMPLES, CancelToken())
    done = time.process_time()
    return {"nodes": len(segment.nodes), "verify": verified - begin, "compile": done - verified}


def main() -> None:
    """Print a row for each size: verifying, compiling, reading what was kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.add_argument("--one", nargs=2, metavar=("SIZE", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], Path(options.one[1]))))
        return
    rows = []
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--one", size, folder]
            first, again = (json.loads(subprocess.check_output(command)) for _ in range(2))
        rows.append({"size": size, **first, "again": again["compile"]})
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'size':10} {'nodes':>6} {'verify s':>12}{'compile s':>12}{'from disk s':>12}")
    for row in rows:
        figures = [f"{row[name]:12.2f}" for name in ("verify", "compile", "again")]
        print(f"{row['size']:10} {row['nodes']:6d} {''.join(figures)}")


if __name__ == "__main__":
    main()
