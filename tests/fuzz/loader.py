"""Feeds damaged OP-DAGs to the loader, in a process that may be killed by one: figures on standard output.

`python -m tests.fuzz.loader --first N --count 1 --seed S` feeds one again. The number of the input that is
looked at stands in the file `--progress`, for whoever finds this process dead.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import resource
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import psutil
import torch
from tests.fuzz.document_mutator import Document, DocumentMutator
from tests.fuzz.inventions import BATCH, Inventor
from tests.fuzz.mutators import Mutator
from tests.opdag.golden.running import tensor_for
from tests.opdag.test_golden import FILES
from tests.support.memory import peak_bytes
from tests.support.random_graphs import random_graph

from farflung.errors import GraphError
from farflung.opdag import opset, wire
from farflung.opdag.graph import Graph
from farflung.opdag.partition import Partition
from farflung.opdag.segment import Segment
from farflung.runtime.jax_backend.verify import verify_segment as verify_on_jax
from farflung.runtime.torch_backend import codegen, verify

MOST_GROWTH_BYTES = 256 * 2**20
"""What loading may add to the memory of the process, whatever it is fed here."""

_RUN_ELEMENTS = 100_000
_RUN_SHARE, _ROUND_TRIP_SHARE, _JAX_SHARE = 0.3, 0.05, 0.01


class Figures(msgspec.Struct):
    """What was fed, what became of it, and what it cost. Seconds are CPU time, memory is resident bytes."""

    inputs: int
    largest_bytes: int
    outcomes: dict[str, int]
    ops_resolved: int
    seconds: float
    slowest_seconds: float
    memory_before: int
    memory_peak: int


class Sample(msgspec.Struct, frozen=True):
    """A document that is well, as bytes and as what they say."""

    data: bytes
    document: Document
    is_segment: bool


def samples() -> list[Sample]:
    """Documents of every format that there was, of real models, and of small random graphs."""
    found = [(path.read_bytes(), path.name.endswith(".segment.opdag")) for path in FILES]
    for seed in range(12):
        graph = random_graph(seed, steps=4)
        found.append((wire.dump(graph), False))
        halves = Partition(graph, [len(graph.nodes) // 2], BATCH).segments()
        found += [(wire.dump(segment), True) for segment in halves]
    return [Sample(data, msgspec.msgpack.decode(data), is_segment) for data, is_segment in found]


class Feeder:
    """Makes the inputs of one seed, each of which depends on its number alone, and feeds them."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._samples = samples()
        self._large = [sample for sample in self._samples if len(sample.data) > 4000]
        self._small = [sample for sample in self._samples if len(sample.data) <= 4000]
        self.resolved: set[str] = set()
        self.outcomes = Counter[str]()
        for module in (codegen, verify):
            module.resolve = self._resolve  # type: ignore[attr-defined]

    def make(self, number: int) -> tuple[bytes, bool, Random]:
        """An input, whether it should be a segment, and what else is drawn for it."""
        random = Random(f"{self._seed}/{number}")
        draw = random.random()
        if draw < 0.4:
            return self._encoded(Inventor(random).segment(), random), True, random
        sample = random.choice(self._large if draw < 0.45 else self._small)
        if draw < 0.85:
            document = DocumentMutator(random).damaged(sample.document)
            return self._encoded(document, random), sample.is_segment, random
        mutator = Mutator(random)
        damage = random.choice([mutator.bytes, mutator.values, mutator.fields])
        return damage(sample.data), sample.is_segment ^ (random.random() < 0.02), random

    def feed(self, data: bytes, is_segment: bool, random: Random) -> None:
        """Count what becomes of an input. Whatever else it raises than GraphError is a defect."""
        self.outcomes[self._fed(data, is_segment, random)] += 1

    def _fed(self, data: bytes, is_segment: bool, random: Random) -> str:
        try:
            document = (wire.load_segment if is_segment else wire.load_graph)(data, BATCH)
        except GraphError as error:
            _check_words(error)
            return "refused by the loader"
        _check_limits(document)
        if random.random() < _ROUND_TRIP_SHARE:
            again = (wire.load_segment if is_segment else wire.load_graph)(wire.dump(document), BATCH)
            assert wire.dump(again) == wire.dump(document)
        segment = _as_segment(document)
        if random.random() < _JAX_SHARE:
            self.on_jax(segment)
        try:
            verify.verify_segment(segment, BATCH)
        except GraphError as error:
            _check_words(error)
            return "refused on the meta device"
        if random.random() > _RUN_SHARE or _elements(segment) > _RUN_ELEMENTS:
            return "verified"
        return _run(segment, train=random.random() < 0.7)

    def on_jax(self, segment: Segment) -> None:
        """Have the other backend verify it too."""
        try:
            verify_on_jax(segment, BATCH)
        except GraphError as error:
            _check_words(error)
            self.outcomes["also refused by jax"] += 1
        else:
            self.outcomes["also verified by jax"] += 1

    def _encoded(self, document: Document, random: Random) -> bytes:
        try:
            return msgspec.msgpack.encode(document)
        except (OverflowError, TypeError):  # a key that msgpack has no words for, an integer too large
            return random.randbytes(40)

    def _resolve(self, name: str, resolve: Any = codegen.resolve) -> Any:
        operator = resolve(name)
        assert name in opset.table(), f"{name} was resolved"
        self.resolved.add(name)
        return operator


