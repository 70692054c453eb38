"""Write golden files of today's format, `python -m tests.opdag.golden v2`; never over released ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.zoo import case
from tests.opdag.golden.running import BATCH, numbers_of

from farflung.opdag import wire
from farflung.opdag.capture import capture
from farflung.planner import plan_graph

MODELS = ("gpt", "resnet", "gpt2-mask-dropout", "stereo")


def main(folder: Path) -> None:
    """For each model its graph and the second of three segments, and what comes of running them."""
    folder.mkdir(parents=True)
    expected: dict[str, dict[str, list[float]]] = {}
    for name in MODELS:
        model = case(name)
        graph = capture(model.build(), model.batch(BATCH, 1), model.loss).graph
        segment = plan_graph(graph, 2, BATCH, ["a", "b", "c"]).segments[1]
        for kind, document in (("graph", graph), ("segment", segment)):
            data = wire.dump(document)
            (folder / f"{name}.{kind}.opdag").write_bytes(data)
            expected[f"{name}.{kind}.opdag"] = numbers_of(data, kind == "segment")
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(__file__).parent / sys.argv[1])
