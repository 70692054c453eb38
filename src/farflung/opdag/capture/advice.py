"""What to do about an op that a graph cannot hold, where that is known."""

from __future__ import annotations

_NAMESPACES = {
    "aten": "replace it by ops of the opset (docs/opset.md)",
    "transformers": "set experts_implementation='batched_mm' in the model's configuration",
    "torchvision": "use a plain torch op",
    "quantized": "train in floating point",
    "quantized_decomposed": "train in floating point",
}
_OWN_OP = "no worker has it: write it with torch ops"
_HIGHER_ORDER = {
    "cond": "use torch.where, which computes both sides",
    "while_loop": "write a loop of fixed length",
    "scan": "write a loop of fixed length",
    "map_impl": "write a loop of fixed length, or one op over a batch",
    "flex_attention": "use scaled_dot_product_attention",
    "triton_kernel_wrapper_mutation": "write the kernel with torch ops",
    "triton_kernel_wrapper_functional": "write the kernel with torch ops",
}
_ARGUMENTS = {
    "sparse": "gradients are dense here, leave it out",
    "generator": "draws come from the job's seed, leave it out",
}


def for_op(namespace: str) -> str:
    """What to do about an op of a namespace that the opset lacks."""
    return _NAMESPACES.get(namespace, _OWN_OP)


def for_higher_order(name: str) -> str:
    """`: advice` for a higher-order op, or nothing."""
    return f": {_HIGHER_ORDER[name]}" if name in _HIGHER_ORDER else ""


def for_argument(name: str) -> str:
    """`: advice` for an argument that the opset lacks, or nothing."""
    return f": {_ARGUMENTS[name]}" if name in _ARGUMENTS else ""
