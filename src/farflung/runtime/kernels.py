"""A digest of what a device's kernels compute; with equal ones they may repeat each other's steps.

Devices with the same framework can differ in last bits: a processor's vector width and caches choose the
kernels, and the number of threads the order of sums. So each trains one step of the same small model, with
the backend's own ops and optimizer, and hashes all that comes out: matrix products of several sizes, a
convolution, softmax, GELU, a normalisation, an embedding, sums, and their gradients.

That is a sample, not a proof. So the hash also covers what is known to change bits that the sample may not
have: the framework's version and the number of threads. A longer sum than any here, say, is divided among
threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from farflung.opdag import opset, wire
from farflung.opdag.form import Form
from farflung.opdag.graph import Argument, BatchSize, Dimension, Element, Input, Node, Ref, ValueType
from farflung.opdag.segment import Segment
from farflung.runtime.optimizers.declared import AdamW

SAMPLES = 4
TOKENS, SYMBOLS, WIDTH, HIDDEN, HEADS = 24, 100, 96, 384, 4
PIXELS, CHANNELS, KERNEL = 18, 8, 3
FEATURES = CHANNELS * (PIXELS - KERNEL + 1) ** 2
OPTIMIZER = AdamW(lr=0.01)
Shape = list[Dimension]


def sample_segment(attention: bool) -> Segment:
    """A small model of the kinds of ops that models are made of; with `attention` where that is a kernel."""
    return _Model(attention).segment()


class _Model:
    def __init__(self, attention: bool) -> None:
        self._attention = attention
        self._values: dict[int, ValueType] = {}
        self._inputs: list[Input] = []
        self._nodes: list[Node] = []

    def segment(self) -> Segment:
        loss = self._add(self._mean(self._language()), self._mean(self._vision()), [])
        return Segment(
            version=wire.FORMAT_VERSION,
            opset=opset.version(),
            number=0,
            values=self._values,
            inputs=self._inputs,
            owned=[entry.name for entry in self._inputs if entry.trainable],
            receives=[],
            nodes=self._nodes,
            sends=[],
            differentiable=[],
            loss=loss,
            mutations={},
            constants={},
        )

    def _language(self) -> int:
        """A transformer's block and a softmax: [samples, tokens, width]."""
        rows: Shape = [BatchSize(1), TOKENS, WIDTH]
        tokens = self._input("tokens", [BatchSize(1), TOKENS], "int64")
        table = self._parameter("table", [SYMBOLS, WIDTH])
        x = self._node("embedding.default", rows, weight=Ref(table), indices=Ref(tokens))
        scale, shift = (self._parameter(name, [WIDTH]) for name in ("scale", "shift"))
        whole: list[Element] = [WIDTH]
        x = self._node(
            "layer_norm.default",
            rows,
            input=Ref(x),
            normalized_shape=whole,
            weight=Ref(scale),
            bias=Ref(shift),
        )
        if self._attention:
            x = self._attend(x, rows)
        wide: Shape = [BatchSize(1), TOKENS, HIDDEN]
        h = self._node("gelu.default", wide, self=Ref(self._linear(x, "up", WIDTH, HIDDEN, wide)))
        x = self._linear(h, "down", HIDDEN, WIDTH, rows)
        return self._node("softmax.int", rows, self=Ref(x), dim=-1)

    def _attend(self, x: int, rows: Shape) -> int:
        """Attention of four heads, and the product of each sample with its own transpose."""
        heads: Shape = [BatchSize(1), TOKENS, HEADS, WIDTH // HEADS]
        turned: Shape = [BatchSize(1), HEADS, TOKENS, WIDTH // HEADS]
        split = self._transposed(self._reshaped(x, heads), turned)
        seen = self._node(
            "scaled_dot_product_attention.default", turned, query=Ref(split), key=Ref(split), value=Ref(split)
        )
        seen = self._reshaped(self._transposed(seen, heads), rows)
        flipped = self._transposed(seen, [BatchSize(1), WIDTH, TOKENS])
        square: Shape = [BatchSize(1), TOKENS, TOKENS]
        scores = self._node("bmm.default", square, self=Ref(seen), mat2=Ref(flipped))
        mixed = self._node("bmm.default", rows, self=Ref(scores), mat2=Ref(x))
        return self._add(x, mixed, rows)

    def _vision(self) -> int:
        """A convolution and a product over all that it gives: [samples, width]."""
        side = PIXELS - KERNEL + 1
        image = self._input("image", [BatchSize(1), 3, PIXELS, PIXELS], "float32")
        weight = self._parameter("kernel", [CHANNELS, 3, KERNEL, KERNEL])
        maps: Shape = [BatchSize(1), CHANNELS, side, side]
        x = self._node("conv2d.default", maps, input=Ref(image), weight=Ref(weight))
        x = self._reshaped(self._node("relu.default", maps, self=Ref(x)), [BatchSize(1), FEATURES])
        return self._linear(x, "out", FEATURES, WIDTH, [BatchSize(1), WIDTH])

    def _reshaped(self, x: int, shape: Shape) -> int:
        sizes: list[Element] = [*shape]
        return self._node("reshape.default", shape, self=Ref(x), shape=sizes)

    def _transposed(self, x: int, shape: Shape) -> int:
        return self._node("transpose.int", shape, self=Ref(x), dim0=1, dim1=2)

    def _linear(self, x: int, name: str, read: int, made: int, shape: Shape) -> int:
        weight, bias = self._parameter(name, [made, read]), self._parameter(f"{name} bias", [made])
        return self._node("linear.default", shape, input=Ref(x), weight=Ref(weight), bias=Ref(bias))

    def _add(self, one: int, other: int, shape: Shape) -> int:
        return self._node("add.Tensor", shape, self=Ref(one), other=Ref(other))

    def _mean(self, x: int) -> int:
        """Of squares: each element has a gradient of its own."""
        squared = self._node("square.default", self._values[x].shape, self=Ref(x))
        return self._node("mean.default", [], self=Ref(squared))

    def _input(self, name: str, shape: Shape, dtype: Any) -> int:
        self._inputs.append(Input(self._value(shape, dtype), "input", name))
        return self._inputs[-1].value

    def _parameter(self, name: str, shape: Shape) -> int:
        self._inputs.append(Input(self._value(shape), "parameter", name, True))
        return self._inputs[-1].value

    def _node(self, op: str, shape: Shape, /, **arguments: Argument) -> int:
        made = self._value(shape)
        self._nodes.append(Node(len(self._nodes), f"aten.{op}", arguments, [made]))
        return made

    def _value(self, shape: Shape, dtype: Any = "float32") -> int:
        self._values[len(self._values)] = ValueType(dtype, shape)
        return len(self._values) - 1


def sample_numbers(entry: Input, segment: Segment) -> memoryview:
    """The bytes of a parameter or input, as its name gives them: tokens, or numbers from -1/8 to 1/8."""
    import numpy as np

    form = Form.of(segment.values[entry.value], SAMPLES)
    drawn = np.frombuffer(hashlib.shake_128(entry.name.encode()).digest(4 * form.elements), "<u4")
    tokens, fractions = (drawn % SYMBOLS).astype("<i8"), (drawn >> 8).astype("<f4") / 2**26 - 0.125
    chosen: np.ndarray = tokens if form.dtype == "int64" else fractions
    return memoryview(bytearray(chosen.tobytes()))


def digest_of(device: str, results: Iterable[memoryview]) -> str:
    """32 hexadecimal digits of the sample's results in order; `device` says what else decides about bits."""
    digest = hashlib.sha256(device.encode())
    for data in results:
        digest.update(data)
    return digest.hexdigest()[:32]