def _as_segment(document: Graph | Segment) -> Segment:
    if isinstance(document, Segment):
        return document
    (segment,) = Partition(document, [], BATCH).segments()
    return wire.load_segment(wire.dump(segment), BATCH)


def _check_words(error: GraphError) -> None:
    words = str(error)
    assert words.isprintable() and len(words) < 600, words


def _check_limits(document: Graph | Segment) -> None:
    types = document.values if isinstance(document.values, list) else list(document.values.values())
    assert len(document.nodes) <= 100_000
    assert all(node.op in opset.table() for node in document.nodes)
    assert all(len(t.shape) <= 8 and 0 <= t.numel(BATCH) <= wire.MAXIMUM_ELEMENTS for t in types)


def _elements(segment: Segment) -> int:
    return sum(value_type.numel(BATCH) for value_type in segment.values.values())


def _run(segment: Segment, train: bool) -> str:
    """Run what was verified: it may raise, for an index depends on data, but it may not do harm."""
    program = codegen.Program(segment, BATCH, train)
    kinds = {entry.value: entry.kind for entry in segment.inputs}

    def given(value: int) -> torch.Tensor:
        return tensor_for(segment.values[value], kinds.get(value, "received"), value % 7)

    try:
        with torch.no_grad():
            program.run([given(v) for v in program.state], [given(v) for v in program.values], 1)
    except Exception as error:
        assert not isinstance(error, MemoryError) and "memory" not in str(error), error
        return f"raised {type(error).__name__} when it ran"
    return "ran"


def attack(seed: int, first: int, count: int, progress: Path) -> Figures:
    """Feed inputs `first` to `first + count`."""
    feeder = Feeder(seed)
    for number in range(first, first + min(count, 200)):  # what is loaded and cached once is no growth
        feeder.feed(*feeder.make(number))
    feeder.on_jax(_as_segment(wire.load_graph(FILES[0].read_bytes(), BATCH)))
    feeder.outcomes.clear()
    process = psutil.Process()
    before = process.memory_info()
    limit = before.vms + MOST_GROWTH_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    largest, slowest, began = 0, 0.0, time.process_time()
    file = os.open(progress, os.O_WRONLY | os.O_CREAT)
    for number in range(first, first + count):
        os.pwrite(file, b"%20d" % number, 0)
        data, is_segment, random = feeder.make(number)
        start = time.process_time()
        feeder.feed(data, is_segment, random)
        slowest = max(slowest, time.process_time() - start)
        largest = max(largest, len(data))
    os.close(file)
    return Figures(
        inputs=count,
        largest_bytes=largest,
        outcomes=dict(feeder.outcomes.most_common()),
        ops_resolved=len(feeder.resolved),
        seconds=time.process_time() - began,
        slowest_seconds=slowest,
        memory_before=before.rss,
        memory_peak=peak_bytes(),
    )


def main() -> None:
    """Feed as many as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--progress", type=Path, default=Path(os.devnull))
    options = parser.parse_args()
    faulthandler.enable()
    torch.set_num_threads(1)
    with suppress(BrokenPipeError):
        figures = attack(options.seed, options.first, options.count, options.progress)
        print(msgspec.json.encode(figures).decode(), flush=True)


if __name__ == "__main__":
    main()
