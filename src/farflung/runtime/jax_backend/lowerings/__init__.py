"""What JAX computes for each op of the opset, one group a file; `lowering.py` has the rules."""
