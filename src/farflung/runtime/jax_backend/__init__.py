"""Segments on JAX: lowerings of the opset, compiled segments, tapes, optimizer. Nothing here needs torch."""
