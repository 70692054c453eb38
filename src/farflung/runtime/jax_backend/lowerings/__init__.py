"""Lowerings for JAX, one file per group of ops; see `lowering.py` for the rules."""
