"""Segments on PyTorch: generated code, tapes, gradients, optimizer. The only runtime that imports torch."""
