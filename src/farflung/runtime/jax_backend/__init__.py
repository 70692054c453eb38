"""Segments on JAX: lowerings of the opset, compiled segments, tapes, optimizer. No torch is imported here."""
