"""How long a viewer of the live page waits for a what-if: the broker's process for it, from start to answer.

A GPT-2 of 124 million parameters trains on eight homes (the shipped testbed), on the plan that the planner
makes for it. Each change is asked of a new process, as the broker does. Expected: at most 2 s.

    python -m benchmarks.what_if_time [--rounds N] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import msgspec
import torch
from benchmarks.arguments import whole
from transformers import GPT2Config, GPT2LMHeadModel

from farflung.broker.planning.client import ask_process
from farflung.broker.planning.messages import PlanResult, Question
from farflung.broker.planning.process import answer
from farflung.broker.planning.what_if import LIMIT_SECONDS, PROGRAM, SEARCH_SECONDS
from farflung.broker.planning.what_if_messages import Foreseen, WhatIf, WhatIfQuestion, WorkerChange
from farflung.client.options.planning import load_topology
from farflung.opdag import wire
from farflung.opdag.capture import capture
from farflung.runtime.optimizers.declared import AdamW
from farflung.runtime.training import Training

SEQUENCE, MICROBATCHES, SAMPLES = 64, 8, 4


class Waited(NamedTuple):
    """A change, the seconds until its answer, and the simulated step with it."""

    change: str
    seconds: float
    step_seconds: float | None


def question() -> Question:
    """The job as it runs: its graph, its fleet and its plan."""
    tokens = torch.zeros(SAMPLES, SEQUENCE, dtype=torch.long)
    batch = {"input_ids": tokens, "labels": tokens}
    graph = wire.dump(capture(GPT2LMHeadModel(GPT2Config()), batch).graph)
    fleet = load_topology("eight-homes")
    training = Training(steps=100, microbatches=MICROBATCHES, microbatch_size=SAMPLES, optimizer=AdamW(1e-3))
    asked = Question(graph, training, list(fleet.ids), 0, topology=fleet, search_seconds=20.0)
    made = answer(asked)
    assert isinstance(made, PlanResult), made
    return msgspec.structs.replace(asked, current=made.plan, search_seconds=SEARCH_SECONDS)


def changes(first: str) -> dict[str, WhatIf]:
    """What viewers try."""
    return {
        "nothing": WhatIf("job-1"),
        "a slower line": WhatIf("job-1", {first: WorkerChange(up_mbps=2.0, down_mbps=2.0)}),
        "a faster line": WhatIf("job-1", {first: WorkerChange(up_mbps=100.0, down_mbps=100.0)}),
        "a worker more": WhatIf("job-1", {first: WorkerChange(twins=1)}),
        "a worker less": WhatIf("job-1", {first: WorkerChange(used=False)}),
        "16 microbatches": WhatIf("job-1", microbatches=16),
        "codec auto": WhatIf("job-1", codec="auto"),
    }


async def waited(asked: Question, rounds: int) -> list[Waited]:
    """Ask each change in turn, several times."""
    found = []
    used = list(dict.fromkeys(asked.current.workers() if asked.current else ()))
    for _ in range(rounds):
        for words, change in changes(used[-1]).items():
            body = msgspec.msgpack.encode(WhatIfQuestion(asked, change, used))
            began = time.perf_counter()
            told = await ask_process(PROGRAM, body, Foreseen, LIMIT_SECONDS)
            seconds = time.perf_counter() - began
            found.append(Waited(words, seconds, told.then.step_seconds if told.then else None))
    return found


def main() -> None:
    """Print the median and the longest time of each change."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=whole, default=3)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = asyncio.run(waited(question(), asked.rounds))
    rows = []
    for words in dict.fromkeys(one.change for one in found):
        mine = [one for one in found if one.change == words]
        seconds = [one.seconds for one in mine]
        rows.append(
            {
                "change": words,
                "median_seconds": statistics.median(seconds),
                "longest_seconds": max(seconds),
                "step_seconds": mine[-1].step_seconds,
            }
        )
    if asked.json:
        print(json.dumps(rows))
        return
    for row in rows:
        step = "no plan" if row["step_seconds"] is None else f"{row['step_seconds']:.3g} s a step"
        print(f"{row['change']:18}{row['median_seconds']:6.2f} s{row['longest_seconds']:8.2f} s   {step}")


if __name__ == "__main__":
    main()
