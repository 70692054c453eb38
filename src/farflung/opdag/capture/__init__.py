"""An `nn.Module` and its loss to an OP-DAG, by `torch.export`; the only part of `opdag` that needs torch."""

from farflung.opdag.capture.capture import Capture, Origin, capture

__all__ = ["Capture", "Origin", "capture"]
