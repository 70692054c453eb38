"""Compiling takes most of the time here, and half as much where XLA does not optimise."""

from __future__ import annotations

import os

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # read when JAX first computes
