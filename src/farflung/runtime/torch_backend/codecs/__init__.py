"""Codecs on a device: payloads cross to the host, and tables of random draws to the device.

They write what the NumPy codecs of `farflung.codec` write. `bf16`, `int8`, `int4` and `topk` give the same
bytes, because each of their operations has one correctly rounded result. A rotation adds up 64 products in an
order of its own, so `hadamard` and `eden` may differ in a scale's last bit and in codes at the edge of two.
Every payload is decoded to the bits that NumPy gives. The other families (entropy coded levels, axes,
references, feedback) work on the host, on a copy of the tensor.
"""

from farflung.runtime.torch_backend.codecs.carrier import TensorCarrier
from farflung.runtime.torch_backend.codecs.codec import TensorCoder, tensor_coder

__all__ = ["TensorCarrier", "TensorCoder", "tensor_coder"]
