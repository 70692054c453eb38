"""farflung: train one PyTorch model on devices that are far apart."""

__version__ = "0.1.0"
